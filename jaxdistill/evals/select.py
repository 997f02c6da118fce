"""Which evaluation decides the best checkpoint of a run?

The user's own graded pairs if there are any, else STS-B dev if a data folder is there, else agreement with the teacher;
or the one that is named. The choice, and that its data can be read, is settled before training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError, Task
from jaxdistill.evals import agreement, pairs, sts


@dataclass(frozen=True, kw_only=True)
class DevEvaluation:
    """The evaluation of a run and the metric of it that chooses the best checkpoint; higher is better."""

    metric: str
    task: Task


def available_tasks(
    *, data_folder: str | Path | None, pairs_file: str | Path | None, agreement_task: Task | None
) -> dict[str, Task]:
    """Metric name to evaluation, the preferred one first. Files are read here, so that errors come before training."""
    tasks: dict[str, Task] = {}
    if pairs_file:
        tasks[pairs.METRIC] = pairs.PairsTask(pairs=pairs.read_pairs(pairs_file))
    if data_folder:
        tasks[sts.DEV_METRIC] = sts.StsDevTask(pairs=sts.read_set("sts-b-dev", data_folder))
    if agreement_task is not None:
        tasks[agreement.METRIC] = agreement_task
    return tasks


def choose(tasks: Mapping[str, Task], best_metric: str = "") -> DevEvaluation:
    """The named evaluation, or the first available one when none is named."""
    if not tasks:
        raise InputError(
            "nothing can choose the best checkpoint: give a data folder with STS-B, graded pairs, or a teacher."
        )
    metric = best_metric or next(iter(tasks))
    if metric not in tasks:
        known = ", ".join(tasks)
        raise InputError(
            f"best_metric={metric!r} is not measured in this run; {known} is.{did_you_mean(metric, tasks)}"
        )
    return DevEvaluation(metric=metric, task=tasks[metric])
