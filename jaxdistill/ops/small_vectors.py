"""Small forms of vectors: fewer dimensions, and fewer bits per number.

    dims      the first numbers, normalised to unit length again, as for nested widths in training
    float16   2 bytes per number
    int8      1 byte per number: its step among 255 equal ones over the dimension's range in a sample
    binary    1 bit per number: whether it is above 0; eight to a byte
    centred   1 bit per number: whether it is above the dimension's mean in a sample. For models whose vectors lie in a narrow
              cone, such as GTE and E5, where most numbers of a dimension have the same sign

int8 and binary equal sentence-transformers' `quantize_embeddings` (`int8` and `ubinary`) to the byte, so that any store of these
reads them too (docs/stores.md). Stores compare centred vectors as they compare binary ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from jaxdistill.core import InputError

STORED_AS = {"float32": np.float32, "float16": np.float16, "int8": np.int8, "binary": np.uint8, "centred": np.uint8}
"""Maps a form's dtype to the stored numbers'; a byte of bits holds 8 dimensions, the first in its highest bit."""
STEPS = {"int8": 255, "centred": 2}
"""Maps the dtypes that need ranges to the number of steps into which a range is divided."""
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
    """Ranges of the dimensions, see `ranges_of`; required for `int8` and `centred` and only allowed there."""

    def __post_init__(self):
        check_packable(self.dims, self.dtype)
        if (self.dtype in STEPS) != (self.ranges is not None):
            raise InputError(f"ranges= must be given for {' and '.join(STEPS)} vectors, and only for them.")
        if self.ranges is not None and [*map(len, self.ranges)] != [self.dims] * 2:
            raise InputError(
                f"the ranges are not for {self.dims} dimensions; give the ranges that were computed for this form."
            )


def row_bytes(dims: int, dtype: str) -> int:
    """Bytes per stored vector."""
    return dims // 8 if is_packed(dtype) else dims * np.dtype(STORED_AS[dtype]).itemsize


def is_packed(dtype: str) -> bool:
    """Whether a byte holds 8 dimensions."""
    return STORED_AS[dtype] is np.uint8


def check_packable(dims: int, dtype: str) -> None:
    """Raises `InputError` for an unknown dtype, or for bits with dimensions that do not fill bytes."""
    if dtype not in STORED_AS:
        raise InputError(f"dtype {dtype!r} is unknown; allowed: {', '.join(STORED_AS)}.")
    if is_packed(dtype) and dims % 8:
        raise InputError(f"{dtype} packs 8 dimensions into a byte; dims={dims} must be a multiple of 8.")


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


def ranges_of(rows: Float[np.ndarray, "n e"], dims: int, dtype: str) -> Ranges | None:
    """The ranges of the first `dims` dimensions in a sample of vectors, for a form of this dtype; None if it has none.

    `int8` takes the lowest and highest value. The steps of `centred` meet at the mean, and their middles are the mean absolute
    deviation away from it.

    Raises:
      InputError: fewer than two vectors, which span no range.
    """
    if dtype not in STEPS:
        return None
    if len(rows) < 2:
        raise InputError(
            f"{dtype} takes the ranges of its dimensions from a sample of 2 or more vectors; got {len(rows)}."
        )
    sample = cut(rows, dims)
    if dtype == "int8":
        return as_ranges([sample.min(axis=0), sample.max(axis=0)])
    mean = sample.mean(axis=0)
    step = 2 * np.abs(sample - mean).mean(axis=0)
    return as_ranges([mean - step, mean + step])


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
    """Encodes vectors of any length for storage; `s` is `dims`, or an eighth of it for bits."""
    first = cut(rows, form.dims)
    if form.dtype == "binary":
        return np.packbits(first > 0, axis=1)
    if form.ranges is None:
        return first.astype(STORED_AS[form.dtype])
    lowest, steps = _lowest_and_steps(form)
    if is_packed(form.dtype):
        return np.packbits(first > lowest + steps, axis=1)
    codes = np.floor((first - lowest) / np.where(steps == 0, np.float32(1), steps))
    return (np.clip(codes, 0, STEPS[form.dtype]) - 128).astype(np.int8)


def floats(form: Form, rows: Shaped[np.ndarray, "n s"]) -> Float[np.ndarray, "n d"]:
    """Decodes stored vectors, not of unit length: +1 and -1 for `binary`, and for forms with ranges the middles of steps."""
    codes = np.unpackbits(rows, axis=1, count=form.dims) if is_packed(form.dtype) else rows
    if form.dtype == "binary":
        return codes.astype(np.float32) * 2 - 1
    if form.ranges is None:
        return rows
    if form.dtype == "int8":
        codes = np.minimum(rows.astype(np.float32) + 128, STEPS["int8"] - 1)  # the highest number is in the last step
    lowest, steps = _lowest_and_steps(form)
    return lowest + (codes + np.float32(0.5)) * steps


def as_read(form: Form, rows: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """Encodes and decodes vectors: the values that remain once they are stored."""
    return floats(form, as_stored(form, rows))


def _lowest_and_steps(form: Form) -> tuple[np.ndarray, np.ndarray]:
    lowest, highest = np.asarray(form.ranges, np.float32)
    return lowest, (highest - lowest) / STEPS[form.dtype]
