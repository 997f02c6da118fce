"""Reads safetensors: a header in JSON, checked against the file's size, and the tensors behind it.

The package's NumPy reader lacks 8-bit floats; this one reads them through `ml_dtypes`.
"""

import math
import mmap
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeGuard

import ml_dtypes
import numpy as np

from jaxdistill.core import InputError
from jaxdistill.files import reading

DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "U64": np.uint64,
    "I32": np.int32,
    "U32": np.uint32,
    "I16": np.int16,
    "U16": np.uint16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
"""Names in the header. F4 and F6 pack several numbers into a byte and are refused."""
HEADER_BYTES = 16 << 20
MOST_AXES = 32


class TensorEntry(NamedTuple):
    """A tensor as described by the header."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file; raises the errors of `shapes_of_safetensors`."""
    with reading.open_regular(path) as file:
        return {name: _array(file, entry) for name, entry in _header(path, file).items()}


def mapped_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Like `read_safetensors`, but tensors stay in the file until they are used. The file must not change until
    then."""
    with reading.open_regular(path) as file:
        entries = _header(path, file)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {
        name: np.frombuffer(content, entry.dtype, math.prod(entry.shape), entry.start).reshape(entry.shape)
        for name, entry in entries.items()
    }


def shapes_of_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes from the header alone.

    Raises:
      InputError: a dtype that cannot be read, or a header that does not describe the file.
    """
    with reading.open_regular(path) as file:
        return {name: entry.shape for name, entry in _header(path, file).items()}


def _array(file: BinaryIO, entry: TensorEntry) -> np.ndarray:
    file.seek(entry.start)
    content = file.read(math.prod(entry.shape) * entry.dtype.itemsize)
    return np.frombuffer(content, entry.dtype).reshape(entry.shape)


def _header(path: Path, file: BinaryIO) -> dict[str, TensorEntry]:
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_BYTES):
        raise _damaged(path, f"its header has {length:,} bytes, the file {size:,}")
    header = reading.parsed_json(file.read(length), f"{path}: its header")
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    places = {name: _offsets(path, name, value) for name, value in header.items()}
    end = 0
    for name in sorted(places, key=places.__getitem__):
        if places[name][0] != end:
            raise _damaged(path, f"tensor {name!r:.80} does not begin where the one before ends")
        end = places[name][1]
    if 8 + length + end != size:
        raise _damaged(path, f"its tensors end at byte {8 + length + end:,}, the file at {size:,}")
    return {name: _entry(path, name, value, places[name], 8 + length) for name, value in header.items()}


def _offsets(path: Path, name: str, value: object) -> tuple[int, int]:
    found = value.get("data_offsets") if isinstance(value, dict) else None
    if not _are_counts(found) or len(found) != 2 or found[0] > found[1]:
        raise _damaged(path, f"tensor {name!r:.80} has no place in it")
    return found[0], found[1]


def _entry(path: Path, name: str, value: dict, place: tuple[int, int], data_start: int) -> TensorEntry:
    kind, shape = value.get("dtype"), value.get("shape")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise InputError(
            f"{path}: tensor {name!r:.80} has the dtype {kind!r:.40}; {', '.join(DTYPES)} can be read: save it as F32."
        )
    dtype = np.dtype(DTYPES[kind])
    if not _are_counts(shape) or len(shape) > MOST_AXES or math.prod(shape) * dtype.itemsize != place[1] - place[0]:
        raise _damaged(path, f"tensor {name!r:.80} of shape {shape!s:.80} has another size than its bytes")
    return TensorEntry(dtype, tuple(shape), data_start + place[0])


def _are_counts(found: object) -> TypeGuard[list[int]]:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 62 for n in found)


def _damaged(path: Path, reason: str) -> InputError:
    return InputError(f"{path} cannot be read, it is truncated or damaged ({reason}); fetch it again.")
