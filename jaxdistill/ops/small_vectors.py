"""Small forms of vectors: fewer dimensions, and fewer bits per number.

    dims      the first numbers, normalised to unit length again, as for nested widths in training
    float16   2 bytes per number
    int8      1 byte per number: its step among 255 equal ones over the dimension's range in a sample
    binary    1 bit per number: whether it is above 0; eight to a byte

int8 and binary equal sentence-transformers' `quantize_embeddings` (`int8` and `ubinary`) to the byte, so that any store of these
reads them too (docs/stores.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from jaxdistill.core import InputError

STORED_AS = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.uint8}
"""Maps a form's dtype to the stored numbers'; a byte of `binary` holds 8 dimensions, the first in its highest bit."""
STEPS = 255
"""Number of steps into which a dimension's range is divided."""
Ranges = tuple[tuple[float, ...], tuple[float, ...]]
"""Lowest and highest value of each dimension."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How vectors are stored."""

    dims: int
    """Number of leading dimensions to keep."""
    dtype: str = "float32"
    """One of `STORED_AS`."""
    ranges: Ranges | None = None
    """Ranges of the dimensions, see `ranges_of`; required for `int8` and only allowed there."""

    def __post_init__(self):
        check_packable(self.dims, self.dtype)
        if (self.dtype == "int8") != (self.ranges is not None):
            raise InputError("ranges= must be given for int8 vectors, and only for them.")
        if self.ranges is not None and [*map(len, self.ranges)] != [self.dims] * 2:
            raise InputError(
                f"the ranges are not for {self.dims} dimensions; give the ranges that were computed for this form."
            )


def row_bytes(dims: int, dtype: str) -> int:
    """Bytes per stored vector."""
    return dims // 8 if dtype == "binary" else dims * np.dtype(STORED_AS[dtype]).itemsize


def check_packable(dims: int, dtype: str) -> None:
    """Raises `InputError` for an unknown dtype, or for `binary` with dimensions that do not fill bytes."""
    if dtype not in STORED_AS:
        raise InputError(f"dtype {dtype!r} is unknown; allowed: {', '.join(STORED_AS)}.")
    if dtype == "binary" and dims % 8:
        raise InputError(f"binary packs 8 dimensions into a byte; dims={dims} must be a multiple of 8.")


def checked_dims(dims: int, width: int, dtype: str) -> int:
    """`dims`, or `width` for 0; raises `InputError` for more dimensions than the vectors have, or like `check_packable`."""
    if not 0 <= dims <= width:
        raise InputError(f"dims={dims} must be from 1 to {width}, the width of the model's vectors.")
    check_packable(dims or width, dtype)
    return dims or width


def cut(rows: Float[np.ndarray, "n e"], dims: int) -> Float[np.ndarray, "n d"]:
    """The first `dims` numbers of each row, normalised to unit length, in float32; zeros stay zeros."""
    first = np.asarray(rows[:, :dims], np.float32)
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    return first / np.where(lengths == 0, np.float32(1), lengths)


def ranges_of(rows: Float[np.ndarray, "n e"], dims: int) -> Ranges:
    """The range of each of the first `dims` dimensions in a sample of vectors, for `int8`.

    Raises:
      InputError: fewer than two vectors, which span no range.
    """
    if len(rows) < 2:
        raise InputError(
            f"int8 takes the ranges of its dimensions from a sample of 2 or more vectors; got {len(rows)}."
        )
    sample = cut(rows, dims)
    return as_ranges([sample.min(axis=0), sample.max(axis=0)])


def as_ranges(given: Any) -> Ranges:
    """Ranges from an array [2, dims] or lists; raises `InputError` for anything else, and for ends that span no range."""
    try:
        lowest, highest = np.asarray(given, np.float32)
        ends = tuple(lowest.tolist()), tuple(highest.tolist())
    except (TypeError, ValueError):
        raise InputError(f"ranges must be a float array [2, dims], as encode stores them; got {given!r:.60}.") from None
    if wrong := np.flatnonzero(~(np.isfinite(lowest) & np.isfinite(highest) & (lowest <= highest))).tolist():
        raise InputError(
            f"ranges[:, {wrong[0]}] is {lowest[wrong[0]]} to {highest[wrong[0]]}; the lowest value comes first."
        )
    return ends


def as_stored(form: Form, rows: Float[np.ndarray, "n e"]) -> Shaped[np.ndarray, "n s"]:
    """Encodes vectors of any length for storage; `s` is `dims`, or an eighth of it for `binary`."""
    first = cut(rows, form.dims)
    if form.dtype == "binary":
        return np.packbits(first > 0, axis=1)
    if form.ranges is None:
        return first.astype(STORED_AS[form.dtype])
    lowest, steps = _lowest_and_steps(form.ranges)
    codes = np.floor((first - lowest) / np.where(steps == 0, np.float32(1), steps))
    return (np.clip(codes, 0, STEPS) - 128).astype(np.int8)


def floats(form: Form, rows: Shaped[np.ndarray, "n s"]) -> Float[np.ndarray, "n d"]:
    """Decodes stored vectors: the middles of their steps for `int8`, +1 and -1 for `binary`; not of unit length."""
    if form.dtype == "binary":
        return np.unpackbits(rows, axis=1, count=form.dims).astype(np.float32) * 2 - 1
    if form.ranges is None:
        return rows
    lowest, steps = _lowest_and_steps(form.ranges)
    codes = np.minimum(rows.astype(np.float32) + 128, STEPS - 1)  # a range's highest number belongs to the last step
    return lowest + (codes + np.float32(0.5)) * steps


def as_read(form: Form, rows: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """Encodes and decodes vectors: the values that remain once they are stored."""
    return floats(form, as_stored(form, rows))


def _lowest_and_steps(ranges: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    lowest, highest = np.asarray(ranges, np.float32)
    return lowest, (highest - lowest) / STEPS
