"""Reads safetensors: the package checks a file, but tensors are views of the mapped file.

The package would copy what it reads, and its NumPy interface lacks 8-bit floats, which `ml_dtypes` has.
"""

import math
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

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
"""Maps dtypes in the header to NumPy's. F4 and F6, which pack several numbers into a byte, are refused."""


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file; raises the errors of `shapes_of_safetensors`."""
    return {name: tensor.copy() for name, tensor in mapped_safetensors(path).items()}


def mapped_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Like `read_safetensors`, but tensors stay in the file until they are used; the file must not change until then."""
    entries, start = _header(path)
    with reading.open_regular(path) as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with reading.foreign_errors(f"{path} has a tensor of a shape that NumPy does not support"):
        return {
            name: np.frombuffer(
                content, DTYPES[entry["dtype"]], math.prod(entry["shape"]), start + entry["data_offsets"][0]
            ).reshape(entry["shape"])
            for name, entry in entries.items()
        }


def shapes_of_safetensors(path: Path) -> dict[str, tuple[int, ...]]:
    """Maps names of tensors to shapes; reads only the header.

    Raises:
      InputError: a dtype that cannot be read, or a header that does not describe the file.
    """
    return {name: tuple(entry["shape"]) for name, entry in _header(path)[0].items()}


def _header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """(dtype, shape and offsets of each tensor, the byte from which offsets count)."""
    with reading.open_regular(path) as file:
        try:
            safetensors.safe_open(path, "np")
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"{path} cannot be read, it is truncated or damaged ({error}); download it again."
            ) from None
        length = int.from_bytes(file.read(8), "little")
        entries = reading.parsed_json(file.read(length), f"{path}: its header")
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise InputError(
                f"{path}: tensor {name!r:.80} has the dtype {entry['dtype']!r:.40}; {', '.join(DTYPES)} can be read: save it "
                "as F32."
            )
    return entries, 8 + length
