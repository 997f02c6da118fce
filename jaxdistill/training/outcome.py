"""The result of a training: the student of its best checkpoint, or the mean of several, and its scores."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.core import InputError
from jaxdistill.training.run import Run
from jaxdistill.training.setup.sharding import sharded_embedder
from jaxdistill.workdir.bucket import Workdir
from jaxdistill.workdir.checkpoint import Checkpoints, Restored, mean_params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a training."""

    student: SentenceModel
    """The best checkpoint's student, or the mean over `evals.average`, with the parameters used for evaluation."""
    best_step: int
    """Step of the best checkpoint."""
    averaged: Sequence[int]
    """Steps of the checkpoints that were averaged, ascending; empty if the student is the best checkpoint's."""
    last_step: int
    scores: dict[str, float]
    """The student's value of each metric, in [-1, 1]."""
    before: dict[str, float]
    """Scores of the untrained student."""
    seconds: float
    """Duration of the training loop in this process, with its evaluations."""
    spent: dict[str, float]
    """Seconds of each activity of the loop, see `Goodput`."""


def open_checkpoints(run: Run, workdir: Workdir) -> Checkpoints:
    """The checkpoints of the run's workdir."""
    return Checkpoints(workdir, keep=run.config.run.keep, keep_steps=run.config.evals.average)


def outcome_of(
    run: Run, track: Mapping[str, Any], workdir: Workdir, *, seconds: float, spent: Mapping[str, float]
) -> Outcome:
    """The student that a finished training ends with, and its scores.

    Args:
      track: the record of evaluations.
      seconds, spent: fields of `Outcome`.
    """
    checkpoints = open_checkpoints(run, workdir)
    last = checkpoints.restore(run.layout.like, run.layout.shardings)
    assert last is not None  # a training saves its last step
    averaged, best_step = sorted(set(run.config.evals.average)), track["best_step"]
    params = mean_params(_params_of(run, checkpoints, last, averaged or [best_step]))
    student = run.config.student.evaluated(run.models.student.with_params(params))
    checkpoints.close()
    scores = track["scores"]
    if averaged:
        embed = sharded_embedder(
            student, run.config.run, mesh=run.program.mesh, compute_dtype=run.program.compute_dtype
        ).as_embed()
        scores = run.dev.scores(embed)
    return Outcome(
        student=student,
        best_step=best_step,
        averaged=averaged,
        last_step=last.step,
        scores=scores,
        before=track["before"],
        seconds=seconds,
        spent=dict(spent),
    )


def _params_of(
    run: Run, checkpoints: Checkpoints, last: Restored, steps: Sequence[int]
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the student's parameters after each of these steps; `last` is the latest checkpoint, already read."""
    for step in steps:
        try:
            restored = (
                last if step == last.step else checkpoints.restore(run.layout.like, run.layout.shardings, step=step)
            )
        except InputError as error:
            if run.config.evals.average:
                raise InputError(f"{error} evals.average={run.config.evals.average} names it; name others.") from error
            others = ", ".join(str(kept) for kept in checkpoints.steps if kept != step)
            raise InputError(
                f"{error} It is the best one; python -m jaxdistill.export exports another: --step={others}."
            ) from error
        assert restored is not None  # a missing step is an error
        params = {path: meshes.on_host(array) for path, array in restored.state.params["student"].items()}
        del restored  # or two whole states would be in memory
        yield params
