"""Caches teacher targets on disk, resumably, or reads the user's own vectors; joins and whitens targets.

A cache is a folder of parts, named by the digest of everything that determines the targets (teacher's weights, tokenizer,
pooling, maximum length, precision, text), so a changed teacher or text gets a new folder.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.bars import Advance
from jaxdistill.core import InputError
from jaxdistill.data import vectors as vector_files
from jaxdistill.data.fill_parts import Made, fill
from jaxdistill.data.part_folder import PartFolder
from jaxdistill.files import local

LONGEST = 1e18
"""Maximum length of a vector, so that its square fits in float32."""
ALIKE = 1e-6
"""Unit vectors whose numbers differ by at most this are equal."""
BLOCK_ROWS = 8192
"""Rows per part, embedded together; a killed run repeats at most this many."""
SAMPLE = 1 << 16
"""Most rows of targets from which principal components are computed."""
LEAST_VARIANCE = 1e-9
"""Components with less than this fraction of the largest variance are rounding errors and become zero."""


Text = TypeVar("Text", str, tuple[str, str])


class Parts:
    """Memory-mapped arrays of rows, read as one array."""

    def __init__(self, arrays: Sequence[Float[np.ndarray, "_ e"]], part_rows: int):
        """
        Args:
          part_rows: rows of each array but the last.
        """
        self._arrays, self._part_rows = arrays, part_rows
        self.shape = (sum(map(len, arrays)), arrays[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Integer[np.ndarray, "*n"]) -> Float[np.ndarray, "*n e"]:
        is_slice = isinstance(rows, slice)
        asked = np.arange(*rows.indices(len(self))) if is_slice else np.where(rows < 0, rows + len(self), rows)
        flat = asked.ravel()
        order = np.argsort(flat // self._part_rows, kind="stable")
        numbers, starts = np.unique(flat[order] // self._part_rows, return_index=True)
        vectors = np.empty((len(flat), self.shape[1]), self._arrays[0].dtype)
        # Not strict: for no rows, `split` still gives one piece.
        for number, places in zip(numbers, np.split(order, starts[1:]), strict=False):
            vectors[places] = self._arrays[number][flat[places] - number * self._part_rows]
        return vectors.reshape(*asked.shape, self.shape[1])


def cached_vectors(
    folder: str | Path,
    of: str,
    embed: Callable[[Sequence[Text], Advance], Float[np.ndarray, "n e"]],
    texts: Sequence[Text],
    width: int,
    *,
    what: str,
    progress: bool,
) -> Parts:
    """Returns the vectors of all texts, memory-mapped; computes and stores those missing in `folder`.

    Every process of a run must call this; each computes some of the parts on its own devices.

    Args:
      of: everything that determines the vectors; its digest names their folder.
      embed: returns finite vectors of `width` numbers; calls its second argument with numbers of finished texts.
      texts: one per row; may be lazy, only slices are read.
      what: label of the progress bar.
    """
    digest = hashlib.sha256(f"parts {of}".encode()).hexdigest()[:32]
    origin = {"digest": digest, "width": width}
    parts = PartFolder(Path(folder) / digest, origin, rows=len(texts), part_rows=BLOCK_ROWS, suffix=".npy")

    def make(rows: range, some: Sequence[Text], advance: Advance) -> Made:
        vectors = vector_files.checked_block(embed(some, advance), rows.start, width)
        return partial(np.save, arr=vectors), {}

    fill(parts, lambda rows: texts[rows.start : rows.stop], make, unit="rows", shown=progress and what)
    arrays = [np.asarray(np.load(parts.path(part), mmap_mode="r")) for part in range(parts.count)]
    return Parts(arrays, BLOCK_ROWS)


def open_own_vectors(spec: str | Path) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the user's own teacher vectors, a `.npy` file, without checking values."""
    return vector_files.open_vectors(_path(spec))


def checked_own_vectors(
    spec: str | Path, rows: int, used: Integer[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "rows e"]:
    """Like `open_own_vectors`, but checks for one finite vector per row of the text, empty and repeated rows included.

    Args:
      used: the rows that are targets; None if the numbers are scores, not vectors.

    Raises:
      InputError: a wrong number of rows, a non-finite value, or a vector that is too long; names the row. Among `used`: a
        zero vector, or all vectors pointing the same way.
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
            f"{path}: all {len(used):,} vectors point the same way as row {used[0]}'s, so a student learns nothing from "
            "them; compute them again."
        )
    return array


def _are_alike(array: Float[np.ndarray, "rows e"], used: Integer[np.ndarray, " n"]) -> bool:
    """Whether all vectors of these rows point the same way; stops at the first block with another direction."""

    def unit(some: Integer[np.ndarray, " m"]) -> Float[np.ndarray, "m e"]:
        vectors = np.asarray(array[some], np.float64)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    first = unit(used[:1])
    blocks = (used[at : at + BLOCK_ROWS] for at in range(0, len(used), BLOCK_ROWS))
    return all((np.abs(unit(some) - first) <= ALIKE).all() for some in blocks)


def _path(spec: str | Path) -> Path:
    return local(str(spec), "vectors")


class Selected:
    """An array indexed through a mapping of rows, such as the user's vectors by the store's rows (`store.input_row`)."""

    def __init__(self, array: Float[np.ndarray, "n e"], place: Integer[np.ndarray, " rows"]):
        self._array, self._place = array, place
        self.shape = (len(place), *array.shape[1:])

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._place[rows]]


class Joined:
    """Several teachers' vectors, read as one array; see `joined`."""

    def __init__(self, arrays: Sequence[Parts], shares: Sequence[float]):
        self._arrays, self._shares = tuple(arrays), tuple(shares)
        self.shape = (len(arrays[0]), sum(array.shape[1] for array in arrays))

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return joined([array[rows] for array in self._arrays], self._shares)


def joined(vectors: Sequence[Float[np.ndarray, "*n _"]], shares: Sequence[float]) -> Float[np.ndarray, "*n e"]:
    """Concatenates the teachers' unit vectors, each scaled by the square root of its share, into one unit vector.

    The cosine of two such vectors is the mean of the teachers' cosines, weighted by the shares.

    Args:
      vectors: one array per teacher, for the same sentences; widths may differ.
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

    def __init__(
        self, array: Float[np.ndarray, "rows _"] | Parts | Selected | Joined, *, power: float, components: int = 0
    ):
        """
        Args:
          array: stored targets; an evenly spaced sample determines mean and components.
          power: 0 only centres; 1 gives all components the same variance.
          components: number of components to keep; 0: all.
        """
        self._array, self.shape = array, (array.shape[0], components or array.shape[1])
        sample = np.asarray(array[np.unique(np.linspace(0, self.shape[0] - 1, SAMPLE, dtype=np.int64))], np.float64)
        self._mean = sample.mean(axis=0)
        # float64: `eigh` of float32 would blur the small variances, by which `power` then divides.
        variances, directions = np.linalg.eigh((sample - self._mean).T @ (sample - self._mean) / len(sample))
        varies = variances > LEAST_VARIANCE * variances[-1]
        scale = np.where(varies, np.where(varies, variances, 1.0) ** (-power / 2), 0.0)
        self._kernel = (directions * scale)[:, ::-1][:, : self.shape[1]]

    def __getitem__(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        mapped = (np.asarray(self._array[rows], np.float64) - self._mean) @ self._kernel
        lengths = np.linalg.norm(mapped, axis=-1, keepdims=True)
        return (mapped / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)


Stored = Float[np.ndarray, "rows _"] | Parts | Selected | Joined | Whitened
"""Targets on disk; indexing with row numbers gives an array of vectors."""
