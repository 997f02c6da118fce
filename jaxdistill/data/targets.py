"""Stored teacher targets: memory-mapped embeddings, made once and resumed, or the user's own vectors.

A store of targets lies in a folder named by the digest of everything that determines them (teacher's weights,
tokenizer, pooling, maximum length, precision, text), so targets of another teacher can never be read. Rows are written
in order; the note beside them says how many are there.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from tqdm.auto import tqdm

from jaxdistill.core import Embed, InputError
from jaxdistill.data import vectors as vector_files
from jaxdistill.data.vectors import VectorFile
from jaxdistill.files import local

LONGEST = 1e18
"""Length of a vector whose square float32 can hold."""
BLOCK_ROWS = 8192
"""Rows embedded and written at a time: what a killed run repeats at most."""


def open_targets(folder: str | Path, digest: str, rows: int, width: int, *, dtype: str = "float32") -> VectorFile:
    """The store of targets with that digest below `folder`: as far as it was made, or a new one.

    Args:
      folder: holds one folder for each digest.
      digest: of everything that determines the targets.
      rows, width: shape of the embeddings.
      dtype: float32 or float16.
    """
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float16)):
        raise InputError(f"targets are kept as float32 or float16, not {dtype}.")
    path = Path(folder) / digest / "targets.npy"
    return VectorFile(path, {"digest": digest}, rows=rows, width=width, dtype=dtype)


def cached_vectors(
    folder: str | Path, of: str, embed: Embed, texts: Sequence[str], width: int, *, what: str, progress: bool
) -> Float[np.ndarray, "rows e"]:
    """The vectors of all texts, memory-mapped: those that are in `folder` already, the others made and stored now.

    Args:
      of: everything that determines them; its digest names their place.
      embed, texts: as in `fill`.
      what: stands before the progress bar.
    """
    found = open_targets(folder, hashlib.sha256(of.encode()).hexdigest()[:32], len(texts), width)
    shown = progress and not found.complete
    with tqdm(total=found.rows, desc=what, unit="row", disable=not shown, dynamic_ncols=True) as bar:
        fill(found, embed, texts, advance=bar.update)
    return found.array


def fill(
    targets: VectorFile, embed: Embed, texts: Sequence[str], *, advance: Callable[[int], None] = lambda rows: None
) -> None:
    """Embeds the texts that are not done yet, block by block; a killed run goes on where it stopped.

    Args:
      embed: the teacher.
      texts: one for each row; may be lazy, only slices are read.
      advance: told how many rows are done, for a progress bar: first those found, then each block.
    """
    if len(texts) != targets.rows:
        raise InputError(f"{len(texts)} texts for targets of {targets.rows} rows.")
    advance(targets.done)
    while not targets.complete:
        block = texts[targets.done : min(targets.done + BLOCK_ROWS, targets.rows)]
        targets.append(np.asarray(embed(block)))
        advance(len(block))


def open_own_vectors(spec: str | Path) -> Float[np.ndarray, "rows e"]:
    """The user's own teacher vectors, `vectors:FILE.npy`, memory-mapped and not looked into."""
    return vector_files.open_vectors(_path(spec))


def checked_own_vectors(spec: str | Path, rows: int) -> Float[np.ndarray, "rows e"]:
    """As `open_own_vectors`, checked: one row for each row of the text, empty rows and repeats included.

    Raises:
      InputError: also for another number of rows, a value that is not finite, or a vector that is too long (names the row).
    """
    array = open_own_vectors(spec)
    if array.shape[0] != rows or array.shape[1] < 1:
        raise InputError(
            f"{_path(spec)} has {array.shape[0]} rows of {array.shape[1]}, the text has {rows}; give one vector a row."
        )
    first = 0
    for block in vector_files.blocks(_path(spec)):  # which checks that they are finite
        lengths = np.linalg.norm(block.astype(np.float64), axis=1)
        long = np.flatnonzero(lengths > LONGEST)
        if len(long):
            raise InputError(
                f"{_path(spec)} row {first + long[0]} has the length {lengths[long[0]]:.1e}, of which float32 cannot take the "
                f"square; scale the vectors, to lengths of {LONGEST:.0e} at most."
            )
        first += len(block)
    return array


def _path(spec: str | Path) -> Path:
    return local(str(spec).removeprefix("vectors:"), "vectors")


class Selected:
    """Rows of an array by another numbering: the user's vectors by the store's rows (`store.input_row`)."""

    def __init__(self, array: Float[np.ndarray, "n e"], place: Int[np.ndarray, " rows"]):
        self._array, self._place = array, place
        self.shape = (len(place), *array.shape[1:])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._place[rows]]
