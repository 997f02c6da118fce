"""Keeps vectors of millions of rows in a file: written block by block, resumed, and read block by block.

A `.npy` file of shape [rows, width], or the column `embedding` of a `.parquet` table: fixed-size lists of float32, and
columns of what each vector is of where they are wanted: `text`, and `id`, `start` and `end` of a passage.
"""

import io
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.data.resumable import GrowingFile, Note
from jaxdistill.files import reading

BLOCK_ROWS = 8192
"""Rows held in memory at a time."""
EMBEDDING = "embedding"
"""Column of the vectors in a Parquet table."""
ID, START, END = "id", "start", "end"
"""Columns of the id of the text that a vector is of, and of the passage's place in it, in characters."""

log = logging.getLogger(__name__)


class VectorFile:
    """A `.npy` file with one vector per row, complete or growing, and its note beside it."""

    def __init__(self, path: Path, origin: Mapping[str, object], *, rows: int, width: int):
        """Continues an unfinished file, or starts over; logs why if a file exists.

        Args:
          path: path of the file.
          origin: everything that determines the vectors, as JSON values.
          rows, width: shape of the complete array.

        Raises:
          InputError: the file cannot be written.
        """
        self.path, self.rows, self.width, self.dtype = path, rows, width, np.dtype(np.float32)
        shape = {"rows": rows, "width": width, "dtype": self.dtype.str}
        self.file = GrowingFile(path, _note_path(path), {**origin, **shape})
        noted = self.file.noted()
        if noted is None or noted.counts["rows"] < rows:
            self.file.lock()
        if not self._take_up():
            self.file.lock()
            self.file.begin()
        if self.complete:
            self.file.unlock()

    @property
    def counts(self) -> Mapping[str, int]:
        """Totals over all blocks so far, among them `rows`."""
        return self.file.counts

    @property
    def done(self) -> int:
        """Number of rows written."""
        return self.file.counts["rows"]

    @property
    def complete(self) -> bool:
        return self.done == self.rows

    @property
    def array(self) -> Float[np.ndarray, "rows e"]:
        """All vectors, memory-mapped."""
        if not self.complete:
            raise InputError(f"{self.path} has {self.done} of {self.rows} rows; let the run that writes it finish.")
        return open_vectors(self.path)

    def append(self, block: Float[np.ndarray, "n e"], counts: Mapping[str, int] | None = None) -> None:
        """Appends rows; adds `counts` to the note's.

        Raises:
          InputError: a wrong width, a non-finite value (the error names the row), or a full disk.
        """
        if block.shape[1:] != (self.width,):
            raise InputError(f"vectors of the shape {block.shape[1:]} do not go into {self.path}, of ({self.width},).")
        if self.done + len(block) > self.rows:
            raise InputError(f"{self.path} was created for {self.rows:,} rows, but the text has grown.")
        block = block.astype(self.dtype)
        _check_finite(block, self.done, "the model's vector of", "check its weights")
        header = b"" if self.done else self._header()
        self.file.append(header + block.tobytes(), {"rows": len(block), **(counts or {})})
        if self.complete:
            self.file.unlock()

    def discard(self) -> None:
        """Removes the file and its note."""
        self.path.unlink(missing_ok=True)
        self.file.note.unlink(missing_ok=True)
        self.file.unlock()

    def _take_up(self) -> bool:
        """Continues an existing file of the same origin with intact rows; returns False without one."""
        if not self.path.exists():
            return False
        noted = self.file.noted()
        if noted is None:
            log.warning("%s has no valid note beside it; starting over", self.path)
            return False
        if changes := self.file.changes(noted.origin):
            log.warning("%s was made from other inputs (%s); starting over", self.path, changes)
            return False
        if not self.file.take_up(noted, self.path):
            log.warning("%s is damaged; starting over", self.path)
            return False
        return True

    def _header(self) -> bytes:
        header = io.BytesIO()
        description = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(header, description | {"shape": (self.rows, self.width)})
        return header.getvalue()


def note_of(path: Path) -> Note | None:
    """The note beside an unfinished file of vectors; None without a valid one."""
    return GrowingFile(path, _note_path(path), {}).noted()


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def open_vectors(path: Path) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the vectors of a `.npy` file; checks its format, not its values. Raises `InputError`."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a .npy file of vectors, one per row of the text.")
    with reading.open_regular(path) as file:
        with reading.foreign_errors(f"{path} is not a complete .npy file of numbers"):
            version = np.lib.format.read_magic(file)
            read_header = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
            shape, fortran_order, dtype = read_header(file)
        if len(shape) != 2 or dtype.kind != "f":
            raise InputError(f"{path} holds {dtype} {shape}; it must be a float array [sentences, width].")
        missing = file.tell() + math.prod(shape) * dtype.itemsize - os.fstat(file.fileno()).st_size
        if missing > 0:
            raise InputError(f"{path} is not a complete .npy file of numbers ({missing:,} bytes are missing).")
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        order = "F" if fortran_order else "C"
        return np.asarray(np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape, order=order))


def shape(path: Path) -> tuple[int, int]:
    """Rows and width of the vectors in a `.npy` or `.parquet` file; raises `InputError` as `blocks` does."""
    if path.suffix != ".parquet":
        return open_vectors(path).shape
    table = _table(path)
    return table.metadata.num_rows, table.schema_arrow.field(EMBEDDING).type.list_size


def columns_beside(path: Path) -> set[str]:
    """Names of the columns of a table beside its vectors; a `.npy` file has none."""
    return {*_table(path).schema_arrow.names} - {EMBEDDING} if path.suffix == ".parquet" else set()


def blocks(path: Path) -> Iterator[Float[np.ndarray, "n e"]]:
    """Yields the vectors of a `.npy` or `.parquet` file in order, `BLOCK_ROWS` at a time.

    Raises:
      InputError: not a file of vectors, or a non-finite value; the error names the row.
    """
    start = 0
    for block in _parquet_blocks(path) if path.suffix == ".parquet" else _npy_blocks(path):
        _check_finite(block, start, f"{path}:", "compute that vector again")
        yield block
        start += len(block)


def write_parquet(
    path: Path, vectors: Path, columns: Sequence[str] = (), rows: Iterable[Sequence[str | int]] = ()
) -> None:
    """Writes a file of vectors as a table, with `columns` before them, whose cells `rows` has. Raises `OSError`."""
    import pyarrow
    from pyarrow import parquet

    width = shape(vectors)[1]
    kinds = [pyarrow.int64() if name in (START, END) else pyarrow.string() for name in columns]
    fields = [*zip(columns, kinds, strict=True), (EMBEDDING, pyarrow.list_(pyarrow.float32(), width))]
    schema, rest = pyarrow.schema(fields), iter(rows)
    # Numbers hardly repeat, so dictionary encoding would only cost time.
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for block in blocks(vectors):
            numbers = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.astype(np.float32).ravel()), width)
            cells = zip(*islice(rest, len(block)), strict=True) if columns else ()
            beside = [pyarrow.array(column, kind) for column, kind in zip(cells, kinds, strict=True)]
            writer.write_table(pyarrow.table([*beside, numbers], schema=schema))


def _npy_blocks(path: Path) -> Iterator[np.ndarray]:
    for start in range(0, len(open_vectors(path)), BLOCK_ROWS):
        # Opened again for each block: the pages of an open map count as memory of the process.
        yield np.array(open_vectors(path)[start : start + BLOCK_ROWS])


def _parquet_blocks(path: Path) -> Iterator[np.ndarray]:
    table = _table(path)
    with reading.foreign_errors(f"{path} is not a complete Parquet file"):
        for batch in table.iter_batches(BLOCK_ROWS, columns=[EMBEDDING]):
            lists = batch.column(EMBEDDING)
            if lists.null_count:
                raise InputError(f"{path}: a row has no vector; write the table again with encode.")
            yield lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), lists.type.list_size)


def _table(path: Path):
    import pyarrow
    from pyarrow import parquet

    if not path.exists():
        raise InputError(f"{path} does not exist; give a file of vectors that encode wrote.")
    with reading.foreign_errors(f"{path} is not a complete Parquet file"):
        table = parquet.ParquetFile(reading.regular(path))
        columns = {field.name: field.type for field in table.schema_arrow}
    kind = columns.get(EMBEDDING)
    if kind is None or not pyarrow.types.is_fixed_size_list(kind) or not pyarrow.types.is_floating(kind.value_type):
        has = ", ".join(f"{name}: {kind}" for name, kind in columns.items())
        raise InputError(f"{path} has {has}; vectors are fixed-size lists of floats in a column {EMBEDDING!r}.")
    return table


def _check_finite(block: np.ndarray, start: int, whose: str, advice: str) -> None:
    bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
    if len(bad):
        raise InputError(f"{whose} row {start + bad[0]} is not finite; {advice}.")
