"""Tokenises text once into flat arrays on disk, and reads these at random.

A text is tokenised in shards of `SHARD_ROWS` rows by `Dataset.map`, each with a cache file of its own, so that a restarted run
repeats missing shards only. Duplicates and excluded rows are left out by hashes (`row_keys`). What remains becomes a store: one
folder of memory-mapped arrays, named by the digest of everything that determines it. The shards are then removed.

Arrays have one entry per row: `input_row` and `keys`; and for each column, `words` and `tokens` (see `Counts`), `starts` and
`text_starts` (where a sentence begins in `ids`, `marks` and in `text`, with a last entry for the end).
"""

import hashlib
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import Bool, Integer
from tokenizers import Tokenizer

from jaxdistill.bars import progress_bar
from jaxdistill.core import MASK_TOKENS, InputError, errors_of
from jaxdistill.data import row_keys
from jaxdistill.data.cached import quiet_datasets
from jaxdistill.data.chunks import Chunking, bare, tokens_around
from jaxdistill.data.columns import TEXT, column_map
from jaxdistill.data.roles import Roles
from jaxdistill.data.text import Portion, Table, Watched, portions, tables
from jaxdistill.data.words import PROTECTED, STARTS, Tokenised, Unknown, sums, tokenised_words
from jaxdistill.files import make_folder_atomic, writing
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import other_cache

if TYPE_CHECKING:
    import pyarrow

FORMAT = 3
"""Version of the rule which rows a text has, part of every digest; bump to invalidate everything stored for a text."""
LAYOUT = 4
"""Version of the store's files and tokens, part of the store's digest only; bump to tokenise again."""
SHARD_ROWS = 1 << 16
"""Rows of the input that are tokenised into one file; a killed run repeats at most these."""
BATCH_ROWS = 4096
"""Rows tokenised at a time."""
MAX_EMPTY = 0.05
"""Share of rows with an empty cell above which a source gets a warning."""
KEYS = ("keys", "repeat_keys", "exclude_keys")
"""Hashes of: the text; everything that makes two rows duplicates; the whole cells, for comparison with `data.exclude`."""
COUNTS = ("words", *Unknown._fields, "truncated")
"""Counts for each sentence of a column; `tokens` leaves out special tokens and the prompt."""

log = logging.getLogger(__name__)


class Gathered(NamedTuple):
    """Sentences of a store, concatenated."""

    ids: Integer[np.ndarray, " t"]
    words: Integer[np.ndarray, " t"]
    """Index of each token's word in its sentence, from 0; -1 for special tokens and the prompt."""
    lengths: Integer[np.ndarray, " b"]


class Counts(NamedTuple):
    """Counts of sentences that are known without reading tokens."""

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

    def __init__(self, folder: Path, tokenizer: Tokenizer | None = None, chunking: Chunking | None = None):
        self.folder, self._given_tokenizer, self.chunking = folder, tokenizer, chunking
        info = json.loads((folder / "store.json").read_text())
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
        self._info = info
        self._arrays = {
            name: np.asarray(np.memmap(folder / name, dtype, mode="r", shape=(length,)))
            for name, (dtype, length) in info["arrays"].items()
        }

    def __len__(self) -> int:
        return self.rows

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self._given_tokenizer is not None  # whoever reads other texts opens the store with one
        return self._given_tokenizer

    def _of(self, column: str, kind: str) -> np.ndarray:
        if column not in self.columns:
            raise InputError(
                f"the text has no column {column!r}; it has {', '.join(self.columns)}. Set --config.data.columns."
            )
        return self._arrays[f"{self.columns.index(column)}.{kind}"]

    def lengths(self, column: str) -> Integer[np.ndarray, " rows"]:
        """Number of tokens of each sentence."""
        return np.diff(self._of(column, "starts"))

    def counts_of(self, column: str, rows: Integer[np.ndarray, " b"]) -> Counts:
        """Word and token counts of some sentences."""
        starts = self._of(column, "starts")
        words, tokens = (self._of(column, kind)[rows].astype(np.int64) for kind in ("words", "tokens"))
        return Counts(starts[rows + 1] - starts[rows], words, tokens)

    def longest(self, column: str) -> int:
        """Number of tokens of the longest sentence."""
        return self._info["longest"][column]

    def unknown(self, column: str) -> Unknown:
        """Counts of unknown tokens and characters in a column."""
        return Unknown(*self._info["unknown"][column])

    def truncated(self, column: str) -> float:
        """Share of truncated sentences in a column."""
        return self._info["truncated"][column] / self.rows

    def ids(self, column: str, row: int) -> Integer[np.ndarray, " l"]:
        """Token ids of a sentence, special tokens included."""
        return self.gather(column, np.array([row])).ids

    def words(self, column: str, row: int) -> Integer[np.ndarray, " l"]:
        """Index of each token's word, from 0; -1 for special tokens and the prompt."""
        return self.gather(column, np.array([row])).words

    def gather(self, column: str, rows: Integer[np.ndarray, " b"]) -> Gathered:
        """Ids and words of many sentences at once."""
        starts = self._of(column, "starts")
        begins = starts[rows]
        lengths = starts[rows + 1] - begins
        before = np.cumsum(lengths) - lengths
        positions = np.repeat(begins - before, lengths) + np.arange(lengths.sum())
        ids, marks = self._of(column, "ids")[positions], self._of(column, "marks")[positions]
        # Words are counted over all sentences at once; subtracting the count before each sentence restarts them at 0.
        count = np.cumsum(marks == STARTS)
        words_before = np.concatenate([[0], count])[before]
        words = np.where(marks == PROTECTED, -1, count - 1 - np.repeat(words_before, lengths))
        return Gathered(ids, words, lengths)

    def text(self, column: str, row: int) -> str:
        """The raw sentence, without surrounding white space."""
        begin, end = self._of(column, "text_starts")[[row, row + 1]]
        return self._of(column, "text")[begin:end].tobytes().decode()

    def texts(self, column: str = TEXT, prompts: Mapping[str, str] | None = None) -> "Texts":
        """All sentences of a column as a lazy sequence; `prompts` maps roles to prompts to prepend."""
        self._of(column, "starts")
        return Texts(self, column, prompts)

    def roles(self, column: str, rows: Sequence[int] | Integer[np.ndarray, " n"]) -> list[str]:
        """The role of each sentence: `query`, `document`, or an empty string."""
        numbers = np.searchsorted(np.cumsum(self._info["portion_rows"]), np.asarray(rows, np.int64), side="right")
        of_portion = [portion[column] for portion in self._info["roles"]]
        return [of_portion[number] for number in numbers]

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
        # Which special tokens a pair gets does not depend on its sentences, so any two will do.
        encoding = self._tokenizer.encode(self.text(TEXT, 0), self.text(TEXT, 0))
        ids, types = np.asarray(encoding.ids, np.int64), np.asarray(encoding.type_ids)
        of = np.array([2 if sequence is None else sequence for sequence in encoding.sequence_ids])
        starts = [int(np.argmax(of == sentence)) for sentence in (0, 1)]
        ends = [len(of) - int(np.argmax(of[::-1] == sentence)) for sentence in (0, 1)]
        parts = (slice(0, starts[0]), slice(ends[0], starts[1]), slice(ends[1], len(of)))
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

    @property
    def keys(self) -> Integer[np.ndarray, " rows"]:
        """A 64-bit hash of each row's `text`; equal texts have equal keys."""
        return self._arrays["keys"]

    @property
    def input_row(self) -> Integer[np.ndarray, " rows"]:
        """Index of each row in the sources, and therefore in the user's own vectors."""
        return self._arrays["input_row"]

    @property
    def source_of_row(self) -> Integer[np.ndarray, " rows"]:
        """Index of each row's spec."""
        return np.repeat(np.arange(len(self.source_rows), dtype=np.int32), self.source_rows)

    def report(self) -> list[str]:
        """Lines about the text for the run's log."""
        info = self._info
        sources = len(self.source_rows)
        lines = [f"text: {self.rows:,} rows of {sources} source{'s' * (sources != 1)}, digest {self.digest[:12]}"]
        if info["chunked"]:
            lines.append(f"split: {info['input_rows'] - info['empty']:,} texts into chunks")
        left_out = {"empty": "with an empty sentence", "duplicates": "duplicates", "excluded": "in data.exclude"}
        counts = [f"{info[key]:,} {what}" for key, what in left_out.items() if info.get(key)]
        if counts or "excluded" in info:
            lines.append(f"left out: {', '.join(counts) or 'nothing, no row is in data.exclude'}")
        for name in self.columns:
            tokens = info["lengths"][name]
            lines.append(
                f"column {name}: {tokens:,} tokens, {tokens / self.rows:.1f} per sentence, "
                f"{self.truncated(name):.2%} of sentences truncated at {self.max_length} tokens"
            )
        return lines


class Texts(Sequence):
    """The sentences of one column, read from disk on access."""

    def __init__(self, store: TokenStore, column: str, prompts: Mapping[str, str] | None = None):
        self._store, self._column, self._prompts = store, column, prompts

    def __len__(self) -> int:
        return self._store.rows

    def __getitem__(self, index):
        if not isinstance(index, slice):
            return self._of([range(len(self))[index]])[0]
        return self._of(range(*index.indices(len(self))))

    def _of(self, rows: Sequence[int]) -> list[str]:
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
    columns, tokenizer = column_map(columns), bare(tokenizer)
    tokenizer.enable_truncation(max_length)
    roles = roles or (dict.fromkeys(columns, ""),) * len(specs)
    prompts = {role: prompts[role] for role in sorted({role for source in roles for role in source.values()})}
    _check(columns, tokenizer, max_length, prompts)
    identity = {name: columns[name] for name in row_keys.identifying(columns, chunked=chunking is not None)}
    watched = [Watched(specs, columns)]
    with errors_of("data.exclude"):
        watched += [Watched(exclude, identity)] if exclude else []
    of_rows = [list(roles)] if prompts.keys() - {""} else []
    split = [chunking.digest] if chunking else ["whole rows"] if dedupe and len(columns) > len(identity) else []
    content = _digest(FORMAT, [text.digest for text in watched], columns, dedupe, *of_rows, *split)
    folder = Path(cache_folder) / "tokens" / _digest(content, LAYOUT, tokenizer.to_str(), prompts, max_length)
    info = {"digest": folder.name, "content": content, "source": watched[0].digest}

    def build(shards: Path) -> None:
        builder = _Builder(
            specs=specs,
            portions=portions(specs, columns, roles, separate=chunking is not None),
            columns=[TEXT] if chunking else list(columns),
            tokenizer=tokenizer,
            max_length=max_length,
            prompts=prompts,
            chunking=chunking,
            cache=str(cache_folder),
        )
        portion_rows = builder.tokenise(shards, shown=progress)
        excluded = row_keys.excluded_keys(exclude, identity, str(cache_folder)) if exclude else None
        try:
            for text in watched:  # otherwise the digest could name other text
                text.check()
        except InputError:
            shutil.rmtree(shards)
            raise
        write = partial(
            builder.write, shards=shards, portion_rows=portion_rows, info=info, excluded=excluded, dedupe=dedupe
        )
        make_folder_atomic(folder, write, what="the token store")
        shutil.rmtree(shards)

    if not folder.is_dir():
        with writing(folder, other_cache(folder)):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f"{folder.name}.lock")):
                if not folder.is_dir():
                    build(folder.with_name(f"{folder.name}.shards"))
    return TokenStore(folder, tokenizer, chunking)


class _Row(NamedTuple):
    """A row to tokenise."""

    number: int
    """Index of the input row."""
    exclude_key: int
    cells: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class _Builder:
    """Tokenises a text into shards, and writes a store of them."""

    specs: Sequence[str]
    portions: Sequence[Portion]
    columns: Sequence[str]
    """Columns of the store: the text's columns, or a single one that holds all chunks."""
    tokenizer: Tokenizer
    max_length: int
    prompts: Mapping[str, str]
    chunking: Chunking | None
    cache: str

    def tokenise(self, folder: Path, *, shown: bool) -> list[int]:
        """Writes the shards that are missing; returns the number of input rows of each portion."""
        # Twice, one file at a time: an open table keeps its file open, and a text may have thousands.
        portion_rows = [sum(len(table.dataset) for table in self._tables(portion)) for portion in self.portions]
        folder.mkdir(parents=True, exist_ok=True)
        first = 0
        with progress_bar(sum(portion_rows), "rows", shown=shown and "tokenising") as bar:
            for portion in self.portions:
                for table in self._tables(portion):
                    for begin in range(0, len(table.dataset), SHARD_ROWS):
                        shard = table.dataset.select(range(begin, min(begin + SHARD_ROWS, len(table.dataset))))
                        path = folder / f"{first + begin:012d}.arrow"
                        self._map(table._replace(dataset=shard), portion.roles, first + begin, path, bar.update)
                    first += len(table.dataset)
        return portion_rows

    def _tables(self, portion: Portion) -> Iterator[Table]:
        return tables(self.specs[portion.source], portion.columns, cache=self.cache)

    def _map(
        self, table: Table, roles: Sequence[str], first: int, path: Path, advance: Callable[[int], object]
    ) -> None:
        """Tokenises the rows of a shard, numbered from `first` on, into a file, unless it is there."""
        from datasets import Features

        def tokenised(batch: "pyarrow.Table", indices: Sequence[int]) -> "pyarrow.Table":
            columns = [[cell.strip() for cell in cells] for cells in table.cells(batch)]
            rows = zip(indices, zip(*columns, strict=True), strict=True)
            filled = [_Row(first + number, self._exclude_key(cells), cells) for number, cells in rows if all(cells)]
            result = self._table(self._split(filled) if self.chunking else filled, roles)
            advance(len(indices))
            return result

        with quiet_datasets():
            table.dataset.with_format("arrow").map(
                tokenised,
                batched=True,
                batch_size=BATCH_ROWS,
                with_indices=True,
                remove_columns=table.dataset.column_names,
                features=Features.from_arrow_schema(self._schema),
                cache_file_name=str(path),
                new_fingerprint=f"{path.parent.name}-{first}",  # names the tokenizer, the columns and all options
            )

    def _split(self, rows: Sequence[_Row]) -> list[_Row]:
        """One row per chunk of these rows, which have a single column."""
        assert self.chunking is not None
        chunked = self.chunking.split(row.cells[0] for row in rows)
        return [row._replace(cells=[chunk]) for row, chunks in zip(rows, chunked, strict=True) for chunk in chunks]

    @cached_property
    def _identity(self) -> list[int]:
        """Indices of the columns that identify a row."""
        return [*map(self.columns.index, row_keys.identifying(self.columns, chunked=self.chunking is not None))]

    def _exclude_key(self, cells: Sequence[str]) -> int:
        return row_keys.row_key([cells[index] for index in self._identity])

    def _repeat_key(self, cells: Sequence[str], roles: Sequence[str]) -> int:
        others = [cell for index, cell in enumerate(cells) if index not in self._identity]
        return row_keys.row_key([f"{roles[index]}\0{cells[index]}" for index in self._identity], others)

    def _table(self, rows: Sequence[_Row], roles: Sequence[str]) -> "pyarrow.Table":
        """The shard's columns for some rows, see `_schema`."""
        import pyarrow

        if not rows:
            return self._schema.empty_table()
        text = self.columns.index(TEXT)
        columns: list[Any] = [
            [row.number for row in rows],
            [row_keys.text_key(row.cells[text]) for row in rows],
            [self._repeat_key(row.cells, roles) for row in rows],
            [row.exclude_key for row in rows],
        ]
        for index in range(len(self.columns)):
            texts = [row.cells[index] for row in rows]
            tokens = tokenised_words(
                self.tokenizer, texts, self.prompts[roles[index]], self.max_length, unknown=self._unknown
            )
            starts = pyarrow.array(np.concatenate([[0], np.cumsum(tokens.lengths)]))
            columns += [
                pyarrow.LargeListArray.from_arrays(starts, pyarrow.array(tokens.ids.astype(self._id_dtype))),
                pyarrow.LargeListArray.from_arrays(starts, pyarrow.array(tokens.marks)),
                texts,
                *(each.astype(np.int32) for each in (sums(tokens.marks == STARTS, tokens.lengths), *tokens.counts.T)),
                tokens.truncated.astype(np.int32),
            ]
        return pyarrow.table(columns, self._schema)

    @cached_property
    def _unknown(self) -> int | None:
        return unknown_id(self.tokenizer)

    @cached_property
    def _id_dtype(self) -> type[np.unsignedinteger]:
        # Two bytes suffice for most vocabularies and halve the ids.
        return np.uint16 if self.tokenizer.get_vocab_size() <= 1 << 16 else np.uint32

    @cached_property
    def _schema(self) -> "pyarrow.Schema":
        import pyarrow

        ids, marks = pyarrow.from_numpy_dtype(self._id_dtype), pyarrow.uint8()
        fields = [("input_row", pyarrow.int64()), *((name, pyarrow.uint64()) for name in KEYS)]
        for index in range(len(self.columns)):
            fields += [(f"{index}.ids", pyarrow.large_list(ids)), (f"{index}.marks", pyarrow.large_list(marks))]
            fields += [(f"{index}.text", pyarrow.large_string())]
            fields += [(f"{index}.{name}", pyarrow.int32()) for name in COUNTS]
        return pyarrow.schema(fields)

    def write(
        self,
        folder: Path,
        *,
        shards: Path,
        portion_rows: Sequence[int],
        info: Mapping[str, str],
        excluded: row_keys.Keys | None,
        dedupe: bool,
    ) -> None:
        """Writes the arrays of the rows to keep, and `store.json`.

        Args:
          portion_rows: number of input rows of each portion.
          info: digests.
          excluded: keys of the rows to leave out; None: `data.exclude` is empty.
        """
        import pyarrow

        rows, per_portion = self._rows(shards, excluded, dedupe), np.zeros(len(self.portions), np.int64)
        counts, longest = {name: Counter[str]() for name in self.columns}, dict.fromkeys(self.columns, 0)
        portion_ends, begin = np.cumsum(portion_rows), 0
        self._warn_of_empty(rows.input_row, portion_ends)
        with _Arrays(folder) as arrays:
            for table in _opened(shards):
                kept = table.filter(pyarrow.array(rows.kept[begin : begin + len(table)]))
                begin += len(table)
                inputs = kept["input_row"].to_numpy()
                per_portion += np.bincount(
                    np.searchsorted(portion_ends, inputs, side="right"), minlength=len(per_portion)
                )
                arrays.append("input_row", inputs)
                arrays.append("keys", kept["keys"].to_numpy())
                for index, name in enumerate(self.columns):
                    of_column = {kind: kept[f"{index}.{kind}"].to_numpy() for kind in COUNTS}
                    for kind in ("words", "tokens"):
                        arrays.append(f"{index}.{kind}", of_column[kind])
                    ids, of_column["lengths"] = _flat(kept[f"{index}.ids"], self._id_dtype)
                    arrays.append(f"{index}.ids", ids)
                    arrays.append(f"{index}.marks", _flat(kept[f"{index}.marks"], np.uint8)[0])
                    text, text_lengths = _flat(kept[f"{index}.text"], np.uint8)
                    arrays.append(f"{index}.text", text)
                    arrays.append_ends(f"{index}.starts", of_column["lengths"])
                    arrays.append_ends(f"{index}.text_starts", text_lengths)
                    counts[name].update({kind: int(each.sum(dtype=np.int64)) for kind, each in of_column.items()})
                    longest[name] = max(longest[name], int(of_column["lengths"].max(initial=0)))
        if not per_portion.sum():
            why = "has an empty sentence" + (" or is in data.exclude" if rows.excluded else "")
            raise InputError(f"{', '.join(self.specs)}: every row {why}; no text remains for training.")
        sources = np.bincount([one.source for one in self.portions], per_portion, len(self.specs)).astype(np.int64)
        pad = self.tokenizer.token_to_id("[PAD]"), self.tokenizer.token_to_id("<pad>"), 0
        content = {
            **info,
            "prompts": self.prompts,
            "max_length": self.max_length,
            "rows": int(per_portion.sum()),
            "input_rows": int(portion_ends[-1]),
            "source_rows": sources.tolist(),
            "roles": [dict(zip(self.columns, portion.roles, strict=True)) for portion in self.portions],
            "portion_rows": per_portion.tolist(),
            "chunked": self.chunking is not None,
            "empty": int(portion_ends[-1]) - len(np.unique(rows.input_row)),
            "duplicates": rows.duplicates,
            **({} if excluded is None else {"excluded": rows.excluded}),
            "truncated": {name: sums["truncated"] for name, sums in counts.items()},
            "unknown": {name: [sums[kind] for kind in Unknown._fields] for name, sums in counts.items()},
            "lengths": {name: sums["lengths"] for name, sums in counts.items()},
            "longest": longest,
            "pad_id": next(id for id in pad if id is not None),
            "columns": list(self.columns),
            "arrays": arrays.shapes,
        }
        (folder / "store.json").write_text(json.dumps(content, indent=1))

    def _rows(self, shards: Path, excluded: row_keys.Keys | None, dedupe: bool) -> "_Rows":
        """The rows of all shards, and which of them the store keeps."""
        keys = [[table[name].to_numpy() for name in ("input_row", *KEYS[1:])] for table in _opened(shards)]
        input_row, repeat_keys, exclude_keys = (np.concatenate(each) for each in zip(*keys, strict=True))
        kept = np.ones(len(input_row), bool) if excluded is None else ~np.isin(exclude_keys, excluded)
        left_out = len(np.unique(input_row[~kept]))  # counts rows, not their chunks
        repeats = row_keys.are_repeats(repeat_keys, kept) if dedupe else np.zeros(len(kept), bool)
        return _Rows(input_row, kept & ~repeats, excluded=left_out, duplicates=int(repeats.sum()))

    def _warn_of_empty(self, input_row: Integer[np.ndarray, " rows"], portion_ends: Integer[np.ndarray, " p"]) -> None:
        """Logs a line for each portion with many empty cells."""
        begins = np.concatenate([[0], portion_ends[:-1]])
        for portion, begin, end in zip(self.portions, begins, portion_ends, strict=True):
            filled = len(np.unique(input_row[slice(*np.searchsorted(input_row, [begin, end]))]))
            if (share := 1 - filled / max(end - begin, 1)) > MAX_EMPTY:
                columns = " or ".join(portion.columns.values())
                log.warning(
                    "warning: %s: %.0f %% of the rows have no %s", self.specs[portion.source], 100 * share, columns
                )


class _Rows(NamedTuple):
    """Rows of the shards, in the order of the text."""

    input_row: Integer[np.ndarray, " rows"]
    kept: Bool[np.ndarray, " rows"]
    excluded: int
    """Number of input rows that are left out because of `data.exclude`."""
    duplicates: int


class _Arrays(ExitStack):
    """Flat arrays that are appended to on disk."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder, self._files, self._ends = folder, {}, Counter[str]()
        self.shapes: dict[str, list] = {}
        """Maps each array's name to its dtype and length."""

    def append(self, name: str, values: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = self.enter_context(open(self._folder / name, "wb"))
            self.shapes[name] = [values.dtype.str, 0]
        self._files[name].write(values.tobytes())
        self.shapes[name][1] += len(values)

    def append_ends(self, name: str, lengths: Integer[np.ndarray, " n"]) -> None:
        """Appends where each of the next sequences ends; the array begins with 0."""
        if name not in self._files:
            self.append(name, np.zeros(1, np.int64))
        ends = self._ends[name] + np.cumsum(lengths, dtype=np.int64)
        self.append(name, ends)
        self._ends[name] = int(ends[-1]) if len(ends) else self._ends[name]


def _opened(folder: Path) -> Iterator["pyarrow.Table"]:
    """Yields the shards one at a time: pages of a mapped file count as the process's memory once read."""
    from datasets import Dataset

    for path in sorted(folder.glob("*.arrow")):
        yield Dataset.from_file(str(path)).data.table.combine_chunks()


def _flat(column: Any, dtype: Any) -> tuple[np.ndarray, Integer[np.ndarray, " rows"]]:
    """The values of a column of lists or texts, one after another, and the length of each."""
    array = column.combine_chunks()
    starts = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    is_list = hasattr(array, "values")
    flat = np.frombuffer((array.values.buffers()[1] if is_list else array.buffers()[2]) or b"", dtype)
    begin = array.values.offset if is_list else 0
    return flat[begin + starts[0] : begin + starts[-1]], np.diff(starts)


def _check(columns: Mapping[str, str], tokenizer: Tokenizer, max_length: int, prompts: Mapping[str, str]) -> None:
    if TEXT not in columns:
        raise InputError(f"data.columns names {', '.join(columns) or 'no column'}; one of them must be 'text'.")
    least = tokens_around(tokenizer, prompts.values()) + 1
    if max_length < least:
        raise InputError(
            f"max_length={max_length} leaves no token for the text; the minimum with special tokens and prompt is {least}."
        )


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
