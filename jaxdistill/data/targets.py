"""Stores teacher targets as memory-mapped embeddings, resumable, or reads the user's own vectors; joins several teachers'.

The folder of a store is named by the digest of everything that determines the targets (teacher's weights, tokenizer,
pooling, maximum length, precision, text), so a changed teacher or text invalidates it. Rows are written in order; the
note beside them holds their number.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.bars import progress_bar
from jaxdistill.core import InputError
from jaxdistill.data import spread
from jaxdistill.data import vectors as vector_files
from jaxdistill.data.vectors import VectorFile
from jaxdistill.files import local

LONGEST = 1e18
"""Maximum length of a vector, so that its square fits in float32."""
ALIKE = 1e-6
"""Unit vectors whose numbers differ by no more are the same."""
BLOCK_ROWS = 8192
"""Rows embedded and written at a time; a killed run repeats at most this many."""
SAMPLE = 1 << 16
"""Rows of targets from which their principal components are computed."""
LEAST_VARIANCE = 1e-9
"""Components with less than this share of the largest variance are rounding and become zero."""


Text = TypeVar("Text", str, tuple[str, str])


def open_targets(folder: str | Path, digest: str, rows: int, width: int) -> VectorFile:
    """Opens the store of targets with a digest, complete, unfinished or new.

    Args:
      folder: holds one folder per digest.
      digest: digest of everything that determines the targets.
      rows, width: shape of the embeddings.
    """
    path = Path(folder) / digest / "targets.npy"
    return VectorFile(path, {"digest": digest}, rows=rows, width=width)


def cached_vectors(
    folder: str | Path,
    of: str,
    embed: Callable[[Sequence[Text]], Float[np.ndarray, "n e"]],
    texts: Sequence[Text],
    width: int,
    *,
    what: str,
    progress: bool,
) -> Float[np.ndarray, "rows e"]:
    """Returns the vectors of all texts, memory-mapped; computes and stores those missing in `folder`.

    Every process of a run must call this; each computes a part with its own devices.

    Args:
      of: everything that determines the vectors; its digest names their folder.
      embed, texts: as in `fill_vectors`.
      what: label of the progress bar.
    """
    digest = hashlib.sha256(of.encode()).hexdigest()[:32]
    found = spread.opened(partial(open_targets, folder, digest, len(texts), width), Path(folder))
    shown = progress and found.done < found.rows
    with progress_bar(found.rows, "rows", shown=shown and what) as bar:
        fill_vectors(found, embed, texts, advance=bar.update)
    return vector_files.open_vectors(found.path)


def fill_vectors(
    targets: spread.Opened,
    embed: Callable[[Sequence[Text]], Float[np.ndarray, "n e"]],
    texts: Sequence[Text],
    *,
    advance: Callable[[int], object] = lambda rows: None,
) -> None:
    """Embeds the missing texts block by block, spread over the processes; a killed run continues where it stopped.

    Args:
      embed: the teacher.
      texts: one per row; may be lazy, only slices are read.
      advance: called with numbers of rows, for a progress bar: first those already stored, then each block's.
    """
    if len(texts) != targets.rows:
        raise InputError(f"got {len(texts)} texts for targets of {targets.rows} rows; give one per row.")
    advance(targets.done)
    missing = [slice(begin, begin + BLOCK_ROWS) for begin in range(targets.done, targets.rows, BLOCK_ROWS)]
    for block in spread.in_turns(missing, lambda rows: spread.Block(np.asarray(embed(texts[rows])), {}), targets):
        targets.append(block)
        advance(len(block.vectors))


def open_own_vectors(spec: str | Path) -> Float[np.ndarray, "rows e"]:
    """Opens the user's own teacher vectors, `vectors:FILE.npy`, memory-mapped, without checking values."""
    return vector_files.open_vectors(_path(spec))


def checked_own_vectors(
    spec: str | Path, rows: int, used: Integer[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "rows e"]:
    """Like `open_own_vectors`, but checks for one finite vector per row of the text, empty and repeated rows included.

    Args:
      used: rows that are targets; None: of numbers that are no vectors.

    Raises:
      InputError: a wrong number of rows, a non-finite value, or a vector that is too long; names the row. Of `used`, a zero
        vector, or all that point the same way.
    """
    array, path = open_own_vectors(spec), _path(spec)
    if array.shape[0] != rows or array.shape[1] < 1:
        raise InputError(
            f"{path} has {array.shape[0]} rows of width {array.shape[1]}, the text has {rows}; give one vector per row."
        )
    is_target = np.zeros(rows, bool)
    if used is not None:
        is_target[used] = True
    first = 0
    for block in vector_files.blocks(path):  # checks that values are finite
        lengths = np.linalg.norm(block.astype(np.float64), axis=1)
        long = np.flatnonzero(lengths > LONGEST)
        if len(long):
            raise InputError(
                f"{path} row {first + long[0]} has the length {lengths[long[0]]:.1e}; its square overflows float32: "
                f"scale the vectors to lengths of at most {LONGEST:.0e}."
            )
        zero = np.flatnonzero((lengths == 0) & is_target[first : first + len(block)])
        if len(zero):
            raise InputError(
                f"{path} row {first + zero[0]} is a zero vector; compute it again, or remove the row and its text."
            )
        first += len(block)
    if used is not None and _are_alike(array, used):
        raise InputError(
            f"{path}: the vectors of all {len(used):,} rows point the same way as that of row {used[0]}, so a student "
            "learns nothing from them; compute them again."
        )
    return array


def _are_alike(array: Float[np.ndarray, "rows e"], used: Integer[np.ndarray, " n"]) -> bool:
    """Whether all vectors of these rows point the same way; reads up to the first block with another direction."""

    def unit(some: Integer[np.ndarray, " m"]) -> Float[np.ndarray, "m e"]:
        vectors = np.asarray(array[some], np.float64)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    first = unit(used[:1])
    blocks = (used[at : at + BLOCK_ROWS] for at in range(0, len(used), BLOCK_ROWS))
    return all((np.abs(unit(some) - first) <= ALIKE).all() for some in blocks)


def _path(spec: str | Path) -> Path:
    return local(str(spec).removeprefix("vectors:"), "vectors")


class Selected:
    """An array indexed through other row numbers: the user's vectors by the store's rows (`store.input_row`)."""

    def __init__(self, array: Float[np.ndarray, "n e"], place: Integer[np.ndarray, " rows"]):
        self._array, self._place = array, place
        self.shape = (len(place), *array.shape[1:])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._place[rows]]


class Joined:
    """Arrays of several teachers' vectors, read as one: see `joined`."""

    def __init__(self, arrays: Sequence[Float[np.ndarray, "rows _"]], shares: Sequence[float]):
        self._arrays, self._shares = tuple(arrays), tuple(shares)
        self.shape = (len(arrays[0]), sum(array.shape[1] for array in arrays))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return joined([array[rows] for array in self._arrays], self._shares)


def joined(vectors: Sequence[Float[np.ndarray, "*n _"]], shares: Sequence[float]) -> Float[np.ndarray, "*n e"]:
    """The unit vectors of several teachers, each times the root of its share, in one vector of unit length.

    The cosine of two such vectors is the mean of the teachers' cosines, weighted by the shares.

    Args:
      vectors: of the same sentences, of any width each.
      shares: the weight of each teacher; their sum is 1.
    """
    return np.concatenate(
        [
            share**0.5 * one / np.maximum(np.linalg.norm(one, axis=-1, keepdims=True), 1e-12)
            for one, share in zip((np.asarray(one, np.float32) for one in vectors), shares, strict=True)
        ],
        axis=-1,
    )


class Whitened:
    """The first principal components of targets, each divided by a power of its standard deviation; of unit length."""

    def __init__(self, array: Float[np.ndarray, "rows _"] | Selected | Joined, *, power: float, components: int = 0):
        """
        Args:
          array: stored targets, of which an even sample determines mean and components.
          power: 0 only centres; 1 gives all components that vary the same variance.
          components: that remain; 0: all.
        """
        self._array, self.shape = array, (len(array), components or array.shape[1])
        sample = np.asarray(array[np.unique(np.linspace(0, len(array) - 1, SAMPLE, dtype=np.int64))], np.float64)
        self._mean = sample.mean(axis=0)
        variances, directions = np.linalg.eigh((sample - self._mean).T @ (sample - self._mean) / len(sample))
        varies = variances > LEAST_VARIANCE * variances[-1]
        scale = np.where(varies, np.where(varies, variances, 1.0) ** (-power / 2), 0.0)
        self._kernel = (directions * scale)[:, ::-1][:, : self.shape[1]]

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        mapped = (np.asarray(self._array[rows], np.float64) - self._mean) @ self._kernel
        lengths = np.linalg.norm(mapped, axis=-1, keepdims=True)
        return (mapped / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)


Stored = Float[np.ndarray, "rows _"] | Selected | Joined | Whitened
"""Targets that lie on the disk; row numbers give an array of vectors."""
