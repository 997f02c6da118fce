"""Tokenises text once into flat arrays on disk, and gives random access to them.

Blocks of rows are tokenised one after another and appended to files, so that a restarted run continues where a killed one ended.
Rows to exclude are skipped before they are tokenised; repeated rows are dropped at the end. Both are found by hashes of their text.
The result is a store: a folder of memory-mapped arrays, named by the digest of everything that determines it.

Files of a store, where `N` is the index of a column:

    input_row, keys                 one per row, see `TokenStore`
    N.begins, N.lengths             one per row: where its tokens begin, and how many they are
    N.text.begins, N.text.lengths   one per row: the same for the bytes of its text
    N.words, N.tokens               one per row, see `Counts`
    N.ids, N.marks                  one per token, also of repeated rows; marks are those of `words.py`
    N.text                          one per byte, also of repeated rows
"""

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.core import MASK_TOKENS, InputError, errors_of, unknown_id
from jaxdistill.core.files import file_names, foreign_errors, write_atomic, writing
from jaxdistill.core.paths import other_cache
from jaxdistill.core.runtime import counted
from jaxdistill.data import text
from jaxdistill.data.chunks import Chunking, bare, tokens_around
from jaxdistill.data.packing import token_positions
from jaxdistill.data.text import TEXT, ColumnNames, Portion, Roles, columns_of, content_digest, identifying, row_key
from jaxdistill.data.words import PROTECTED, STARTS, Tokenised, Unknown, sums, tokenised_words

FORMAT = 4
"""Version of the rules that decide which rows a text has, part of every digest; bump to invalidate everything stored for a text."""
LAYOUT = 8
"""Version of the store's files and tokens, part of the store's digest only; bump to tokenise again."""


class Gathered(NamedTuple):
    """Sentences of a store, concatenated."""

    ids: Integer[np.ndarray, " t"]
    words: Integer[np.ndarray, " t"]
    """Index of each token's word in its sentence, from 0; -1 for special tokens and the prompt."""
    lengths: Integer[np.ndarray, " b"]


class Counts(NamedTuple):
    """Counts of each sentence, which can be read without its tokens."""

    lengths: Integer[np.ndarray, " b"]
    words: Integer[np.ndarray, " b"]
    tokens: Integer[np.ndarray, " b"]
    """Number of tokens that are neither special nor of the prompt; `lengths` counts all."""


class PairTemplate(NamedTuple):
    """Special tokens around a pair: `begin`, first sentence, `between`, second sentence, `end`."""

    begin: Integer[np.ndarray, " t"]
    between: Integer[np.ndarray, " t"]
    end: Integer[np.ndarray, " t"]
    between_first: int
    """Number of tokens of `between` that have the first sentence's type."""
    has_types: bool
    """Whether the second sentence has its own token type."""

    @property
    def special_tokens(self) -> int:
        return len(self.begin) + len(self.between) + len(self.end)


class TokenStore:
    """Random access to the tokenised rows of a text, memory-mapped from a folder that `build_store` has written. `tokenizer` must be
    the one that tokenised the text, because some views change texts and tokenise them again. Its settings are altered: pass a copy."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, chunking: Chunking | None = None):
        self.folder = folder
        self.chunking = chunking
        self._tokenizer = tokenizer
        with foreign_errors(f"{folder} is damaged; remove it, and the text is tokenised again"):
            self._info = info = json.loads((folder / "store.json").read_text())
            self._arrays = {
                # With a shape, or a file that is too short would be read without an error.
                name: np.asarray(np.memmap(folder / name, dtype, mode="r", shape=size // np.dtype(dtype).itemsize))
                for name, (dtype, size) in info["arrays"].items()
            }
        self.content_digest: str = info["content"]
        """Digest of the rows' text: equal for stores of the same rows with different tokenizers."""
        self.source_digest: str = info["source"]
        """Digest of the sources' files, from which no row is excluded or dropped yet."""
        self.rows: int = info["rows"]
        self.input_rows: int = info["input_rows"]
        """Number of rows in the sources, excluded ones included."""
        self.max_length: int = info["max_length"]
        self.pad_id: int = info["pad_id"]
        self.columns: tuple[str, ...] = tuple(info["columns"])
        self.source_rows: tuple[int, ...] = tuple(info["source_rows"])
        self.prompts: dict[str, str] = info["prompts"]
        """Maps each role of the text to its prompt; the empty string stands for no role."""
        self.keys: Integer[np.ndarray, " rows"] = self._arrays["keys"]
        """A 64-bit hash of each row's `text`; equal texts have equal keys."""
        self.input_row: Integer[np.ndarray, " rows"] = self._arrays["input_row"]
        """Index of each row among all rows of the sources, and therefore in the user's vectors."""
        self.report: list[str] = info["report"]
        """Lines about the text for the run's log."""

    def _array(self, column: str, kind: str) -> np.ndarray:
        """The memory-mapped file `N.kind` of the column with index `N`."""
        if column not in self.columns:
            raise InputError(f"the text has no column {column!r}; set --config.data.columns.")
        return self._arrays[f"{self.columns.index(column)}.{kind}"]

    def counts_of(self, column: str, rows: Integer[np.ndarray, " b"]) -> Counts:
        """Word and token counts of some sentences."""
        return Counts(*(self._array(column, kind)[rows].astype(np.int64) for kind in Counts._fields))

    def longest(self, column: str) -> int:
        """Number of tokens of the longest sentence."""
        return self._info["columns"][column]["longest"]

    def unknown(self, column: str) -> Unknown:
        """Counts of unknown tokens and characters in a column."""
        return Unknown(*(self._info["columns"][column][name] for name in Unknown._fields))

    def truncated(self, column: str) -> float:
        """Share of truncated sentences in a column."""
        return self._info["columns"][column]["truncated"] / self.rows

    def gather(self, column: str, rows: Integer[np.ndarray, " b"]) -> Gathered:
        """Token ids, and the word of each token, of some sentences."""
        begins, lengths = self._array(column, "begins")[rows], self._array(column, "lengths")[rows]
        index_in_column = np.repeat(begins, lengths) + token_positions(lengths)  # of each token
        ids, marks = self._array(column, "ids")[index_in_column], self._array(column, "marks")[index_in_column]
        # Words are counted over all sentences at once; subtracting the count before each sentence restarts them at 0.
        words_so_far = np.cumsum(marks == STARTS)
        tokens_before = np.cumsum(lengths) - lengths  # of each sentence
        words_before = np.concatenate([[0], words_so_far])[tokens_before]
        words = np.where(marks == PROTECTED, -1, words_so_far - 1 - np.repeat(words_before, lengths))
        return Gathered(ids, words, lengths)

    def text(self, column: str, row: int) -> str:
        """The raw sentence, without surrounding white space."""
        begin = self._array(column, "text.begins")[row]
        end = begin + self._array(column, "text.lengths")[row]
        return self._array(column, "text")[begin:end].tobytes().decode()

    def texts(self, column: str = TEXT, prompts: Mapping[str, str] | None = None) -> "Texts":
        """All sentences of a column as a lazy sequence. `prompts` maps roles to the prompts to prepend; None: no prompts."""
        return Texts(self, column, prompts)

    def roles(self, column: str, rows: Sequence[int] | Integer[np.ndarray, " n"]) -> list[str]:
        """The role of each sentence: `query`, `document`, or an empty string."""
        ends = np.cumsum(self._info["portion_rows"])  # a portion is a source, or one column of it
        portions = np.searchsorted(ends, np.asarray(rows, np.int64), side="right")
        return [self._info["roles"][portion][column] for portion in portions]

    def tokenised(self, column: str, rows: Integer[np.ndarray, " n"], texts: Sequence[str]) -> Tokenised:
        """Tokenises `texts` in place of the sentences of `rows`, with the prompts of their roles. They are truncated to the longest
        sentence of the column, so that batch shapes for the column hold them."""
        self._tokenizer.enable_truncation(self.longest(column))
        prompts = [self.prompts[role] for role in self.roles(column, rows)]
        return tokenised_words(self._tokenizer, texts, prompts, self.longest(column))

    @cached_property
    def pair_template(self) -> PairTemplate:
        """Special tokens that the tokenizer puts around the two sentences of a pair."""
        self._tokenizer.no_truncation()
        # Any sentence with a token shows which special tokens a pair gets. Some have none, such as those of invisible characters.
        text = self.text(TEXT, int(np.argmax(self._array(TEXT, "tokens") > 0)))
        encoding = self._tokenizer.encode(text, text)
        ids, types = np.asarray(encoding.ids, np.int64), np.asarray(encoding.type_ids)
        sentence_of_token = np.array(encoding.sequence_ids, object)  # 0 or 1; None for special tokens
        first, second = np.flatnonzero(sentence_of_token == 0), np.flatnonzero(sentence_of_token == 1)
        begin = slice(0, first[0])
        between = slice(first[-1] + 1, second[0])
        end = slice(second[-1] + 1, len(ids))
        between_first = int((types[between] == 0).sum())
        return PairTemplate(ids[begin], ids[between], ids[end], between_first, has_types=bool(types[end].any()))

    @cached_property
    def mask_token(self) -> str:
        """The tokenizer's mask token, registered so that it is read as one token. Raises `InputError` if there is none."""
        token = next((mask for mask in MASK_TOKENS if self._tokenizer.token_to_id(mask) is not None), None)
        if token is None:
            raise InputError(f"the tokenizer has no mask token ({', '.join(MASK_TOKENS)}); choose another view.")
        if self._tokenizer.token_to_id(token) not in self._tokenizer.get_added_tokens_decoder():
            self._tokenizer.add_special_tokens([token])
        return token


class Texts(Sequence):
    """The sentences of one column, read from disk on access; `prompts` is as in `TokenStore.texts`."""

    def __init__(self, store: TokenStore, column: str, prompts: Mapping[str, str] | None = None):
        self._store, self._column, self._prompts = store, column, prompts

    def __len__(self) -> int:
        return self._store.rows

    def __getitem__(self, index):
        rows = range(len(self))[index]  # an integer for an integer, a range for a slice
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
    columns: ColumnNames = (TEXT,),
    prompts: Mapping[str, str] = MappingProxyType({"": ""}),
    roles: Roles = (),
    dedupe: bool = False,
    exclude: Sequence[str] = (),
    chunking: Chunking | None = None,
    progress: bool = False,
) -> TokenStore:
    """Tokenises the text of `specs` into a store, or opens the existing one.

    Of several processes that see the cache folder, one builds the store. Rows keep their order; rows with an empty column are left out.

    Args:
      tokenizer: must add its special tokens; its padding and truncation settings are ignored.
      max_length: maximum tokens per sentence, special tokens and prompt included.
      cache_folder: holds the stores in `tokens`, each named by its digest.
      columns: as in `text.read`; must include `text`.
      prompts: maps each role (empty for none) to its prompt, which no view deletes.
      roles: maps columns to roles, for each spec; empty: no sentence has a role.
      dedupe: keep only the first of equal rows, ignoring case, surrounding space, and the order of `text` and `second`, but not roles.
      exclude: specs with the same columns; rows with the same `text` (and `second`), compared likewise but without roles, are left out.
      chunking: splits each cell into chunks, which become rows of one column `text`; `exclude` is compared with whole cells.
    """
    columns, cache = columns_of(columns), str(cache_folder)
    tokenizer = bare(tokenizer)
    tokenizer.enable_truncation(max_length)
    roles = roles or (dict.fromkeys(columns, ""),) * len(specs)
    prompts = {role: prompts[role] for role in sorted({role for source in roles for role in source.values()})}
    least = tokens_around(tokenizer, prompts.values()) + 1
    if max_length < least:
        raise InputError(f"max_length={max_length} leaves no token for the text; the minimum is {least}.")
    digests = [content_digest(specs)]
    if exclude:
        with errors_of("data.exclude"):
            digests.append(content_digest(exclude))
    content = _digest(FORMAT, digests, columns, dedupe, list(roles), chunking and chunking.digest)  # of the rows' text
    # The same files, divided otherwise into sources, have the same content but need another store, which counts rows by source.
    files_of_sources = [[len(text.source_files(spec)) for spec in specs]] if len(specs) > 1 else []
    digest = _digest(content, LAYOUT, tokenizer.to_str(), prompts, max_length, *files_of_sources)
    folder = Path(cache) / "tokens" / digest

    def build(draft: Path) -> None:
        portions = text.portions(specs, columns, roles, separate=chunking is not None)
        names = [TEXT] if chunking else list(columns)
        identity = {name: columns[name] for name in identifying(columns, chunked=chunking is not None)}
        excluded = text.excluded_keys(exclude, identity, cache)
        builder = _Builder(draft, specs, portions, names, tokenizer, max_length, prompts, chunking, excluded, cache)
        portion_rows = builder.tokenise(shown=progress and "tokenising")
        try:  # the text may have changed since the digests were taken
            text.check_unchanged(specs, digests[0])
            if exclude:
                text.check_unchanged(exclude, digests[1])
        except InputError:
            shutil.rmtree(draft)  # or the next run would continue it
            raise
        info = builder.finish(portion_rows, dedupe=dedupe)
        info |= {"content": content, "source": digests[0]}
        (draft / "store.json").write_text(json.dumps(info, indent=1))
        draft.replace(folder)
        shutil.rmtree(folder / "rows")  # last, so that a killed build can continue

    if not folder.is_dir():
        with writing(folder, other_cache(folder)):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_name(f"{folder.name}.lock")):
                if not folder.is_dir():  # no other process has built it meanwhile
                    build(folder.with_name(f"{folder.name}.unfinished"))
    return TokenStore(folder, tokenizer, chunking)


@dataclasses.dataclass
class _Builder:
    """Tokenises a text into the arrays of a store: one file each, to which every block of rows is appended. Files in `rows/` have one
    entry per tokenised row, repeated rows included, and do not become part of the store. A note, written after each block, says how
    long each file is; a restarted run cuts the files to these lengths and continues."""

    folder: Path
    specs: Sequence[str]
    portions: Sequence[Portion]
    columns: Sequence[str]
    """Columns of the store: the text's columns, or only `text`, which then holds all chunks."""
    tokenizer: Tokenizer
    max_length: int
    prompts: Mapping[str, str]
    chunking: Chunking | None
    excluded: Collection[int]
    """The `row_key`s of the rows to leave out."""
    cache: str

    def __post_init__(self):
        self._unknown_id = unknown_id(self.tokenizer)
        # Two bytes suffice for most vocabularies and halve the ids. The largest id counts, because a vocabulary may have gaps.
        self._id_dtype = np.uint16 if max(self.tokenizer.get_vocab().values(), default=0) < 1 << 16 else np.uint32
        self._input_rows = 0  # number of input rows that the files hold
        self._files: dict[str, tuple[str, int]] = {}  # maps names to each file's dtype and size in bytes
        self._note = self.folder / "rows" / "progress.json"
        self._note.parent.mkdir(parents=True, exist_ok=True)
        if self._note.exists():
            input_rows, files = json.loads(self._note.read_text())
            # After a power cut, a file may be shorter than noted; the text is then tokenised anew.
            if all((self.folder / name).stat().st_size >= size for name, (_, size) in files.items()):
                self._input_rows, self._files = input_rows, files
        for name in file_names(self.folder):
            if name != "rows/progress.json":
                _, size = self._files.get(name, ("", 0))
                os.truncate(self.folder / name, size)

    def tokenise(self, *, shown: bool | str) -> list[int]:
        """Appends the rows that the files lack; returns the number of input rows of each portion."""

        def tables_of(portion: Portion) -> Iterator[text.Table]:
            return text.tables(self.specs[portion.source], portion.columns, cache=self.cache)

        # Opens all tables twice, one at a time, because an open table keeps its file open, and a text may have thousands.
        portion_rows = [sum(len(table.dataset) for table in tables_of(portion)) for portion in self.portions]
        first_row = 0  # of the table, among all input rows
        with counted(sum(portion_rows), "rows", shown=shown) as advance:
            advance(self._input_rows)
            for portion in self.portions:
                for table in tables_of(portion):
                    for cells in table.blocks(begin=max(self._input_rows - first_row, 0)):  # skips rows in the files
                        self._append(self._arrays(cells, portion.roles), input_rows=len(cells[0]))
                        advance(len(cells[0]))
                    first_row += len(table.dataset)
        return portion_rows

    def _append(self, arrays: Mapping[str, np.ndarray], input_rows: int) -> None:
        """Appends the arrays of a block of `input_rows` to the files of these names, and notes what the files hold."""
        for name, values in arrays.items():
            with open(self.folder / name, "ab") as file:
                file.write(values.tobytes())  # not `tofile`, which ignores a disk that is full at its last bytes
            self._files[name] = values.dtype.str, (self.folder / name).stat().st_size
        self._input_rows += input_rows
        write_atomic(self._note, json.dumps([self._input_rows, self._files]))

    def _arrays(self, cells: Sequence[Sequence[str]], roles: Sequence[str]) -> dict[str, np.ndarray]:
        """The arrays of a block of input rows, by the names of their files. Rows that have an empty cell or are excluded are skipped;
        `chunking` turns the others into several rows each. `cells` has the block's texts of each column, `roles` the columns' roles."""
        identity = [self.columns.index(name) for name in identifying(self.columns, chunked=self.chunking is not None)]
        others = [index for index in range(len(self.columns)) if index not in identity]
        stripped = zip(*([cell.strip() for cell in column] for column in cells), strict=True)
        # Pairs of the index of an input row and its texts, one per column.
        full_rows = [(input_row, row) for input_row, row in enumerate(stripped, self._input_rows) if all(row)]
        rows = full_rows
        if self.excluded:  # before texts are split into chunks, because whole texts are compared
            rows = [pair for pair in full_rows if row_key([pair[1][index] for index in identity]) not in self.excluded]
        excluded = len(full_rows) - len(rows)
        if self.chunking:  # each portion has a single column
            chunks_of_rows = zip(rows, self.chunking.split(text for _, (text,) in rows), strict=True)
            rows = [(input_row, (chunk,)) for (input_row, _), chunks in chunks_of_rows for chunk in chunks]
        repeat_keys = [  # equal texts of different roles are no repeats
            row_key([f"{roles[index]}\0{row[index]}" for index in identity], [row[index] for index in others])
            for _, row in rows
        ]
        arrays = {
            "rows/excluded": np.array([excluded]),  # one number per block
            "rows/input_row": np.array([input_row for input_row, _ in rows], np.int64),
            "rows/keys": np.array([text.text_key(row[self.columns.index(TEXT)]) for _, row in rows], np.uint64),
            "rows/repeat_keys": np.array(repeat_keys, np.uint64),
        }
        for index, role in enumerate(roles):
            arrays |= self._column_arrays(index, [row[index] for _, row in rows], role)
        return arrays

    def _column_arrays(self, index: int, texts: Sequence[str], role: str) -> dict[str, np.ndarray]:
        """Tokenises a block of the column with this index. Returns arrays by the names of their files."""
        prompts = [self.prompts[role]] * len(texts)
        tokens = tokenised_words(self.tokenizer, texts, prompts, self.max_length, unknown=self._unknown_id)
        encoded = [text.encode() for text in texts]
        # One array per field of `Unknown`: `tokens`, which the store keeps as `N.tokens`, and others, which `finish` sums.
        row_arrays = dict(zip(Unknown._fields, tokens.counts.T, strict=True)) | {
            "lengths": tokens.lengths,
            "words": sums(tokens.marks == STARTS, tokens.lengths),
            "truncated": tokens.truncated,
            "text.lengths": np.array(list(map(len, encoded)), np.int64),
        }
        return {f"rows/{index}.{name}": values for name, values in row_arrays.items()} | {
            f"{index}.ids": tokens.ids.astype(self._id_dtype),
            f"{index}.marks": tokens.marks,
            f"{index}.text": np.frombuffer(b"".join(encoded), np.uint8),
        }

    def finish(self, portion_rows: Sequence[int], *, dedupe: bool) -> dict[str, Any]:
        """Writes the arrays of all rows, or if `dedupe`, of the first of equal rows. Returns what `store.json` says about them."""
        repeat_keys = self._read("rows/repeat_keys")
        if not len(repeat_keys):
            reason = "has an empty sentence" + (" or is in data.exclude" if self.excluded else "")
            raise InputError(f"{', '.join(self.specs)}: every row {reason}; no text remains for training.")
        kept = np.arange(len(repeat_keys))
        if dedupe:
            kept = np.sort(np.unique(repeat_keys, return_index=True)[1])  # the first row of each key
        input_row = self._read("rows/input_row")
        self._write("input_row", input_row[kept])
        self._write("keys", self._read("rows/keys")[kept])
        columns, column_lines = {}, []
        for index, name in enumerate(self.columns):
            columns[name], line = self._finish_column(index, kept)
            column_lines.append(f"column {name}: {line}")
        repeats, excluded = len(repeat_keys) - len(kept), int(self._read("rows/excluded").sum())
        left_out = {
            # Each input row counts once, however many chunks it has.
            "with an empty sentence": sum(portion_rows) - len(np.unique(input_row)) - excluded,
            f"duplicate{'s' * (repeats != 1)}": repeats,
            "in data.exclude": excluded,
        }
        report = [f"text: {len(kept):,} rows of {len(self.specs)} source{'s' * (len(self.specs) != 1)}"]
        if any(left_out.values()) or self.excluded:
            numbers = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items() if count)
            report.append(f"left out: {numbers or 'nothing, no row is in data.exclude'}")
        # Input rows ascend, so a search finds how many kept rows precede each portion's end.
        kept_of_portions = np.diff(np.searchsorted(input_row[kept], np.cumsum(portion_rows)), prepend=0)
        sources = [portion.source for portion in self.portions]
        pads = map(self.tokenizer.token_to_id, ("[PAD]", "<pad>"))
        return {
            "rows": len(kept),
            "input_rows": sum(portion_rows),
            "source_rows": np.bincount(sources, kept_of_portions, len(self.specs)).astype(int).tolist(),
            "portion_rows": kept_of_portions.tolist(),
            "roles": [dict(zip(self.columns, portion.roles, strict=True)) for portion in self.portions],
            "columns": columns,
            "prompts": self.prompts,
            "max_length": self.max_length,
            "pad_id": next((pad for pad in pads if pad is not None), 0),
            "arrays": {name: file for name, file in self._files.items() if not name.startswith("rows/")},
            "report": [*report, *column_lines],
        }

    def _finish_column(self, index: int, kept: Integer[np.ndarray, " rows"]) -> tuple[dict[str, int], str]:
        """Writes the arrays of the `kept` rows of a column. Returns what `store.json` says about the column, and a line about it."""
        for kind in ("", "text."):  # of the tokens, and of the bytes of the text
            lengths = self._read(f"rows/{index}.{kind}lengths")
            self._write(f"{index}.{kind}lengths", lengths[kept])
            self._write(f"{index}.{kind}begins", (np.cumsum(lengths) - lengths)[kept])  # repeats stay in the files
        for kind in ("words", "tokens"):
            self._write(f"{index}.{kind}", self._read(f"rows/{index}.{kind}")[kept])
        summed = ("truncated", *Unknown._fields)
        info = {kind: int(self._read(f"rows/{index}.{kind}")[kept].sum()) for kind in summed}
        lengths = self._read(f"rows/{index}.lengths")[kept]
        truncated = f"{info['truncated'] / len(kept):.2%} of sentences truncated at {self.max_length} tokens"
        line = f"{lengths.sum():,} tokens, {lengths.mean():.1f} per sentence, {truncated}"
        return info | {"longest": int(lengths.max())}, line

    def _write(self, name: str, values: np.ndarray) -> None:
        (self.folder / name).write_bytes(values.tobytes())
        self._files[name] = values.dtype.str, values.nbytes

    def _read(self, name: str) -> np.ndarray:
        return np.fromfile(self.folder / name, self._files[name][0])


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
