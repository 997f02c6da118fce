"""Spreads encoding over the processes of a run: the blocks of a long file of vectors, or the sentences of one call.

Of a file, each process computes every n-th block with its own devices, and writes it beside the file. The first process, which
holds the file's lock, appends the blocks in their order. So the file has the bytes that one process would have written, and a
killed run continues after the last block in it. Processes that do not share the file's folder send each other their blocks, and of
each folder the first process that sees it writes a file.

Of one call (`in_parts`), each process computes a part with its own devices, and gets the parts of all.
"""

import glob
import itertools
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from jaxtyping import Float

from jaxdistill import processes
from jaxdistill.core import InputError, RoleEmbed, Scorer
from jaxdistill.data.vectors import VectorFile
from jaxdistill.files import unwritable
from jaxdistill.mesh import all_gathered, broadcast
from jaxdistill.shared_folder import folder_owner

Job = TypeVar("Job")
Result = TypeVar("Result")


class ProblemOfAll(InputError):
    """An `InputError` that every process raises in the same call."""


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
    """Rows that it held when it was opened; where there are several files, the least of them."""
    file: VectorFile | None
    """To append to; None in a process that leaves this to an earlier one."""
    shared: bool
    """Whether all processes of the run see its folder."""

    @property
    def written(self) -> int:
        """Rows that it holds now, as far as this process knows."""
        return self.file.done if self.file else self.done

    def append(self, block: Block) -> None:
        assert self.file is not None  # only the process that has it receives blocks
        self.file.append(*block)


def opened(open_file: Callable[[], VectorFile], folder: Path | None) -> Opened:
    """Opens a file in `folder`: once for all processes that share the folder. All must call this together.

    Args:
      folder: None for one that the first process alone needs.
    """
    if processes.count() == 1:
        file = open_file()
        return Opened(file.path, file.rows, file.done, file, True)
    owner, told = folder_owner(folder) if folder else 0, {}
    owners, places = zip(*processes.gathered([owner, f"{socket.gethostname()}:{folder}"]), strict=True)
    file = None
    # One after the other, in the hosts' order: two runs on the same hosts would each wait for a file that the other has.
    for turn in sorted({*owners}, key=lambda number: (places[number], number)):
        file = open_file() if turn == owner == processes.index() else file
        told[turn] = processes.gathered([str(file.path), file.rows, file.done] if file else None)[turn]
    path, rows, _ = told[owner]
    return Opened(
        Path(path), rows, min(done for *_, done in told.values()), file, folder is not None and len(told) == 1
    )


def in_turns(jobs: Iterable[Job], compute: Callable[[Job], Block], target: Opened) -> Iterator[Block]:
    """Yields the blocks of all jobs in order, in the processes that append them, and none in the others.

    Args:
      jobs: the same in every process, one for each block; the first one follows `target.done`.
      compute: makes a block with this process's own devices.
      target: the file that the blocks go into.
    """
    if processes.count() == 1:
        yield from map(compute, jobs)
        return
    rest, place, written = iter(jobs), processes.index(), target.done
    for turn in itertools.count():
        round_jobs = list(islice(rest, processes.count()))
        if not round_jobs:
            break
        own = compute(round_jobs[place]) if place < len(round_jobs) else None
        blocks = _through_files(own, target, turn) if target.shared else _sent(own)
        for block in blocks:
            new = max(target.file.done - written, 0) if target.file else len(block.vectors)
            written += len(block.vectors)
            if new < len(block.vectors):  # its own file may have been ahead of others'
                yield Block(block.vectors[new:], block.counts)
    if target.shared and processes.is_first():
        for left in target.path.parent.glob(f"{glob.escape(target.path.name)}.[0-9]*.[0-9]*.npy"):
            left.unlink(missing_ok=True)  # of a killed run
    processes.gathered("all blocks are in the file")


def _through_files(own: Block | None, target: Opened, turn: int) -> Iterator[Block]:
    """The blocks of a turn, in the first process; the others write theirs beside the file."""
    if own and not processes.is_first():
        _write(_part(target.path, turn, processes.index()), own.vectors)
    counts = processes.gathered(dict(own.counts) if own else None)
    if own and processes.is_first():
        yield own
        for index in range(1, len(counts)):
            if counts[index] is not None:
                yield Block(_taken(_part(target.path, turn, index)), counts[index])


def _sent(own: Block | None) -> Iterator[Block]:
    """The blocks of a turn, in every process, one after the other: memory holds two of them."""
    told = processes.gathered([own.vectors.shape, own.vectors.dtype.str, dict(own.counts)] if own else None)
    for index, said in enumerate(told):
        if said is None:
            return
        shape, dtype, counts = said
        vectors = own.vectors if own and index == processes.index() else np.zeros(shape, dtype)
        content = np.ascontiguousarray(vectors).view(np.uint8).ravel()
        yield Block(broadcast(content, source=index).view(dtype).reshape(shape), counts)


def in_parts(rows: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Computes rows in parts, one per process on its own devices, and returns all rows in each. All must call this together.

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
    told = _exchanged(problem, own.shape[1:], own.dtype.str)
    width, dtype = told[0]  # the last ones may have no rows
    filled = np.zeros((each, *width), dtype)
    filled[: len(own)] = own.reshape(len(own), *width)
    return all_gathered(filled)[:rows]


def together(work: Callable[[], Result]) -> Result:
    """Runs `work`, which may call `in_parts` any number of times, and returns its result. All must call this together.

    If it fails in one process, for instance because a file cannot be read, the others fail too instead of waiting for it.

    Raises:
      InputError: in every process, if `work` raises it in one.
    """
    if processes.count() == 1:
        return work()
    problem, result = "", None
    try:
        result = work()
    except ProblemOfAll:
        raise
    except InputError as error:
        problem = str(error)
    _exchanged(problem)  # others may be in a call of `in_parts`, which learns it there
    return cast(Result, result)


def _exchanged(problem: str, *facts: Any) -> list[list[Any]]:
    """The facts of each process; raises `ProblemOfAll` if one has a problem."""
    told = processes.gathered([problem, *facts])
    if problem := next((said for said, *_ in told if said), ""):
        raise ProblemOfAll(problem)
    return [found for _, *found in told]


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
