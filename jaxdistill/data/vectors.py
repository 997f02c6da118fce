"""Reads a user's vectors, a `.npy` file of shape [rows, width], block by block."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.files import foreign_errors

BLOCK_ROWS = 8192
"""Rows held in memory at a time."""


def open_vectors(path: Path) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the vectors of a `.npy` file; checks its format, not its values. Raises `InputError`."""
    if not path.exists():
        raise InputError(f"{path} does not exist; give a .npy file of vectors, one per row of the text.")
    with foreign_errors(f"{path} is not a complete .npy file of numbers"):
        mapped = np.lib.format.open_memmap(path, mode="r")
    if mapped.ndim != 2 or mapped.dtype.kind != "f":
        raise InputError(f"{path} holds {mapped.dtype} {mapped.shape}; it must be a float array [sentences, width].")
    return np.asarray(mapped)


def blocks(path: Path) -> Iterator[Float[np.ndarray, "n e"]]:
    """Yields the vectors of a `.npy` file in order, at most `BLOCK_ROWS` at a time.

    Raises:
      InputError: not a file of vectors, or a non-finite value; the error names the row.
    """
    for start in range(0, len(open_vectors(path)), BLOCK_ROWS):
        # Opened again for each block: the pages of an open map count as memory of the process.
        block = np.array(open_vectors(path)[start : start + BLOCK_ROWS])
        _check_finite(block, range(start, start + len(block)), f"{path}:", "compute that vector again")
        yield block


def checked_block(vectors: np.ndarray, start: int, width: int) -> Float[np.ndarray, "n e"]:
    """A model's vectors for the rows from `start` on, in float32; raises `InputError` for a wrong width or non-finite values."""
    if vectors.shape[1:] != (width,):
        raise InputError(f"the model gave vectors of shape {vectors.shape[1:]}, expected ({width},).")
    block = np.asarray(vectors, np.float32)
    _check_finite(block, range(start, start + len(block)), "the model's vector of", "check its weights")
    return block


def _check_finite(block: np.ndarray, rows: Sequence[int], whose: str, advice: str) -> None:
    bad = np.argwhere(~np.isfinite(block))
    if len(bad):
        row, column = bad[0]
        raise InputError(f"{whose} row {rows[row]} is not finite ({block[row, column]} in column {column}); {advice}.")
