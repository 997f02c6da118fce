"""Spreads one call over the processes of a run: each computes a part on its own devices, and all get the whole result."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from jaxtyping import Float

from jaxdistill.cluster import processes
from jaxdistill.cluster.mesh import all_gathered
from jaxdistill.core import InputError, PairScorer, RoleEmbed, Scorer

Result = TypeVar("Result")


class ProblemOfAll(InputError):
    """An `InputError` that all processes raise in the same call."""


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

    If it fails in one process, such as for a file that cannot be read, the others fail too instead of waiting forever.

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
    """Gathers the facts of each process; raises `ProblemOfAll` in all if one reports a problem."""
    told = processes.gathered([problem, *facts])
    if problem := next((said for said, *_ in told if said), ""):
        raise ProblemOfAll(problem)
    return [values for _, *values in told]


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
