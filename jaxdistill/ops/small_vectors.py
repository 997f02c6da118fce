"""Small forms of vectors: their first numbers only, and fewer bits a number.

    dims      the first numbers, brought to unit length again, as nested widths are trained
    float16   2 bytes a number
    int8      1 byte: the range of each dimension in a sample, in 255 equal steps
    binary    1 bit: whether a number is above 0, eight to a byte

int8 and binary are `quantize_embeddings` of sentence-transformers (its `int8` and `ubinary`) to the byte, so that what reads
those reads these too: FAISS, usearch, Qdrant.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from jaxdistill.core import InputError

STORED_AS = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.uint8}
"""Dtype to the numbers of a stored row; a byte of `binary` holds 8 dimensions, the first in its highest bit."""
STEPS = 255
"""Steps of the range of a dimension."""
Ranges = tuple[tuple[float, ...], tuple[float, ...]]
"""Lowest and highest value of each dimension."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How vectors are stored."""

    dims: int
    """The first numbers of a vector that are kept."""
    dtype: str = "float32"
    """One of `STORED_AS`."""
    ranges: Ranges | None = None
    """Of `int8` alone, which needs them; see `ranges_of`."""

    def __post_init__(self):
        check_packable(self.dims, self.dtype)
        if (self.dtype == "int8") != (self.ranges is not None):
            raise InputError("int8 vectors need the range of each dimension, and no others do; give ranges=.")
        if self.ranges is not None and [*map(len, self.ranges)] != [self.dims] * 2:
            raise InputError(f"the ranges are not of {self.dims} dimensions; give those of this very form.")


def row_bytes(dims: int, dtype: str) -> int:
    """Bytes of a stored vector."""
    return dims // 8 if dtype == "binary" else dims * np.dtype(STORED_AS[dtype]).itemsize


def check_packable(dims: int, dtype: str) -> None:
    """Raises `InputError` for an unknown dtype, or dimensions that do not fill bytes."""
    if dtype not in STORED_AS:
        raise InputError(f"dtype {dtype!r} is unknown; allowed: {', '.join(STORED_AS)}.")
    if dtype == "binary" and dims % 8:
        raise InputError(f"binary packs 8 dimensions into a byte; dims={dims} must be a multiple of 8.")


def checked_dims(dims: int, width: int, dtype: str) -> int:
    """`dims`, or `width` for 0; raises `InputError` for more numbers than the vectors have, or as `check_packable`."""
    if not 0 <= dims <= width:
        raise InputError(f"dims={dims} must be from 1 to {width}, the width of the model's vectors.")
    check_packable(dims or width, dtype)
    return dims or width


def cut(rows: Float[np.ndarray, "n e"], dims: int) -> Float[np.ndarray, "n d"]:
    """The first `dims` numbers of each row at unit length, in float32; zeros stay zeros."""
    first = np.asarray(rows[:, :dims], np.float32)
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    return first / np.where(lengths == 0, np.float32(1), lengths)


def ranges_of(rows: Float[np.ndarray, "n e"], dims: int) -> Ranges:
    """The range of each of the first `dims` dimensions in a sample of vectors, for `int8`.

    Raises:
      InputError: fewer than two vectors, which have no range.
    """
    if len(rows) < 2:
        raise InputError(f"int8 takes the ranges of its dimensions from a sample, which has {len(rows)} of 2 vectors.")
    sample = cut(rows, dims)
    return as_ranges([sample.min(axis=0), sample.max(axis=0)])


def as_ranges(given: Any) -> Ranges:
    """Ranges from an array [2, dims] or lists; raises `InputError` for anything else."""
    try:
        lowest, highest = np.asarray(given, np.float32)
        return tuple(lowest.tolist()), tuple(highest.tolist())
    except (TypeError, ValueError):
        raise InputError(f"ranges are an array [2, dims] of float, as encode keeps them; got {given!r:.60}.") from None


def as_stored(form: Form, rows: Float[np.ndarray, "n e"]) -> Shaped[np.ndarray, "n s"]:
    """Vectors of any length in the form in which they are stored; `s` is `dims`, or an eighth of it for `binary`."""
    first = cut(rows, form.dims)
    if form.dtype == "binary":
        return np.packbits(first > 0, axis=1)
    if form.ranges is None:
        return first.astype(STORED_AS[form.dtype])
    lowest, steps = _lowest_and_steps(form.ranges)
    codes = np.floor((first - lowest) / np.where(steps == 0, np.float32(1), steps))
    return (np.clip(codes, 0, STEPS) - 128).astype(np.int8)


def floats(form: Form, rows: Shaped[np.ndarray, "n s"]) -> Float[np.ndarray, "n d"]:
    """What stored vectors stand for: the middles of their steps for `int8`, +1 and -1 for `binary`; not of unit length."""
    if form.dtype == "binary":
        return np.unpackbits(rows, axis=1, count=form.dims).astype(np.float32) * 2 - 1
    if form.ranges is None:
        return rows
    lowest, steps = _lowest_and_steps(form.ranges)
    codes = np.minimum(rows.astype(np.float32) + 128, STEPS - 1)  # the highest number is in the last step
    return lowest + (codes + np.float32(0.5)) * steps


def as_read(form: Form, rows: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """What vectors of any length stand for once they are stored."""
    return floats(form, as_stored(form, rows))


def _lowest_and_steps(ranges: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    lowest, highest = np.asarray(ranges, np.float32)
    return lowest, (highest - lowest) / STEPS
