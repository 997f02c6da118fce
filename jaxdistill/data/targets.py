"""Caches teacher targets on disk, resumably, or reads the user's own vectors; joins and whitens targets.

A cache is a folder named by the digest of all that determines the targets (teacher's files and options, precision, text). An output
file of `encode` or `mine` has a note beside it, `NAME.json`, that says what it was made from, so that it is not made twice or overwritten.
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
from jaxdistill.core.files import foreign_errors, local, write_atomic, writing
from jaxdistill.core.paths import make_folder, other_cache
from jaxdistill.core.runtime import Advance, Interrupted, Interrupts, counted

VECTORS, DONE = "vectors.npy", "done.npy"
BLOCK_ROWS = 8192
"""Rows that are embedded together; a restarted run repeats at most this many."""
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
    """Computes a long array block by block into a file. A restarted program computes only the blocks that are missing.

    The file `vectors.npy` has its full size from the beginning. The file `done.npy` has an entry for each block: 0 until the block is
    finished, then 1 more than the count that `compute` returns with it. The n processes of a run that see the same folder compute every
    n-th block each; all must call this together. Returns the memory-mapped vectors, and the sum of the counts. Raises `InputError` if
    the folder cannot be read or written or a vector is not finite, and `Interrupted` after a signal; finished blocks stay in the folder.

    Args:
      folder: named by a digest of everything that determines the vectors.
      compute: called with a range of rows, in ascending order, and a function to call with the number of rows just finished, which
        raises `Interrupted` after a signal. Returns the rows' vectors, and a count, such as of truncated texts.
      shown: as in `counted`; the first process shows the progress of its blocks.
      block_rows: rows of a block, always the same for a folder; 0: `BLOCK_ROWS`.
    """
    size = block_rows or BLOCK_ROWS
    blocks = [range(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def write_empty(draft: Path) -> None:
        np.lib.format.open_memmap(draft / VECTORS, "w+", np.float32, (rows, width)).flush()
        np.save(draft / DONE, np.zeros(len(blocks), np.int64))

    group = _processes_at(folder.parent)
    rank = group.index(processes.index())
    if rank == 0:
        make_folder(folder, write_empty)
    processes.wait("the file is there")
    assigned = range(rank, len(blocks), len(group))  # indices of this process's blocks
    with foreign_errors(f"{folder} is damaged; remove it, and its vectors are computed again"):
        np.load(folder / VECTORS, mmap_mode="r")  # raises if it is too short
        finished = np.load(folder / DONE)
        missing = [index for index in assigned if not finished[index]]
    total = sum(len(blocks[index]) for index in assigned)
    with Interrupts() as interrupts, counted(total, "rows", shown=processes.is_first() and shown) as count_rows:

        def advance(count: int) -> None:
            count_rows(count)
            if interrupts.status:
                stored = sum(len(block) for block, done in zip(blocks, np.load(folder / DONE), strict=True) if done)
                remedy = "give the same command again to continue"
                raise Interrupted(interrupts.status, f": {stored:,} of {rows:,} rows are done; {remedy}")

        advance(total - sum(len(blocks[index]) for index in missing))  # rows of an earlier run
        for index in missing:
            block = blocks[index]
            vectors, count = compute(block, advance)
            bad_rows = block.start + np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad_rows):
                raise InputError(f"the model's vector of row {bad_rows[0]} is not finite; check its weights.")
            with writing(folder / VECTORS, other_cache(folder)):
                _write(folder / VECTORS, block.start, np.asarray(vectors, np.float32))
                # After the vectors, so that a block counts as finished only once they are on the disk.
                _write(folder / DONE, index, np.array([count + 1], np.int64))
    processes.wait("all blocks are there")
    return np.asarray(np.load(folder / VECTORS, mmap_mode="r")), int((np.load(folder / DONE) - 1).sum())


def _processes_at(folder: Path) -> list[int]:
    """The processes of the run that see the same `folder` as this one, told by its `folder_owner`; all must call this together."""
    owners = processes.gathered(folder_owner(folder)) if processes.count() > 1 else [0]
    group = [process for process, owner in enumerate(owners) if owner == owners[processes.index()]]
    if len(group) < len(owners) and processes.is_first():
        log.info("not all processes see %s, so each computes all vectors; a shared folder splits the work", folder)
    return group


def _write(path: Path, row: int, values: np.ndarray) -> None:
    """Overwrites rows of a `.npy` file, from `row` on, and waits until they are on the disk."""
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
    """The vectors of all texts, memory-mapped; computes the blocks of rows that the cache lacks.

    Args:
      folder: the cache; a folder in it, named by a digest of `origin`, holds the vectors.
      origin: everything that determines the vectors, apart from their number and width.
      embed: returns the vectors `[n, width]` of some texts; calls its second argument with the number of texts just finished.
      texts: one per row; may be lazy, because only slices are read.
      what: title of the progress bar, which is shown if `progress`.
      block_rows: as in `stored_vectors`.
    """
    digest = hashlib.sha256(f"vectors {origin} {len(texts)} {width}".encode()).hexdigest()[:32]

    def compute(rows: range, advance: Advance) -> tuple[np.ndarray, int]:
        return embed(texts[rows.start : rows.stop], advance), 0  # nothing to count

    folder = Path(folder) / digest
    return stored_vectors(folder, len(texts), width, compute, shown=progress and what, block_rows=block_rows)[0]


def finished(path: Path, origin: Mapping[str, object]) -> Mapping[str, int] | None:
    """Returns the counts in the note of a file that is finished, None for a file that does not exist yet. `origin` is everything that
    determines the content, as JSON values. Raises `InputError` if the file has no note, or one with another origin or size, and
    if another JSON file has the note's name."""
    note = path.with_name(path.name + ".json")
    if not path.exists() and not note.exists():
        return None
    with foreign_errors(f"{path} exists without a valid {note.name}, or the reverse; move it, or choose another file"):
        noted = json.loads(note.read_text("utf-8"))
        size, counts, noted_origin = noted["bytes"], dict(noted["counts"]), dict(noted["origin"])
    if not path.exists():  # the program was killed before its file appeared
        return None
    refuse_changes(path, noted_origin, origin)
    if path.stat().st_size != size:
        raise InputError(f"{path} has not the {size:,} bytes that were written; remove it, or choose another file.")
    return counts


def refuse_changes(path: Path | str, noted: Mapping[str, object], origin: Mapping[str, object]) -> None:
    """Raises `InputError` if the `noted` origin of the file at `path` differs from `origin`, the current one."""
    current = json.loads(json.dumps(origin))  # like the note, which has lists for tuples
    changed = [name for name in {**noted, **current} if noted.get(name) != current.get(name)]
    if changed:
        changes = first_few([f"{name} was {noted.get(name)!s:.60}, is {current.get(name)!s:.60}" for name in changed])
        raise InputError(f"{path} was made from other inputs ({changes}); move it, or choose another file.")


def write_note(path: Path, draft: Path, origin: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Writes the note that `finished` reads, for the file that is complete at `draft` and will appear at `path`. May raise `OSError`."""
    note = {"origin": origin, "bytes": draft.stat().st_size, "counts": counts}
    write_atomic(path.with_name(path.name + ".json"), json.dumps(note, indent=1) + "\n")


def open_user_vectors(spec: str | Path, rows: int | None = None) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the user's `.npy` file of vectors. Raises `InputError` unless this is a float array of `rows` vectors (None: any)."""
    path = local(str(spec), "vectors")
    with foreign_errors(f"{path} cannot be read as a .npy file of numbers, one vector per row of the text"):
        mapped = np.lib.format.open_memmap(path, mode="r")
    if mapped.ndim != 2 or mapped.dtype.kind != "f" or rows not in (None, len(mapped)):
        form = f"[{rows or 'rows of the text'}, width]"
        raise InputError(f"{path} holds {mapped.dtype} {list(mapped.shape)}; give a float array {form}.")
    return np.asarray(mapped)


def checked_user_vectors(
    spec: str | Path, rows: int, used: Integer[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "rows e"]:
    """Memory-maps the user's teacher vectors, one for each of the text's `rows`, also empty and repeated ones. Raises `InputError` if a
    vector is not finite, or zero in a row `used` as a target. If `used` is None, the file holds scores, which may be zero."""
    array = open_user_vectors(spec, rows)
    is_target = np.zeros(rows, bool)
    if used is not None:
        is_target[used] = True
    for start in range(0, rows, BLOCK_ROWS):
        # Opened again for each block: the pages of an open map count as memory of the process.
        largest = np.abs(open_user_vectors(spec)[start : start + BLOCK_ROWS]).max(axis=1)
        is_zero_target = (largest == 0.0) & is_target[start : start + BLOCK_ROWS]
        bad = np.flatnonzero(~np.isfinite(largest) | is_zero_target)
        if len(bad):
            what = "a zero vector" if is_zero_target[bad[0]] else "not finite"
            raise InputError(f"{spec} row {start + bad[0]} is {what}; compute it, or remove it and its text.")
    return array


class Selected:
    """Some rows of an array, as an array that is read on access: its row i is `array[index[i]]`."""

    def __init__(self, array: Float[np.ndarray, "n e"], index: Integer[np.ndarray, " rows"]):
        self._array, self._index = array, index
        self.shape = (len(index), *array.shape[1:])

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return self._array[self._index[rows]]


class Joined:
    """The vectors of several teachers as one array; `joined` computes rows on access."""

    def __init__(self, arrays: Sequence[Float[np.ndarray, "rows _"]], shares: Sequence[float]):
        self._arrays, self._shares = tuple(arrays), tuple(shares)
        self.shape = (len(arrays[0]), sum(array.shape[1] for array in arrays))

    def __getitem__(self, rows) -> Float[np.ndarray, "..."]:
        return joined([array[rows] for array in self._arrays], self._shares)


def joined(vectors: Sequence[Float[np.ndarray, "*n _"]], shares: Sequence[float]) -> Float[np.ndarray, "*n e"]:
    """Concatenates the teachers' vectors, each scaled to unit length times the square root of its share. The shares add up to 1, so
    the result has unit length. The cosine of two results is the mean of the teachers' cosines, weighted by the shares."""
    scaled = []
    for array, share in zip(vectors, shares, strict=True):
        array = np.asarray(array, np.float32)
        scaled.append(share**0.5 * array / np.maximum(np.linalg.norm(array, axis=-1, keepdims=True), 1e-12))
    return np.concatenate(scaled, axis=-1)


def principal_axes(
    vectors: Float[np.ndarray, "n e"], *, power: float
) -> tuple[Float[np.ndarray, " e"], Float[np.ndarray, "e e"]]:
    """The mean of the vectors, and a matrix `[e, components]` that projects centred vectors onto their principal components, those of
    the largest variance first. Each component is divided by its standard deviation to the `power`; one that does not vary is zero."""
    # float64: `eigh` of float32 would blur the small variances, by which `power` then divides.
    vectors = np.asarray(vectors, np.float64)
    mean = vectors.mean(axis=0)
    variances, directions = np.linalg.eigh((vectors - mean).T @ (vectors - mean) / len(vectors))
    varies = variances > 1e-9 * variances[-1]  # smaller ones are rounding errors
    scale = np.power(variances, -power / 2, where=varies, out=np.zeros_like(variances))
    return mean, (directions * scale)[:, ::-1]  # `eigh` puts the smallest variance first


class Whitened:
    """Whitened targets: centred, projected on their first principal components, and scaled to unit length. Each component is divided by
    its standard deviation to the `power`: 0 only centres, 1 gives all components the same variance. Mean and components are
    those of at most `SAMPLE` evenly spaced rows. A target that equals the mean becomes zero."""

    def __init__(self, array: Float[np.ndarray, "rows _"] | Selected | Joined, *, power: float, components: int = 0):
        self._array = array
        self.shape = (array.shape[0], components or array.shape[1])  # 0: all components
        sample = array[np.unique(np.linspace(0, self.shape[0] - 1, SAMPLE, dtype=np.int64))]
        self._mean, kernel = principal_axes(sample, power=power)
        self._kernel = kernel[:, : self.shape[1]]

    def __getitem__(self, rows: Integer[np.ndarray, " n"]) -> Float[np.ndarray, "n e"]:
        projected = (np.asarray(self._array[rows], np.float64) - self._mean) @ self._kernel
        lengths = np.linalg.norm(projected, axis=-1, keepdims=True)
        return (projected / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)


Stored = Float[np.ndarray, "rows _"] | Selected | Joined | Whitened
"""Targets on disk; indexing with row numbers gives an array of vectors."""
