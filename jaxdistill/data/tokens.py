"""Tokenises text once into flat arrays on disk, and gives random access to them.

A text is tokenised in shards of `SHARD_ROWS` rows by `Dataset.map`, each with a cache file of its own, so that a restarted run
repeats missing shards only. Duplicates and excluded rows are left out by hashes of their text. What remains becomes a store: one
folder of memory-mapped arrays, named by the digest of everything that determines it. The shards are then removed.

Files of a store, where `N` is the index of a column:

    input_row, keys                one entry per row
    N.words, N.tokens              one per row, see `Counts`
    N.ids, N.marks                 one per token; marks are those of `words.py`
    N.text                         one per byte
    N.ids.starts, N.text.starts    where each sentence begins, and a last entry for the end
"""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.core import MASK_TOKENS, InputError, errors_of, unknown_id
from jaxdistill.core.files import make_folder_atomic, writing
from jaxdistill.core.paths import other_cache
from jaxdistill.core.runtime import Advance, progress_bar
from jaxdistill.data.chunks import Chunking, bare, tokens_around
from jaxdistill.data.text import (
    TEXT,
    Portion,
    Roles,
    Table,
    Watched,
    columns_of,
    excluded_keys,
    identifying,
    portions,
    quiet_datasets,
    row_key,
    source_files,
    tables,
    text_key,
)
from jaxdistill.data.words import PROTECTED, STARTS, Tokenised, Unknown, sums, tokenised_words

if TYPE_CHECKING:
    import pyarrow

FORMAT = 3
"""Version of the rules that decide which rows a text has, part of every digest; bump to invalidate everything stored for a text."""
LAYOUT = 6
"""Version of the store's files and tokens, part of the store's digest only; bump to tokenise again."""
SHARD_ROWS = 1 << 16
"""Number of input rows tokenised into one file; a killed run repeats at most that many."""
BATCH_ROWS = 4096
"""Rows tokenised at a time."""


class Gathered(NamedTuple):
    """Sentences of a store, concatenated."""

    ids: Integer[np.ndarray, " t"]
    words: Integer[np.ndarray, " t"]
    """Index of each token's word in its sentence, from 0; -1 for special tokens and the prompt."""
    lengths: Integer[np.ndarray, " b"]


class Counts(NamedTuple):
    """Counts of sentences, which the store holds apart from the tokens."""

    lengths: Integer[np.ndarray, " b"]
    """Number of all tokens."""
    words: Integer[np.ndarray, " b"]
    tokens: Integer[np.ndarray, " b"]
    """Number of tokens that are neither special nor of the prompt."""


class PairTemplate(NamedTuple):
    """Special tokens around a pair: `begin`, first sentence, `between`, second sentence, `end`."""

    begin: Integer[np.ndarray, " t"]
    between: Integer[np.ndarray, " t"]
    end: Integer[np.ndarray, " t"]
    between_first: int
    """Number of tokens of `between` that have the first sentence's type."""
    has_types: bool
    """Whether the second sentence has its own token type."""


class TokenStore:
    """Random access to tokenised rows, memory-mapped.

    Args:
      folder: written by `build_store`.
      tokenizer: the store's tokenizer, for views that change the text. It is modified, so pass a copy.
      chunking: how the texts were split, if they were.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, chunking: Chunking | None = None):
        self.folder, self._tokenizer, self.chunking = folder, tokenizer, chunking
        self._info = info = json.loads((folder / "store.json").read_text())
        self.digest: str = info["digest"]
        """Digest of everything that determines the tokens."""
        self.content_digest: str = info["content"]
        """Digest of the text alone: equal for stores of the same rows with different tokenizers."""
        self.source_digest: str = info["source"]
        """SHA-256 of the sources alone."""
        self.rows: int = info["rows"]
        self.input_rows: int = info["input_rows"]
        """Number of rows in the sources, excluded ones included."""
        self.max_length: int = info["max_length"]
        self.pad_id: int = info["pad_id"]
        self.columns: tuple[str, ...] = tuple(info["columns"])
        self.source_rows: tuple[int, ...] = tuple(info["source_rows"])
        """Number of rows from each spec."""
        self.prompts: dict[str, str] = info["prompts"]
        """Maps each role of the text to its prompt; the empty string stands for no role."""
        self._arrays = {
            name: np.asarray(np.memmap(folder / name, dtype, mode="r")) for name, dtype in info["arrays"].items()
        }
        self.keys: Integer[np.ndarray, " rows"] = self._arrays["keys"]
        """A 64-bit hash of each row's `text`; equal texts have equal keys."""
        self.input_row: Integer[np.ndarray, " rows"] = self._arrays["input_row"]
        """Index of each row in the sources, and therefore in the user's own vectors."""

    def _array(self, column: str, kind: str) -> np.ndarray:
        if column not in self.columns:
            raise InputError(
                f"the text has no column {column!r}; it has {', '.join(self.columns)}. Set --config.data.columns."
            )
        return self._arrays[f"{self.columns.index(column)}.{kind}"]

    def lengths(self, column: str) -> Integer[np.ndarray, " rows"]:
        """Number of tokens of each sentence."""
        return np.diff(self._array(column, "ids.starts"))

    def counts_of(self, column: str, rows: Integer[np.ndarray, " b"]) -> Counts:
        """Word and token counts of some sentences."""
        starts = self._array(column, "ids.starts")
        words, tokens = (self._array(column, kind)[rows].astype(np.int64) for kind in ("words", "tokens"))
        return Counts(starts[rows + 1] - starts[rows], words, tokens)

    def longest(self, column: str) -> int:
        """Number of tokens of the longest sentence."""
        return self._info["columns"][column]["longest"]

    def unknown(self, column: str) -> Unknown:
        """Counts of unknown tokens and characters in a column."""
        return Unknown(*(self._info["columns"][column][name] for name in Unknown._fields))

    def truncated(self, column: str) -> float:
        """Share of truncated sentences in a column."""
        return self._info["columns"][column]["truncated"] / self.rows

    def ids(self, column: str, row: int) -> Integer[np.ndarray, " l"]:
        """Token ids of a sentence, special tokens included."""
        return self.gather(column, np.array([row])).ids

    def gather(self, column: str, rows: Integer[np.ndarray, " b"]) -> Gathered:
        """Ids and words of many sentences at once."""
        starts = self._array(column, "ids.starts")
        begins = starts[rows]
        lengths = starts[rows + 1] - begins
        before = np.cumsum(lengths) - lengths
        positions = np.repeat(begins - before, lengths) + np.arange(lengths.sum())
        ids, marks = self._array(column, "ids")[positions], self._array(column, "marks")[positions]
        # Words are counted over all sentences at once; subtracting the count before each sentence restarts them at 0.
        count = np.cumsum(marks == STARTS)
        words_before = np.concatenate([[0], count])[before]
        words = np.where(marks == PROTECTED, -1, count - 1 - np.repeat(words_before, lengths))
        return Gathered(ids, words, lengths)

    def text(self, column: str, row: int) -> str:
        """The raw sentence, without surrounding white space."""
        begin, end = self._array(column, "text.starts")[[row, row + 1]]
        return self._array(column, "text")[begin:end].tobytes().decode()

    def texts(self, column: str = TEXT, prompts: Mapping[str, str] | None = None) -> "Texts":
        """All sentences of a column as a lazy sequence; `prompts` maps roles to prompts to prepend."""
        self._array(column, "ids.starts")
        return Texts(self, column, prompts)

    def roles(self, column: str, rows: Sequence[int] | Integer[np.ndarray, " n"]) -> list[str]:
        """The role of each sentence: `query`, `document`, or an empty string."""
        of_rows = np.searchsorted(np.cumsum(self._info["portion_rows"]), np.asarray(rows, np.int64), side="right")
        roles = [portion[column] for portion in self._info["roles"]]
        return [roles[portion] for portion in of_rows]

    def tokenised(
        self, column: str, rows: Integer[np.ndarray, " n"], texts: Sequence[str], *, max_length: int
    ) -> Tokenised:
        """Tokenises `texts`, which replace the sentences of `rows`, with this store's tokenizer and their roles' prompts."""
        self._tokenizer.enable_truncation(max_length)
        prompts = [self.prompts[role] for role in self.roles(column, rows)]
        return tokenised_words(self._tokenizer, texts, prompts, max_length)

    @cached_property
    def pair_template(self) -> PairTemplate:
        """Special tokens that the tokenizer puts around the two sentences of a pair."""
        self._tokenizer.no_truncation()
        # Which special tokens a pair gets does not depend on its sentences, so any with a token will do; a row may have none,
        # such as one of invisible characters.
        text = self.text(TEXT, int(np.argmax(self._array(TEXT, "tokens") > 0)))
        encoding = self._tokenizer.encode(text, text)
        ids, types = np.asarray(encoding.ids, np.int64), np.asarray(encoding.type_ids)
        # The sentence, 0 or 1, of each token; -1 for special tokens.
        sentence_of = np.array([-1 if sequence is None else sequence for sequence in encoding.sequence_ids])
        starts = [int(np.argmax(sentence_of == sentence)) for sentence in (0, 1)]
        ends = [len(ids) - int(np.argmax(sentence_of[::-1] == sentence)) for sentence in (0, 1)]
        parts = (slice(0, starts[0]), slice(ends[0], starts[1]), slice(ends[1], len(ids)))
        begin, between, end = (ids[part] for part in parts)
        return PairTemplate(
            begin, between, end, int((types[parts[1]] == 0).sum()), has_types=bool(types[parts[2]].any())
        )

    @cached_property
    def mask_token(self) -> str:
        """The tokenizer's mask token, registered so that it is read as one token; raises `InputError` if there is none."""
        token = next((mask for mask in MASK_TOKENS if self._tokenizer.token_to_id(mask) is not None), None)
        if token is None:
            raise InputError(
                f"the tokenizer has no mask token ({', '.join(MASK_TOKENS)}); choose a view without masks."
            )
        if self._tokenizer.token_to_id(token) not in self._tokenizer.get_added_tokens_decoder():
            self._tokenizer.add_special_tokens([token])
        return token

    def report(self) -> list[str]:
        """Lines about the text for the run's log."""
        return self._info["report"]


class Texts(Sequence):
    """The sentences of one column, read from disk on access."""

    def __init__(self, store: TokenStore, column: str, prompts: Mapping[str, str] | None = None):
        self._store, self._column, self._prompts = store, column, prompts

    def __len__(self) -> int:
        return self._store.rows

    def __getitem__(self, index):
        rows = range(len(self))[index]  # a range, or for an integer index an integer
        if isinstance(rows, int):
            return self[rows : rows + 1][0]
        texts = [self._store.text(self._column, row) for row in rows]
        if self._prompts is None:
            return texts
        roles = self._store.roles(self._column, rows)
        return [self._prompts[role] + text for role, text in zip(roles, texts, strict=True)]


def build_store(
    specs: Sequence[str],
    *,
    tokenizer: Tokenizer,
    max_length: int,
    cache_folder: str | Path,
    columns: Mapping[str, str] | Sequence[str] = (TEXT,),
    prompts: Mapping[str, str] = MappingProxyType({"": ""}),
    roles: Roles = (),
    dedupe: bool = False,
    exclude: Sequence[str] = (),
    chunking: Chunking | None = None,
    progress: bool = False,
) -> TokenStore:
    """Tokenises the text of `specs` into a store, or opens the existing one.

    Of several processes that see the cache folder, one builds the store and the others wait.

    Args:
      specs: files, globs and hub sets, see `text`.
      tokenizer: adds its special tokens; its padding and truncation settings are ignored.
      max_length: maximum tokens per sentence, special tokens and prompt included.
      cache_folder: holds the stores in `tokens`, each named by its digest.
      columns: as in `text.read`; must include `text`.
      prompts: maps each role (empty for none) to its prompt, which no view deletes.
      roles: maps columns to roles, for each spec; empty: no sentence has a role.
      dedupe: keep only the first of rows whose columns are all equal after stripping and case folding, `text` and
        `second` of pairs in either order. Sentences of different roles differ.
      exclude: further specs with the same columns; leaves out rows with the same `text` (and `second`), compared likewise.
      chunking: splits cells into rows of one column `text`; `exclude` is compared with whole cells.

    Rows with an empty column are dropped and counted, like excluded ones. The store keeps the order of the text.
    """
    columns, cache = columns_of(columns), str(cache_folder)
    tokenizer = bare(tokenizer)
    tokenizer.enable_truncation(max_length)
    roles = roles or (dict.fromkeys(columns, ""),) * len(specs)
    prompts = {role: prompts[role] for role in sorted({role for source in roles for role in source.values()})}
    least = tokens_around(tokenizer, prompts.values()) + 1
    if max_length < least:
        raise InputError(
            f"max_length={max_length} leaves no token for the text; the minimum with special tokens and prompt is {least}."
        )
    identity = {name: columns[name] for name in identifying(columns, chunked=chunking is not None)}
    watched = [Watched(specs)]
    with errors_of("data.exclude"):
        watched += [Watched(exclude)] if exclude else []
    parts: list[Any] = [FORMAT, [text.digest for text in watched], columns, dedupe]
    # Appended only where they apply, so that the digests of other texts stay the same.
    if prompts.keys() - {""}:
        parts.append(list(roles))
    if chunking:
        parts.append(chunking.digest)
    elif dedupe and len(columns) > len(identity):
        parts.append("whole rows")
    content = _digest(*parts)
    # The same files in other sources are the same text, but a store has the rows of each source.
    files_of_sources = [[len(source_files(spec)) for spec in specs]] if len(specs) > 1 else []
    folder = (
        Path(cache) / "tokens" / _digest(content, LAYOUT, tokenizer.to_str(), prompts, max_length, *files_of_sources)
    )

    def build(shards: Path) -> None:
        chosen = portions(specs, columns, roles, separate=chunking is not None)
        names = [TEXT] if chunking else list(columns)
        builder = _Builder(specs, chosen, names, tokenizer, max_length, prompts, chunking, cache)
        portion_rows = builder.tokenise(shards, shown=progress and "tokenising")
        excluded = excluded_keys(exclude, identity, cache) if exclude else None
        try:
            for text in watched:  # otherwise the digest could name other text
                text.check()
        except InputError:
            shutil.rmtree(shards)
            raise

        def write(unfinished: Path) -> None:
            info = builder.write(unfinished, shards, portion_rows, excluded, dedupe=dedupe)
            info |= {"digest": folder.name, "content": content, "source": watched[0].digest}
            (unfinished / "store.json").write_text(json.dumps(info, indent=1))

        make_folder_atomic(folder, write, what="the token store")
        shutil.rmtree(shards)

    if not folder.is_dir():
        with writing(folder, other_cache(folder)):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f"{folder.name}.lock")):
                if not folder.is_dir():
                    build(folder.with_name(f"{folder.name}.shards"))
    return TokenStore(folder, tokenizer, chunking)


class _Builder(NamedTuple):
    """Tokenises a text into shards, and writes the arrays of a store."""

    specs: Sequence[str]
    portions: Sequence[Portion]
    columns: Sequence[str]
    """Columns of the store: the text's columns, or a single one that holds all chunks."""
    tokenizer: Tokenizer
    max_length: int
    prompts: Mapping[str, str]
    chunking: Chunking | None
    cache: str

    def tokenise(self, folder: Path, *, shown: bool | str) -> list[int]:
        """Writes the shards that are missing, as `map` leaves existing ones alone; returns each portion's number of input rows."""

        def opened(portion: Portion) -> Iterator[Table]:
            return tables(self.specs[portion.source], portion.columns, cache=self.cache)

        # Twice, one file at a time: an open table keeps its file open, and a text may have thousands.
        portion_rows = [sum(len(table.dataset) for table in opened(portion)) for portion in self.portions]
        folder.mkdir(parents=True, exist_ok=True)
        first = 0
        with progress_bar(sum(portion_rows), "rows", shown=shown) as bar, quiet_datasets():
            for portion in self.portions:
                for table in opened(portion):
                    for begin in range(0, len(table.dataset), SHARD_ROWS):
                        shard = table.dataset.select(range(begin, min(begin + SHARD_ROWS, len(table.dataset))))
                        shard.with_format("arrow").map(
                            partial(self._shard, table, portion.roles, first + begin, bar.update),
                            batched=True,
                            batch_size=BATCH_ROWS,
                            with_indices=True,
                            remove_columns=shard.column_names,
                            cache_file_name=str(folder / f"{first + begin:012d}.arrow"),
                            new_fingerprint=f"{folder.name}-{first + begin}",  # the folder's name stands for all options
                        )
                    first += len(table.dataset)
        return portion_rows

    def _shard(
        self, table: Table, roles: Sequence[str], first: int, advance: Advance, batch: Any, indices: Sequence[int]
    ) -> "pyarrow.Table":
        """Tokenises the rows of a batch that have no empty cell; `first` is the input row of the shard's first row."""
        import pyarrow

        def lists(values: np.ndarray, lengths: Any) -> Any:
            return pyarrow.LargeListArray.from_arrays(np.cumsum([0, *lengths]), values)

        names = identifying(self.columns, chunked=self.chunking is not None)
        identity = [self.columns.index(name) for name in names]
        others = [index for index in range(len(self.columns)) if index not in identity]
        stripped = zip(*([cell.strip() for cell in column] for column in table.cells(batch)), strict=True)
        rows = [(first + index, row) for index, row in zip(indices, stripped, strict=True) if all(row)]
        advance(len(indices))
        # Whole rows are excluded, so these keys are taken before a text is split.
        exclude_keys = [row_key([row[index] for index in identity]) for _, row in rows]
        if self.chunking:  # rows then have a single column
            chunked = [*self.chunking.split(row[0] for _, row in rows)]
            exclude_keys = [key for key, chunks in zip(exclude_keys, chunked, strict=True) for _ in chunks]
            rows = [(number, (chunk,)) for (number, _), chunks in zip(rows, chunked, strict=True) for chunk in chunks]
        repeat_keys = [
            row_key([f"{roles[index]}\0{row[index]}" for index in identity], [row[index] for index in others])
            for _, row in rows
        ]
        shard: dict[str, Any] = {
            "input_row": np.array([number for number, _ in rows], np.int64),
            "keys": np.array([text_key(row[self.columns.index(TEXT)]) for _, row in rows], np.uint64),
            "repeat_keys": np.array(repeat_keys, np.uint64),
            "exclude_keys": np.array(exclude_keys, np.uint64),
        }
        # Two bytes suffice for most vocabularies and halve the ids.
        id_dtype = np.uint16 if self.tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
        unknown = unknown_id(self.tokenizer)
        for index, role in enumerate(roles):
            texts = [row[index] for _, row in rows]
            tokens = tokenised_words(self.tokenizer, texts, self.prompts[role], self.max_length, unknown=unknown)
            encoded = [text.encode() for text in texts]
            counts = dict(zip(Unknown._fields, tokens.counts.T, strict=True))
            counts |= {"words": sums(tokens.marks == STARTS, tokens.lengths), "truncated": tokens.truncated}
            shard |= {
                f"{index}.ids": lists(tokens.ids.astype(id_dtype), tokens.lengths),
                f"{index}.marks": lists(tokens.marks, tokens.lengths),
                f"{index}.text": lists(np.frombuffer(b"".join(encoded), np.uint8), map(len, encoded)),
                **{f"{index}.{name}": values.astype(np.int32) for name, values in counts.items()},
            }
        return pyarrow.table(shard)

    def write(
        self, folder: Path, shards: Path, portion_rows: Sequence[int], excluded: np.ndarray | None, *, dedupe: bool
    ) -> dict[str, Any]:
        """Writes the arrays of the rows to keep; returns what `store.json` says about them.

        Args:
          portion_rows: number of input rows of each portion.
          excluded: keys of the rows to leave out; None: `data.exclude` is empty.
        """
        import pyarrow

        # Only `is_excluded`, `selected` and, with `dedupe`, the keys have an entry per row in memory; the rest goes shard by shard.
        unwanted = [] if excluded is None else excluded
        is_excluded_of_shards = [np.isin(shard["exclude_keys"].to_numpy(), unwanted) for shard in _opened(shards)]
        is_excluded = np.concatenate([np.zeros(0, bool), *is_excluded_of_shards])
        selected = ~is_excluded
        if dedupe and len(selected):
            keys = np.concatenate([shard["repeat_keys"].to_numpy() for shard in _opened(shards)])
            rows = np.flatnonzero(selected)
            selected[np.delete(rows, np.unique(keys[rows], return_index=True)[1])] = False  # the first ones stay
        if not selected.any():
            why = "has an empty sentence" + ("" if excluded is None else " or is in data.exclude")
            raise InputError(f"{', '.join(self.specs)}: every row {why}; no text remains for training.")

        dtypes: dict[str, str] = {}

        def append(name: str, values: np.ndarray) -> None:
            dtypes[name] = values.dtype.str
            with open(folder / name, "ab") as file:
                file.write(values.tobytes())  # not `tofile`, which ignores a disk that is full at its last bytes

        for index in range(len(self.columns)):
            append(f"{index}.ids.starts", np.zeros(1, np.int64))
            append(f"{index}.text.starts", np.zeros(1, np.int64))
        # Sum and maximum of the shards' arrays by name; of lists, those of their lengths.
        totals, longest = Counter[str](), Counter[str]()
        portion_ends = np.cumsum(portion_rows)
        kept_of_portions = np.zeros(len(portion_ends), np.int64)
        begin = filled_rows = excluded_rows = 0
        for shard in _opened(shards):
            part = slice(begin, begin + len(shard))
            begin = part.stop
            input_row = shard["input_row"].to_numpy()
            filled_rows += len(np.unique(input_row))  # counts rows, not their chunks, which are all in one shard
            excluded_rows += len(np.unique(input_row[is_excluded[part]]))
            portion = np.searchsorted(portion_ends, input_row[selected[part]], side="right")
            kept_of_portions += np.bincount(portion, minlength=len(portion_ends))
            table = shard.filter(pyarrow.array(selected[part]))
            for name in table.column_names:
                values: Any = table[name].combine_chunks()
                if pyarrow.types.is_large_list(values.type):
                    append(name, values.flatten().to_numpy())
                    values = values.value_lengths().to_numpy()
                    if not name.endswith(".marks"):  # marks begin where the ids do
                        append(f"{name}.starts", totals[name] + np.cumsum(values))
                else:
                    values = values.to_numpy()
                    if name in ("input_row", "keys") or name.endswith((".words", ".tokens")):
                        append(name, values)
                totals[name] += int(values.sum())
                longest[name] = max(longest[name], int(values.max(initial=0)))

        rows = int(selected.sum())
        columns, column_lines = {}, []
        for index, name in enumerate(self.columns):
            counts = {kind: totals[f"{index}.{kind}"] for kind in ("ids", "truncated", *Unknown._fields)}
            columns[name] = counts | {"longest": longest[f"{index}.ids"]}
            column_lines.append(
                f"column {name}: {counts['ids']:,} tokens, {counts['ids'] / rows:.1f} per sentence, "
                f"{counts['truncated'] / rows:.2%} of sentences truncated at {self.max_length} tokens"
            )
        repeats = int((~is_excluded).sum()) - rows
        left_out = {
            "with an empty sentence": sum(portion_rows) - filled_rows,
            f"duplicate{'s' * (repeats != 1)}": repeats,
            "in data.exclude": excluded_rows,
        }
        report = [f"text: {rows:,} rows of {len(self.specs)} source{'s' * (len(self.specs) != 1)}"]
        if any(left_out.values()) or excluded is not None:
            numbers = ", ".join(f"{count:,} {what}" for what, count in left_out.items() if count)
            report.append(f"left out: {numbers or 'nothing, no row is in data.exclude'}")
        sources = [portion.source for portion in self.portions]
        pads = map(self.tokenizer.token_to_id, ("[PAD]", "<pad>"))
        return {
            "rows": rows,
            "input_rows": int(portion_ends[-1]),
            "source_rows": np.bincount(sources, kept_of_portions, len(self.specs)).astype(int).tolist(),
            "portion_rows": kept_of_portions.tolist(),
            "roles": [dict(zip(self.columns, portion.roles, strict=True)) for portion in self.portions],
            "columns": columns,
            "prompts": self.prompts,
            "max_length": self.max_length,
            "pad_id": next((pad for pad in pads if pad is not None), 0),
            "arrays": dtypes,
            "report": [*report, *column_lines],
        }


def _opened(folder: Path) -> Iterator["pyarrow.Table"]:
    """Yields the shards that have rows, one at a time, because the pages of a mapped file count as memory once they are read."""
    from datasets import Dataset

    for path in sorted(folder.glob("*.arrow")):
        if len(shard := Dataset.from_file(str(path))):
            yield shard.data.table


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
