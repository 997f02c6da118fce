"""Spreads one call over the processes of a run, and finds out which of them see the same folder."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError, PairScorer, RoleEmbed, Scorer
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.mesh import all_gathered
from jaxdistill.core.files import writing

Result = TypeVar("Result")


class ProblemOfAll(InputError):
    """An `InputError` that all processes raise in the same call."""


def folder_owner(folder: Path) -> int:
    """Index of the first process that sees the same folder as this one; all must call this together."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{processes.index()}.") as file:
            seen = [(folder / name).exists() for name in processes.gathered(Path(file.name).name)]
            processes.wait("all have looked")
    return seen.index(True)


def in_parts(rows: int, compute: Callable[[slice], np.ndarray]) -> np.ndarray:
    """Computes rows in parts, one per process, and returns all rows in every process. All must call this together.

    Args:
      rows: number of rows, the same in every process.
      compute: computes a slice of the rows.

    Raises:
      InputError: in every process, if `compute` raises it in one.
    """
    if processes.count() == 1 or not rows:
        return compute(slice(0, rows))
    size = -(-rows // processes.count())
    begin, part, problem = min(processes.index() * size, rows), np.zeros(0), ""
    if begin < rows:
        try:
            part = np.asarray(compute(slice(begin, begin + size)))
        except InputError as error:
            problem = str(error)
    width, dtype = _exchanged(problem, part.shape[1:], part.dtype.str)[0]  # the last ones may have no rows
    filled = np.zeros((size, *width), dtype)
    filled[: len(part)] = part.reshape(len(part), *width)
    return all_gathered(filled)[:rows]


def together(work: Callable[[], Result]) -> Result:
    """Runs `work`, which may call `in_parts` any number of times, and returns its result. All must call this together.

    If it fails in one process, such as for a file that cannot be read, the others fail too instead of waiting forever.

    Raises:
      InputError: in every process, if `work` raises it in one.
    """
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
    """Gathers the facts of each process; raises `ProblemOfAll` in all if one reports a problem."""
    gathered = processes.gathered([problem, *facts])
    if problem := next((reported for reported, *_ in gathered if reported), ""):
        raise ProblemOfAll(problem)
    return [values for _, *values in gathered]


def over_processes(embed: RoleEmbed | Scorer) -> Any:
    """Divides a model's sentences among the processes; all must call the result together, with the same sentences."""
    if processes.count() == 1:
        return embed
    if isinstance(embed, Scorer):

        def score(first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
            return in_parts(len(first), lambda part: embed.score(first[part], second[part]))

        return PairScorer(score, cast(Any, embed))

    def embed_parts(sentences: Sequence[str], *, role: str | Sequence[str] = "") -> Float[np.ndarray, "n e"]:
        def compute(part: slice) -> Float[np.ndarray, "n e"]:
            return embed(sentences[part], role=role if isinstance(role, str) else role[part])

        return in_parts(len(sentences), compute)

    return embed_parts
