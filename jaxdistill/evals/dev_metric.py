"""Which evaluation decides the best checkpoint of a run?

The user's own graded pairs if there are any, else STS-B dev if a data folder is there, else agreement with the teacher;
or the one that is named, such as the dev pairs of QNLI or MRPC. The choice, and that its data can be read, is settled
before training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError, Task
from jaxdistill.evals import agreement, auc, pairs, sts


@dataclass(frozen=True, kw_only=True)
class DevEvaluation:
    """The evaluation of a run and the metric of it that chooses the best checkpoint; higher is better."""

    metric: str
    task: Task


def available_tasks(
    *, data_folder: str | Path | None, graded: pairs.GradedPairs | None, agreement_task: Task | None, best: str = ""
) -> dict[str, Task]:
    """Metric name to evaluation, the preferred one first. Sets are read here, so that errors come before training.

    Graded pairs are judged by AUC where `best` says so, or says nothing and all scores are 0 or 1; sets of
    `auc.DEV_METRICS` only where `best` names one.
    """
    tasks: dict[str, Task] = {}
    if graded is not None:
        if best == auc.PAIRS_METRIC or (not best and auc.is_binary(graded)):
            tasks[auc.PAIRS_METRIC] = auc.graded_task(graded)
        else:
            tasks[pairs.METRIC] = pairs.PairsTask(pairs=graded)
    if best in auc.DEV_METRICS:
        if not data_folder:
            raise InputError(f"evals.best={best!r} is of a set in the data folder; name that in JAXDISTILL_DATA.")
        tasks[best] = auc.dev_task(data_folder, auc.DEV_METRICS[best])
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
