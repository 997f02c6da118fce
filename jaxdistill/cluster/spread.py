"""Spreads one call over the processes of a run, and finds out which of them see the same folder."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from jaxdistill.cluster import processes
from jaxdistill.cluster.mesh import all_gathered
from jaxdistill.core import InputError, PairScorer, RoleEmbed, Scorer
from jaxdistill.files import writing


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
      InputError: in every process, if `compute` raises it in one, or if they do not compute the same.
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
    facts = processes.gathered([problem, rows, part.shape[1:], part.dtype.str])
    if problem := next((problem for problem, *_ in facts if problem), ""):
        raise InputError(problem)
    if any(other != rows for _, other, *_ in facts):  # one of them could not read what the others compute
        raise InputError(f"process {processes.index()} computes {rows} rows, another one does not; see their errors.")
    *_, width, dtype = facts[0]  # the last ones may have no rows
    filled = np.zeros((size, *width), dtype)
    filled[: len(part)] = part.reshape(len(part), *width)
    return all_gathered(filled)[:rows]


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
