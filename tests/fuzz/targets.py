"""Readers under fuzzing: each takes bytes, and may only return or raise `InputError` of one line."""

import gzip
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.data import formats, vectors
from jaxdistill.evals import read_table

LINE_BYTES = 1 << 20
"""Limit of a line while fuzzing: small, so that reaching it takes no time."""


class Target(NamedTuple):
    """A reader, and what a campaign begins with."""

    read: Callable[[bytes, Path], object]
    """Reads bytes, which it may write into the folder."""
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()
    """What mutations insert as a whole."""


def check(target: Target, data: bytes, folder: Path) -> None:
    """Raises whatever is no `InputError` of one line."""
    try:
        target.read(data, folder)
    except InputError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        assert len(str(error)) < 4000, f"an error of {len(str(error))} characters"


def _table(suffix: str) -> Callable[[bytes, Path], object]:
    def read(data: bytes, folder: Path) -> None:
        path = folder / f"a{suffix}"
        path.write_bytes(data)
        columns = {"text": "text"} if ".txt" in suffix else {"text": "text", "second": "b|text"}
        for row in formats.rows(path, columns, LINE_BYTES):
            assert all(isinstance(cell, str) for cell in row)
            "\0".join(row).encode()

    return read


def _pairs(data: bytes, folder: Path) -> None:
    """A table of an evaluation in both formats."""
    for suffix in (".tsv", ".csv"):
        path = folder / f"pairs{suffix}"
        path.write_bytes(data)
        try:
            list(read_table.columns(path, ("text", "b")))
        except InputError:
            if suffix == ".csv":
                raise


def _gzip(data: bytes, folder: Path) -> None:
    """The first byte chooses the format inside."""
    _table((".txt.gz", ".csv.gz", ".jsonl.gz", ".parquet.gz")[(data or b"\0")[0] % 4])(data[1:], folder)


def _npy(data: bytes, folder: Path) -> None:
    path = folder / "a.npy"
    path.write_bytes(data)
    vectors.shape(path)
    for block in vectors.blocks(path):
        np.asarray(block, np.float32)


def _parquet_vectors(data: bytes, folder: Path) -> None:
    path = folder / "vectors.parquet"
    path.write_bytes(data)
    vectors.shape(path)
    for block in vectors.blocks(path):
        np.asarray(block, np.float32)


def _parquet(data: bytes, folder: Path) -> None:
    """Text, or vectors where the first byte is odd."""
    (_parquet_vectors if (data or b"\0")[0] % 2 else _table(".parquet"))(data[1:], folder)


def _parquet_seeds() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    text = {"text": ["a", "b\n", None, "a"], "b": ["x", "y", "z", "x"]}
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6, dtype=np.float32)), 2)
    tables = [(0, pyarrow.table(text)), (0, pyarrow.table({"text": [1, 2]})), (1, pyarrow.table({"embedding": lists}))]
    seeds = []
    for kind, table in tables:
        for options in ({"compression": "NONE"}, {"compression": "snappy", "use_dictionary": False}):
            file = io.BytesIO()
            parquet.write_table(table, file, **options)
            seeds.append(bytes([kind]) + file.getvalue())
    return seeds


def _npy_seeds() -> list[bytes]:
    arrays = [np.arange(6, dtype=kind).reshape(3, 2) for kind in ("f4", ">f2", "i8")] + [np.zeros((0, 4), "f4")]
    files = []
    for array in arrays:
        file = io.BytesIO()
        np.save(file, array)
        files.append(file.getvalue())
    packed = io.BytesIO()
    np.savez(packed, a=arrays[0])
    return [*files, packed.getvalue()]


_TSV = b"text\tb\nA cat.\tx\n\ny\tz\r\n"
_CSV = b'text,b\n"A ""cat"", it\nis",x\ny,z\n'
_JSONL = b'{"text": "A cat.", "b": null, "n": 1.5e3}\n\n{"text": "\\u00e4", "b": "x"}\n'

TARGETS = {
    "txt": Target(
        _table(".txt"), lambda: [b"\xef\xbb\xbfA cat.\nD\xc3\xb6rfer\r\nlast\rx", b"\n\n", b"\xf0\x9f\x99\x82\n"]
    ),
    "tsv": Target(_table(".tsv"), lambda: [_TSV, b"text\nx\n", b"text\ttext\n1\t2\n"], [b"text", b"\t", b"\r\n"]),
    "csv": Target(_table(".csv"), lambda: [_CSV, b"text\nx\n", b'text,b\n"1', b"a\rb\n"], [b"text", b'""', b"\r\n"]),
    "pairs": Target(_pairs, lambda: [_TSV, _CSV], [b"text", b"b", b"\t"]),
    "jsonl": Target(
        _table(".jsonl"), lambda: [_JSONL], [b'{"text":', b"[" * 50, b"1" * 50, b"\\ud83d", b"NaN", b"1e999"]
    ),
    "parquet": Target(_parquet, _parquet_seeds),
    "gz": Target(
        _gzip, lambda: [bytes([k]) + gzip.compress(d, mtime=0) for k, d in enumerate((b"x\n" * 9, _CSV, _JSONL))]
    ),
    "npy": Target(_npy, _npy_seeds, [b"'descr': '<f4'", b"True", b"(9999999999999, 2)", b"|O", b"<f8"]),
}
