"""Caches teacher targets on disk, resumably, or reads the user's own vectors; joins and whitens targets.

A cache is one memory-mapped array in a folder named by the digest of everything that determines the targets (teacher's
weights, tokenizer, pooling, maximum length, precision, text), so a changed teacher or text gets a new folder. Beside a
file that the user names lies a note, `NAME.json`, with such facts, so that it is not made twice or overwritten.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import InputError, first_few
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.processes import folder_owner
from jaxdistill.core.files import foreign_errors, local, make_folder_atomic, write_atomic, writing
from jaxdistill.core.paths import other_cache
from jaxdistill.core.runtime import Advance, Interrupted, Interrupts, counted

VECTORS, DONE = "vectors.npy", "done.npy"
BLOCK_ROWS = 8192
"""Rows that are embedded together; a killed run repeats at most this many."""
SAMPLE = 1 << 16
"""Maximum number of rows of targets from which principal components are computed."""

log = logging.getLogger(__name__)


def stored_vectors(
    folder: Path,
    rows: int,
    width: int,
    compute: Callable[[range, Advance], tuple[Float[np.ndarray, "n e"], int]],
    *,
    shown: bool | str,
    block_rows: int = 0,
) -> tuple[Float[np.ndarray, "rows e"], int]:
    """Computes a long array block by block into one file; a killed program goes on with the blocks that are missing.

    The file `vectors.npy` has all rows from the beginning, and `done.npy` holds each block's count plus 1, or 0 while it is
    missing. Processes of a run that see the same folder each compute every n-th block; all must call this together. Returns the
    memory-mapped vectors, and the sum of the blocks' counts.

    Args:
      folder: named by a digest of everything that determines the vectors.
      compute: returns the vectors of a range of rows, and any count that the caller wants summed. Ranges rise. The second
        argument takes numbers of rows just finished, and raises `Interrupted` after a signal.
      shown: as in `counted`; the first process shows its own share.
      block_rows: rows of a block, always the same for a folder; 0: `BLOCK_ROWS`.

    Raises:
      InputError: the folder cannot be written, or a vector is not finite.
      Interrupted: after a signal; finished blocks stay in the folder.
    """
    size = block_rows or BLOCK_ROWS
    blocks = [range(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def fill(draft: Path) -> None:
        np.lib.format.open_memmap(draft / VECTORS, "w+", np.float32, (rows, width)).flush()
        np.save(draft / DONE, np.zeros(len(blocks), np.int64))

    owners = processes.gathered(folder_owner(folder.parent)) if processes.count() > 1 else [0]
    # The processes that see the same folder as this one.
    group = [number for number, owner in enumerate(owners) if owner == owners[processes.index()]]
    if len(group) < len(owners) and processes.is_first():
        log.info("not all processes see %s, so each computes the whole of it; a shared folder splits the work", folder)
    rank = group.index(processes.index())
    if rank == 0 and not folder.is_dir():
        make_folder_atomic(folder, fill, what="the vectors")
    processes.wait("the file is there")
    assigned = range(rank, len(blocks), len(group))
    missing = [block for block in assigned if not np.load(folder / DONE)[block]]
    total = sum(len(blocks[block]) for block in assigned)
    with Interrupts() as interrupts, counted(total, "rows", shown=processes.is_first() and shown) as count_rows:

        def advance(count: int) -> None:
            count_rows(count)
            if interrupts.status:
                stored = sum(len(block) for block, done in zip(blocks, np.load(folder / DONE), strict=True) if done)
                line = f"{stored:,} of {rows:,} rows are done; give the same command again to continue"
                raise Interrupted(interrupts.status, f": {line}")

        advance(total - sum(len(blocks[block]) for block in missing))
        for block in missing:
            vectors, count = compute(blocks[block], advance)
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad):
                raise InputError(f"the model's vector of row {blocks[block][bad[0]]} is not finite; check its weights.")
            with writing(folder / VECTORS, other_cache(folder)):
                _write(folder / VECTORS, blocks[block].start, np.asarray(vectors, np.float32))
                # Last: only blocks that are on the disk are noted.
                _write(folder / DONE, block, np.array([count + 1], np.int64))
    processes.wait("all blocks are there")
    return np.asarray(np.load(folder / VECTORS, mmap_mode="r")), int((np.load(folder / DONE) - 1).sum())


def _write(path: Path, row: int, values: np.ndarray) -> None:
    """Writes rows of a `.npy` file in place, and waits until they are on the disk."""
    array = np.load(path, mmap_mode="r")
    assert array.dtype == values.dtype and array.shape[1:] == values.shape[1:]
    with open(path, "r+b") as file:
        file.seek(array.offset + row * array.strides[0])
        file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())


def cached_vectors(
    folder: str | Path,
    origin: str,
    embed: Callable[[Any, Advance], Float[np.ndarray, "n e"]],
    texts: Sequence[Any],
    width: int,
    *,
    what: str,
    progress: bool,
    block_rows: int = 0,
) -> Float[np.ndarray, "rows e"]:
    """The vectors of all texts, memory-mapped; `stored_vectors` computes those missing in `folder`.

    Args:
      origin: everything that determines the vectors; its digest names their folder inside `folder`.
      embed: returns vectors [n, width]; calls its second argument with the number of texts just finished.
      texts: one per row; may be lazy, only slices are read.
      what: title of the progress bar.
    """
    digest = hashlib.sha256(f"vectors {origin} {len(texts)} {width}".encode()).hexdigest()[:32]

    def compute(rows: range, advance: Advance) -> tuple[np.ndarray, int]:
        return embed(texts[rows.start : rows.stop], advance), 0  # nothing to count

    return stored_vectors(
        Path(folder) / digest, len(texts), width, compute, shown=progress and what, block_rows=block_rows
    )[0]


def finished(path: Path, origin: Mapping[str, object]) -> Mapping[str, int] | None:
    """The counts in the note of a file that a program has written; None if the file does not exist yet. Raises `InputError` if it was
    made by another program, or from another `origin`: everything that determines the content, as JSON values."""
    note = path.with_name(path.name + ".json")
    if not path.exists():
        return None
    with foreign_errors(f"{path} exists without a valid {note.name}; move it, or choose another file"):
        facts = json.loads(note.read_text("utf-8"))
    refuse_changes(path, facts["origin"], origin)
    return facts["counts"]


def refuse_changes(path: Path | str, noted: Mapping[str, object], origin: Mapping[str, object]) -> None:
    """Raises `InputError` if the file at `path`, by its note, was made from other inputs than `origin`."""
    current = json.loads(json.dumps(origin))  # as the note has it, such as lists for tuples
    names = [name for name in {**noted, **current} if noted.get(name) != current.get(name)]
    if names:
        changes = first_few([f"{name} was {noted.get(name)!s:.60}, is {current.get(name)!s:.60}" for name in names])
        raise InputError(f"{path} was made from other inputs ({changes}); move it, or choose another file.")


def write_note(path: Path, origin: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Writes the note of `path`, see `finished`, before the file itself appears; raises `OSError`."""
    write_atomic(path.with_name(path.name + ".json"), json.dumps({"origin": origin, "counts": counts}, indent=1) + "\n")


def open_own_vectors(spec: str | Path, rows: int | None = None) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the user's teacher vectors, a `.npy` file of `rows` vectors (None: any number); checks no values."""
    path = local(str(spec), "vectors")
    with foreign_errors(f"{path} cannot be read as a .npy file of numbers, one vector per row of the text"):
        mapped = np.lib.format.open_memmap(path, mode="r")
    if mapped.ndim != 2 or mapped.dtype.kind != "f" or rows not in (None, len(mapped)):
        form = f"[{rows or 'rows of the text'}, width]"
        raise InputError(f"{path} holds {mapped.dtype} {list(mapped.shape)}; give a float array {form}.")
    return np.asarray(mapped)


def checked_own_vectors(
    spec: str | Path, rows: int, used: Integer[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "rows e"]:
    """Like `open_own_vectors`, but checks for one finite vector per row of the text, empty and repeated rows included. The vectors of
    the `used` rows, which are targets, must not be zero; None if the numbers are scores."""
    array = open_own_vectors(spec, rows)
    is_target = np.zeros(rows, bool)
    if used is not None:
        is_target[used] = True
    for start in range(0, rows, BLOCK_ROWS):
        # Opened again for each block: the pages of an open map count as memory of the process.
        largest = np.abs(open_own_vectors(spec)[start : start + BLOCK_ROWS]).max(axis=1)
        bad = np.flatnonzero(~np.isfinite(largest) | ((largest == 0.0) & is_target[start : start + BLOCK_ROWS]))
        if len(bad):
            what = "not finite" if largest[bad[0]] else "a zero vector"
            raise InputError(f"{spec} row {start + bad[0]} is {what}; compute it, or remove it and its text.")
    return array


class Selected:
    """An array indexed through a mapping of rows, such as the user's vectors by the store's rows (`store.input_row`)."""

    def __init__(self, array: Float[np.ndarray, "n e"], index: Integer[np.ndarray, " rows"]):
        self._array, self._index = array, index
        self.shape = (len(index), *array.shape[1:])

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._index[rows]]


class Joined:
    """Several teachers' vectors, read as one array; see `joined`."""

    def __init__(self, arrays: Sequence[Float[np.ndarray, "rows _"]], shares: Sequence[float]):
        self._arrays, self._shares = tuple(arrays), tuple(shares)
        self.shape = (len(arrays[0]), sum(array.shape[1] for array in arrays))

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return joined([array[rows] for array in self._arrays], self._shares)


def joined(vectors: Sequence[Float[np.ndarray, "*n _"]], shares: Sequence[float]) -> Float[np.ndarray, "*n e"]:
    """Concatenates the teachers' unit vectors, each scaled by the square root of its share, into one unit vector.

    The cosine of two such vectors is the mean of the teachers' cosines, weighted by the shares, whose sum is 1.
    """
    scaled = []
    for array, share in zip(vectors, shares, strict=True):
        array = np.asarray(array, np.float32)
        scaled.append(share**0.5 * array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12))
    return np.concatenate(scaled, axis=-1)


def principal_axes(
    vectors: Float[np.ndarray, "n e"], *, power: float
) -> tuple[Float[np.ndarray, " e"], Float[np.ndarray, "e e"]]:
    """The mean of the vectors, and a matrix that projects centred ones on their principal components, first to last, each divided by
    its standard deviation to the `power`; zero for components without variance. In float64."""
    # float64: `eigh` of float32 would blur the small variances, by which `power` then divides.
    vectors = np.asarray(vectors, np.float64)
    mean = vectors.mean(axis=0)
    variances, directions = np.linalg.eigh((vectors - mean).T @ (vectors - mean) / len(vectors))
    varies = variances > 1e-9 * variances[-1]  # smaller ones are rounding errors
    scale = np.where(varies, np.where(varies, variances, 1.0) ** (-power / 2), 0.0)  # 1.0 is never used
    return mean, (directions * scale)[:, ::-1]


class Whitened:
    """Targets, centred and projected on their first principal components, each divided by a power of its standard
    deviation, then scaled to unit length; a target that equals the mean becomes zero.

    An evenly spaced sample determines mean and components. The power 0 only centres; 1 gives all components the same
    variance. 0 `components` are all.
    """

    def __init__(self, array: Float[np.ndarray, "rows _"] | Selected | Joined, *, power: float, components: int = 0):
        self._array, self.shape = array, (array.shape[0], components or array.shape[1])
        sample = array[np.unique(np.linspace(0, self.shape[0] - 1, SAMPLE, dtype=np.int64))]
        self._mean, kernel = principal_axes(sample, power=power)
        self._kernel = kernel[:, : self.shape[1]]

    def __getitem__(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        mapped = (np.asarray(self._array[rows], np.float64) - self._mean) @ self._kernel
        lengths = np.linalg.norm(mapped, axis=-1, keepdims=True)
        return (mapped / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)


Stored = Float[np.ndarray, "rows _"] | Selected | Joined | Whitened
"""Targets on disk; indexing with row numbers gives an array of vectors."""
