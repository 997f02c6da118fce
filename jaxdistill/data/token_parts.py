"""Tokenises text into a folder of parts; each of n processes writes every n-th part.

A part is a memory-mapped Arrow file of one table. It has one row per input row without an empty cell, or per chunk of one: the
columns' tokens and texts, counts, and hashes for finding equal rows. It depends only on its input rows, not on which of them
are duplicates or excluded, so stores that differ in these share their parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.bars import progress_bar
from jaxdistill.data import arrow, row_keys, sources
from jaxdistill.data.chunks import Chunking
from jaxdistill.data.part_folder import PartFolder, read_origin
from jaxdistill.data.portions import Portion
from jaxdistill.data.words import STARTS, Unknown, sums, tokenised_words
from jaxdistill.ops.unknown import unknown_id

if TYPE_CHECKING:
    import pyarrow

PART_ROWS = 1 << 15
"""Rows of the input in a part."""
CHUNK_ROWS = 4096
"""Rows tokenised at a time."""
SUFFIX = ".arrow"
KEYS = ("keys", "repeat_keys", "exclude_keys")
"""Hashes of: the text; everything that makes two rows duplicates; the whole cells, for comparison with `data.exclude`."""
COUNTS = ("words", *Unknown._fields, "truncated")
"""Counts for each sentence of a column; `tokens` leaves out special tokens and the prompt."""


class Row(NamedTuple):
    """A row to tokenise."""

    number: int
    """Index of the input row."""
    exclude_key: int
    cells: Sequence[str]


class PartTokens(NamedTuple):
    """A column of a part."""

    starts: Integer[np.ndarray, " rows+1"]
    ids: Integer[np.ndarray, " tokens"]
    marks: Integer[np.ndarray, " tokens"]
    texts: "pyarrow.Array"


class TokenPart:
    """A part, memory-mapped."""

    def __init__(self, path: Path):
        import pyarrow

        # NOTE: NumPy closes the file when it is mapped; Arrow's own mapping keeps it open, and a text may have many parts.
        mapped = pyarrow.py_buffer(np.memmap(path, np.uint8, mode="r"))
        self._batch = pyarrow.ipc.open_file(mapped).get_batch(0)

    def __len__(self) -> int:
        return self._batch.num_rows

    def numbers(self, name: str) -> np.ndarray:
        """A numeric column: `input_row`, one of `KEYS`, or `PLACE.COUNT`, one of `COUNTS` for the text column at a place."""
        return arrow.numbers_of(self._batch.column(name))

    def tokens(self, place: int) -> PartTokens:
        """The sentences of the text column at index `place`."""
        lists = self._batch.column(f"{place}.sentence")
        ids, marks = (arrow.numbers_of(lists.values.field(name)) for name in ("id", "mark"))
        return PartTokens(arrow.numbers_of(lists.offsets), ids, marks, self._batch.column(f"{place}.text"))


@dataclass(frozen=True, kw_only=True)
class PartWriter:
    """Writes the parts of a text."""

    specs: Sequence[str]
    portions: Sequence[Portion]
    columns: Sequence[str]
    """Columns of the store: the text's columns, or a single one that holds all chunks."""
    tokenizer: Tokenizer
    max_length: int
    prompts: Mapping[str, str]
    chunking: Chunking | None
    line_bytes: int

    def written(self, folder: Path, text: sources.Watched, *, progress: bool) -> PartFolder:
        """Writes the missing parts and returns the folder; all processes of a run call this together.

        Raises:
          InputError: the text cannot be read, or changed meanwhile.
        """
        known = (read_origin(folder) or {}).get("portion_rows")
        portion_rows = known or [sum(1 for _ in self._read(portion)) for portion in self.portions]
        origin = {"portion_rows": portion_rows}
        parts = PartFolder(folder, origin, rows=sum(portion_rows), part_rows=PART_ROWS, suffix=SUFFIX)
        if not parts.is_complete:
            self._write(parts, text, progress)
        parts.finish()  # also if all are here: they may be missing on another host, which waits for this process
        return parts

    def _write(self, parts: PartFolder, text: sources.Watched, progress: bool) -> None:
        rows = chain.from_iterable(((portion, row) for row in self._read(portion)) for portion in self.portions)
        done = 0
        with progress_bar(parts.rows, "rows", shown=progress and "tokenising") as bar:
            for number in parts.missing():
                own = parts.rows_of(number)
                table, empty = self._table(own.start, islice(rows, own.start - done, own.stop - done))
                done = own.stop
                parts.discard_unless(text.check)
                parts.write(number, partial(self._save, table), {"empty": empty})
                bar.update(done - bar.n)

    def _read(self, portion: Portion) -> Iterator[sources.Row]:
        return sources.read([self.specs[portion.source]], portion.columns, self.line_bytes)

    def _table(self, first: int, rows: Iterator[tuple[Portion, sources.Row]]) -> tuple["pyarrow.Table", int]:
        """The table of some input rows, and the number of input rows dropped for an empty cell."""
        import pyarrow

        batches, empty = [], 0
        numbered = ((number, portion, row) for number, (portion, row) in enumerate(rows, first))
        for portion, group in groupby(numbered, key=lambda one: one[1]):
            given = [(number, [cell.strip() for cell in row]) for number, _, row in group]
            filled = [Row(number, self._exclude_key(cells), cells) for number, cells in given if all(cells)]
            empty += len(given) - len(filled)
            whole = self._split(filled) if self.chunking else iter(filled)
            while chunk := list(islice(whole, CHUNK_ROWS)):
                batches.append(pyarrow.RecordBatch.from_arrays(self._arrays(chunk, portion.roles), schema=self._schema))
        return pyarrow.Table.from_batches(batches, self._schema).combine_chunks(), empty

    def _split(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yields one row per chunk of these rows, which have a single column."""
        assert self.chunking is not None
        chunked = self.chunking.split(row.cells[0] for row in rows)
        for row, chunks in zip(rows, chunked, strict=True):
            yield from (row._replace(cells=[chunk]) for chunk in chunks)

    @cached_property
    def _identity(self) -> list[int]:
        """Indices of the columns that identify a row."""
        return [*map(self.columns.index, row_keys.identifying(self.columns, chunked=self.chunking is not None))]

    def _exclude_key(self, cells: Sequence[str]) -> int:
        return row_keys.row_key([cells[place] for place in self._identity])

    def _repeat_key(self, cells: Sequence[str], roles: Sequence[str]) -> int:
        others = [cell for place, cell in enumerate(cells) if place not in self._identity]
        return row_keys.row_key([f"{roles[place]}\0{cells[place]}" for place in self._identity], others)

    def _arrays(self, chunk: Sequence[Row], roles: Sequence[str]) -> list["pyarrow.Array"]:
        """The columns of some rows, in the order of `_schema`."""
        import pyarrow

        keys = (
            [row_keys.text_key(row.cells[self.columns.index(sources.TEXT)]) for row in chunk],
            [self._repeat_key(row.cells, roles) for row in chunk],
            [row.exclude_key for row in chunk],
        )
        arrays = [np.array([row.number for row in chunk], np.int64), *(np.array(each, np.uint64) for each in keys)]
        columns = [arrow.of_numbers(array) for array in arrays]
        for place in range(len(self.columns)):
            texts, prompt = [row.cells[place] for row in chunk], self.prompts[roles[place]]
            tokens = tokenised_words(self.tokenizer, texts, prompt, self.max_length, unknown=self._unknown)
            flat = [arrow.of_numbers(tokens.ids.astype(self._wide)), arrow.of_numbers(tokens.marks)]
            starts = arrow.of_numbers(np.concatenate([[0], np.cumsum(tokens.lengths)]))
            pairs = pyarrow.StructArray.from_arrays(flat, fields=[*self._token_type])
            columns += [pyarrow.LargeListArray.from_arrays(starts, pairs), arrow.of_texts(texts)]
            counts = [sums(tokens.marks == STARTS, tokens.lengths), *tokens.counts.T, tokens.truncated]
            columns += [arrow.of_numbers(np.asarray(each, np.int32)) for each in counts]
        return columns

    @cached_property
    def _unknown(self) -> int | None:
        return unknown_id(self.tokenizer)

    @cached_property
    def _wide(self) -> type[np.unsignedinteger]:
        # Two bytes suffice for most vocabularies and halve the ids.
        return np.uint16 if self.tokenizer.get_vocab_size() <= 1 << 16 else np.uint32

    @cached_property
    def _token_type(self) -> "pyarrow.StructType":
        import pyarrow

        ids = pyarrow.from_numpy_dtype(self._wide)
        return pyarrow.struct([pyarrow.field("id", ids, False), pyarrow.field("mark", pyarrow.uint8(), False)])

    @cached_property
    def _schema(self) -> "pyarrow.Schema":
        import pyarrow

        fields = [("input_row", pyarrow.int64()), *((name, pyarrow.uint64()) for name in KEYS)]
        for place in range(len(self.columns)):
            tokens = pyarrow.large_list(self._token_type)
            fields += [(f"{place}.sentence", tokens), (f"{place}.text", pyarrow.large_string())]
            fields += [(f"{place}.{name}", pyarrow.int32()) for name in COUNTS]
        return pyarrow.schema(fields)

    def _save(self, table: "pyarrow.Table", path: Path) -> None:
        import pyarrow

        batch = (table.to_batches() or [pyarrow.RecordBatch.from_pylist([], schema=self._schema)])[0]
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, self._schema) as writer:
            writer.write_batch(batch)
