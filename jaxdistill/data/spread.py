"""Spreads encoding over the processes of a run: the blocks of a long file of vectors, or the sentences of one call.

Of a file, each process computes every n-th block with its own devices, without a collective, and writes it beside the file. The
first process, which holds the file's lock, appends the blocks in their order. So the file has the bytes that one process would have
written, and a killed run continues after the last block in it.

Of one call (`in_parts`), each process computes a part with its own devices, and gets the parts of all. So do those that do not
share the folder of a file, block by block: of each folder, the first process that sees it writes.
"""

import contextlib
import glob
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float

from jaxdistill import processes
from jaxdistill.core import InputError, RoleEmbed, Scorer
from jaxdistill.data.vectors import VectorFile
from jaxdistill.files import unwritable
from jaxdistill.mesh import from_all

Job = TypeVar("Job")


class Block(NamedTuple):
    """Some rows of the file."""

    vectors: Float[np.ndarray, "n e"]
    counts: Mapping[str, int]
    """As in `VectorFile.append`."""


class Opened(NamedTuple):
    """A file of vectors as one process sees it."""

    path: Path
    rows: int
    done: int
    """Rows that it held when it was opened."""
    file: VectorFile | None
    """To append to; None in a process that leaves this to an earlier one."""
    together: bool
    """Whether the run has several processes, and all fill this one file."""

    @property
    def written(self) -> int:
        """Rows that it holds now, as far as this process knows."""
        return self.file.done if self.file else self.done

    def append(self, block: Block) -> None:
        assert self.file is not None  # only the process that has it receives blocks
        self.file.append(*block)


def opened(open_file: Callable[[], VectorFile], folder: Path) -> Opened:
    """Opens a file in `folder`: once for all processes that share the folder. All must call this together."""
    if processes.count() == 1:
        file = open_file()
        return Opened(file.path, file.rows, file.done, file, False)
    owner, told = folder_owner(folder), []
    owners = processes.gathered(owner)
    file = None
    for turn in sorted({*owners}):  # in turns: two runs on the same hosts would each wait for a file that the other has
        file = open_file() if turn == owner == processes.index() else file
        told.append(processes.gathered([str(file.path), file.rows, file.done] if file else None)[turn])
    path, rows, done = told[sorted({*owners}).index(owner)]
    return Opened(Path(path), rows, done, file, len(told) == 1)


def in_turns(jobs: Iterable[Job], compute: Callable[[Job], Block], target: Opened) -> Iterator[Block]:
    """Yields the blocks of all jobs in order, in the process that appends them, and none in the others.

    Args:
      jobs: the same in every process, one for each block.
      compute: makes a block with this process's own devices.
      target: the file that the blocks go into.
    """
    if not target.together:
        yield from map(compute, jobs)
        return
    rest, turn = iter(jobs), 0
    while round_jobs := list(islice(rest, processes.count())):
        own = compute(round_jobs[processes.index()]) if processes.index() < len(round_jobs) else None
        if own and not processes.is_first():
            _write(_part(target.path, turn, processes.index()), own.vectors)
        counts = processes.gathered(dict(own.counts) if own else None)
        if own and processes.is_first():
            yield own
            for index in range(1, len(round_jobs)):
                yield Block(_taken(_part(target.path, turn, index)), counts[index])
        turn += 1
    if processes.is_first():
        for left in target.path.parent.glob(f"{glob.escape(target.path.name)}.[0-9]*.[0-9]*.npy"):
            left.unlink(missing_ok=True)  # of a killed run
    processes.gathered("all blocks are in the file")


def in_parts(rows: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Rows that each process computes a part of with its own devices, whole in all; all must call this together.

    Args:
      rows: how many there are, the same in every process.
      compute: makes some of the rows.

    Raises:
      InputError: in every process, if `compute` raises it in one.
    """
    if processes.count() == 1 or not rows:
        return compute(slice(0, rows))
    each = -(-rows // processes.count())
    begin, own, problem = min(processes.index() * each, rows), np.zeros(0), ""
    if begin < rows:
        try:
            own = np.asarray(compute(slice(begin, begin + each)))
        except InputError as error:
            problem = str(error)
    told = processes.gathered([problem, own.shape[1:], own.dtype.str])
    if problem := next((said for said, *_ in told if said), ""):
        raise InputError(problem)
    _, width, dtype = told[0]  # the last ones may have no rows
    filled = np.zeros((each, *width), dtype)
    filled[: len(own)] = own.reshape(len(own), *width)
    return from_all(filled)[:rows]


def over_processes(embed: RoleEmbed | Scorer) -> Any:
    """A model of which each process of the run computes a part; all must call it together, with the same sentences."""
    if processes.count() == 1:
        return embed
    if isinstance(embed, Scorer):
        return _SpreadScorer(embed)

    def embed_parts(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        def compute(part: slice) -> Float[np.ndarray, "n e"]:
            return embed(sentences[part], role=role if isinstance(role, str) else role[part])

        return in_parts(len(sentences), compute)

    return embed_parts


class _SpreadScorer(NamedTuple):
    """A scorer of pairs of which each process scores a part."""

    whole: Any
    """A `Scorer` that refuses to embed, as cross-encoders and ensembles do."""

    def score(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        return in_parts(len(first), lambda part: self.whole.score(first[part], second[part]))

    def __call__(self, sentences: Sequence[str]):
        return self.whole(sentences)


@contextlib.contextmanager
def first_before_others(folder: Path) -> Iterator[None]:
    """The first process goes through the body alone, and then the others, which find in `folder` what it made; all at once
    where they do not share the folder."""
    together = is_shared(folder)
    if together and not processes.is_first():
        processes.gathered("the first one is done")
    yield
    if together and processes.is_first():
        processes.gathered("the first one is done")


def is_shared(folder: Path) -> bool:
    """Whether the run has several processes that all see the folder of the first one."""
    return processes.count() > 1 and not any(processes.gathered(folder_owner(folder)))


def folder_owner(folder: Path) -> int:
    """The number of the first process that sees the folder of this one; all must call this together."""
    name, problem = "", None
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made = tempfile.NamedTemporaryFile(dir=folder, prefix=f".{processes.index()}.")
            name = Path(stack.enter_context(made).name).name
        except OSError as error:
            problem = error
        seen = [name and (folder / name).exists() for name in processes.gathered(name)]
        processes.gathered("all have looked")
    if problem and not any(seen):
        raise unwritable(folder, problem) from problem
    return seen.index(True)


def _part(path: Path, turn: int, index: int) -> Path:
    # A new name in each turn: another host may still see the file that had the name before.
    return path.with_name(f"{path.name}.{turn}.{index}.npy")


def _write(part: Path, vectors: np.ndarray) -> None:
    try:
        np.save(part, vectors)
    except OSError as error:
        raise unwritable(part, error) from error


def _taken(part: Path) -> np.ndarray:
    vectors = np.load(part)
    part.unlink()
    return vectors
