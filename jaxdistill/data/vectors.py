"""Reads and writes files of millions of vectors, block by block.

Vectors are a `.npy` file of shape [rows, width], or the column `embedding` (fixed-size lists) of a `.parquet` table or of a
folder of `.parquet` parts. A table may have further columns: `text`, and the `id`, `start` and `end` of a passage. The type
of the numbers gives the form (`ops/small_vectors.py`): float16, int8, or uint8 for packed bits. The ranges of int8, and of
centred bits, are in a table's metadata; for `NAME.npy` they are in `NAME.ranges.npy`, of shape [2, dimensions]. Bits without
ranges are `binary`.
"""

import glob
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer, Shaped

from jaxdistill.core import InputError
from jaxdistill.data import arrow
from jaxdistill.data.part_folder import ABOUT, INDEX
from jaxdistill.files import drafted, reading, writing
from jaxdistill.ops.small_vectors import STEPS, Form, as_ranges, as_stored, floats, is_packed

BLOCK_ROWS = 8192
"""Rows held in memory at a time."""
EMBEDDING = "embedding"
"""Column of the vectors in a Parquet table."""
ID, START, END = "id", "start", "end"
"""Columns with the id of a vector's text, and the start and end of its passage in that text, in characters."""
OF_NUMBERS = {"float16": "float16", "halffloat": "float16", "int8": "int8", "uint8": "centred"}
"""Maps the type of stored numbers to the form's dtype; all others mean float32. Bits without ranges are `binary`."""


def open_vectors(path: Path, *, may_be_small: bool = False) -> Shaped[np.ndarray, "rows e"]:
    """Memory-maps the vectors of a `.npy` file; checks its format, not its values. Raises `InputError`.

    Args:
      may_be_small: also accept int8 and packed bits, and return them as stored.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; give a .npy file of vectors, one per row of the text.")
    with reading.foreign_errors(f"{path} is not a complete .npy file of numbers"):
        mapped = np.lib.format.open_memmap(reading.regular(path), mode="r")
    if mapped.ndim != 2 or not (mapped.dtype.kind == "f" or (may_be_small and mapped.dtype.str in ("|i1", "|u1"))):
        raise InputError(f"{path} holds {mapped.dtype} {mapped.shape}; it must be a float array [sentences, width].")
    return np.asarray(mapped)


def tables(path: Path) -> list[Path]:
    """The files of stored vectors, in order; raises `InputError` if a folder of parts is incomplete."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.parquet"))
    if not files or ((path / ABOUT).exists() and not (path / INDEX).exists()):
        raise InputError(f"{path} is not a complete folder of .parquet parts; let encode finish it.")
    return files


def source(path: Path) -> str:
    """The spec (see `sources`) that reads the rows of a table or a folder of parts."""
    return f"{glob.escape(str(path))}/*.parquet" if path.is_dir() else str(path)


def is_table(path: Path) -> bool:
    """Whether the vectors are a column of a table, not a `.npy` file."""
    return path.suffix == ".parquet" or path.is_dir()


def shape(path: Path) -> tuple[int, int]:
    """(rows, dimensions) of stored vectors; raises `InputError` as `blocks` does."""
    return sum(map(_row_count, tables(path))), form_of(path).dims


def form_of(path: Path) -> Form:
    """The form of stored vectors; raises `InputError` as `blocks` does, or for int8 vectors whose ranges are lost."""
    if is_table(path):
        table = _table(tables(path)[0]).schema_arrow
        kind = table.field(EMBEDDING).type
        numbers, width = str(kind.value_type), kind.list_size
        dtype = OF_NUMBERS.get(numbers, "float32")
        stored = (table.metadata or {}).get(_ranges_key(dtype))
        ranges = json.loads(stored) if stored else None
    else:
        vectors, beside = _mapped(path), ranges_file(path)
        numbers, width = vectors.dtype.name, vectors.shape[1]
        dtype = OF_NUMBERS.get(numbers, "float32")
        ranges = open_vectors(beside).tolist() if dtype in STEPS and beside.exists() else None
    dtype = "binary" if dtype == "centred" and ranges is None else dtype
    if dtype == "int8" and ranges is None:
        raise InputError(
            f"{path} has int8 vectors, but their ranges are missing from {ranges_file(path)} or the table."
        )
    kept = None if ranges is None else as_ranges(ranges)
    return Form(dims=8 * width if is_packed(dtype) else width, dtype=dtype, ranges=kept)


def _ranges_key(dtype: str) -> bytes:
    """The key of a table's metadata for the ranges of its dimensions, as JSON."""
    return f"{dtype}_ranges".encode()


def ranges_file(path: Path) -> Path:
    """The file with the ranges of a `.npy` file's vectors: [2, dimensions], as `quantize_embeddings` takes them for int8."""
    return path.with_suffix(".ranges.npy")


def columns_beside(path: Path) -> set[str]:
    """Names of a table's columns besides the vectors; a `.npy` file has none."""
    return {*_table(tables(path)[0]).schema_arrow.names} - {EMBEDDING} if is_table(path) else set()


def blocks(path: Path) -> Iterator[Float[np.ndarray, "n e"]]:
    """Yields the vectors of a `.npy` or `.parquet` file, or of a folder of parts, in order, at most `BLOCK_ROWS` at a time.

    Small forms are decoded to float32, see `small_vectors.floats`.

    Raises:
      InputError: not a file of vectors, or a non-finite value; the error names the row.
    """
    start, form = 0, form_of(path)
    for stored in stored_blocks(path):
        block = floats(form, stored)
        _check_finite(block, range(start, start + len(block)), f"{path}:", "compute that vector again")
        yield block
        start += len(block)


def rows_at(path: Path, wanted: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
    """The vectors of the rows `wanted` (ascending, without repeats), from the parts that hold one; raises like `blocks`."""
    form, picked, start = form_of(path), [], 0
    for part in tables(path):
        end = start + _row_count(part)
        inside = wanted[(start <= wanted) & (wanted < end)]
        if len(inside):
            picked.append(floats(form, _stored_rows(part, inside - start)))
            _check_finite(picked[-1], inside, f"{path}:", "compute that vector again")
        start = end
    return np.concatenate(picked)


def stored_blocks(path: Path) -> Iterator[Shaped[np.ndarray, "n s"]]:
    """Like `blocks`, but neither decoded nor checked."""
    for part in tables(path):
        yield from _parquet_blocks(part) if is_table(part) else _npy_blocks(part)


def checked_block(vectors: np.ndarray, start: int, width: int) -> Float[np.ndarray, "n e"]:
    """A model's vectors for the rows from `start` on, in float32; raises `InputError` for a wrong width or non-finite values."""
    if vectors.shape[1:] != (width,):
        raise InputError(f"the model gave vectors of shape {vectors.shape[1:]}, expected ({width},).")
    block = np.asarray(vectors, np.float32)
    _check_finite(block, range(start, start + len(block)), "the model's vector of", "check its weights")
    return block


def write_part(
    path: Path,
    columns: Mapping[str, Sequence[str | int]],
    block: Float[np.ndarray, "n e"] | None = None,
    form: Form | None = None,
) -> None:
    """Writes a table of `columns`, with vectors if they are given. Raises `OSError`.

    Args:
      form: form in which to store the vectors; None: float32, as given.
    """
    import pyarrow
    from pyarrow import parquet

    kinds = {name: pyarrow.int64() if name in (START, END) else pyarrow.string() for name in columns}
    arrays = {name: pyarrow.array(cells, kinds[name]) for name, cells in columns.items()}
    if block is not None:
        stored = as_stored(form, block) if form else block
        arrays[EMBEDDING] = pyarrow.FixedSizeListArray.from_arrays(arrow.of_numbers(stored), stored.shape[1])
    metadata = {_ranges_key(form.dtype): json.dumps(form.ranges)} if form and form.ranges else None
    table = pyarrow.table(arrays, metadata=metadata)
    # Neither numbers nor sentences repeat much, so dictionary encoding would only cost time.
    parquet.write_table(table, path, use_dictionary=False)


def write_whole(folder: Path, output: Path, note: Callable[[Path], None] = lambda draft: None) -> None:
    """Writes the parts of a folder as one `.npy` or `.parquet` file; raises `InputError` if it cannot be written.

    Args:
      note: called with the complete file before it replaces `output`.
    """
    with writing(output):
        if output.suffix == ".npy" and (form := form_of(folder)).dtype in (*STEPS, "binary"):
            # First: new bits must never lie beside the ranges of old ones.
            ranges_file(output).unlink(missing_ok=True)
            if form.ranges:
                with drafted(ranges_file(output)) as draft, open(draft, "wb") as file:
                    np.save(file, np.asarray(form.ranges, np.float32))
        with drafted(output) as draft:
            if output.suffix == ".parquet":
                _write_parquet(folder, draft)
            else:
                _write_npy(folder, draft)
            note(draft)


def _write_npy(folder: Path, path: Path) -> None:
    with open(path, "wb") as file:
        for number, block in enumerate(stored_blocks(folder)):
            if number == 0:
                description = {"descr": block.dtype.str, "fortran_order": False}
                whole = {"shape": (shape(folder)[0], block.shape[1])}
                np.lib.format.write_array_header_1_0(file, description | whole)
            file.write(block.tobytes())


def _write_parquet(folder: Path, path: Path) -> None:
    from pyarrow import parquet

    parts = tables(folder)
    with parquet.ParquetWriter(path, _table(parts[0]).schema_arrow, use_dictionary=False) as writer:
        for part in parts:
            writer.write_table(_table(part).read())


def _row_count(part: Path) -> int:
    return _table(part).metadata.num_rows if is_table(part) else len(_mapped(part))


def _stored_rows(part: Path, rows: Integer[np.ndarray, " n"]) -> Shaped[np.ndarray, "n s"]:
    """Rows of one file, neither decoded nor checked."""
    if not is_table(part):
        return _mapped(part)[rows]
    picked, start = [], 0
    for block in _parquet_blocks(part):
        first, last = np.searchsorted(rows, (start, start + len(block)))
        picked.append(block[rows[first:last] - start])
        start += len(block)
    return np.concatenate(picked)


def _mapped(path: Path) -> Shaped[np.ndarray, "rows s"]:
    return open_vectors(path, may_be_small=True)


def _npy_blocks(path: Path) -> Iterator[np.ndarray]:
    for start in range(0, len(_mapped(path)), BLOCK_ROWS):
        # Opened again for each block: the pages of an open map count as memory of the process.
        yield np.array(_mapped(path)[start : start + BLOCK_ROWS])


def _parquet_blocks(path: Path) -> Iterator[np.ndarray]:
    table, start = _table(path), 0
    with reading.foreign_errors(f"{path} is not a complete Parquet file"):
        for batch in table.iter_batches(BLOCK_ROWS, columns=[EMBEDDING]):
            lists = batch.column(EMBEDDING)
            if lists.null_count:
                row = start + lists.is_null().index(True).as_py()
                raise InputError(f"{path}: row {row} has no vector; write the table again with encode.")
            numbers, width = lists.flatten(), lists.type.list_size
            if numbers.null_count:
                row, place = divmod(numbers.is_null().index(True).as_py(), width)
                raise InputError(f"{path}: row {start + row} is null in column {place}; compute that vector again.")
            yield arrow.numbers_of(numbers).reshape(len(lists), width)
            start += len(lists)


def _table(path: Path):
    import pyarrow
    from pyarrow import parquet

    if not path.exists():
        raise InputError(f"{path} does not exist; give a file of vectors that encode wrote.")
    with reading.foreign_errors(f"{path} is not a complete Parquet file"):
        table = parquet.ParquetFile(reading.regular(path))
        columns = {field.name: field.type for field in table.schema_arrow}
    kind = columns.get(EMBEDDING)
    numbers = kind.value_type if kind is not None and pyarrow.types.is_fixed_size_list(kind) else None
    if numbers is None or not (pyarrow.types.is_floating(numbers) or str(numbers) in OF_NUMBERS):
        has = ", ".join(f"{name}: {kind}" for name, kind in columns.items())
        raise InputError(f"{path} has {has}; vectors are fixed-size lists of floats in a column {EMBEDDING!r}.")
    return table


def _check_finite(block: np.ndarray, rows: Sequence[int] | np.ndarray, whose: str, advice: str) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        row, place = bad[0]
        raise InputError(f"{whose} row {rows[row]} is not finite ({block[row, place]} in column {place}); {advice}.")
