"""Chooses the evaluation that determines the best checkpoint of a run.

It is the one that `evals.best` names, such as STS-B dev, as the papers' presets do, or the dev pairs of QNLI or MRPC. By
default it is the first available of: the user's graded pairs, retrieval sets or entities; STS-B dev, if there is a data folder;
agreement with the teacher. The choice is made, and its data read, before training. With `evals.best=last`, the evaluation, if
there is one, is measured but the last checkpoint counts.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError, Task, errors_of
from jaxdistill.evals import agreement, auc, documents, entity, pairs, sts
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.entity import EntitySet

LAST = "last"
"""Value of `evals.best` for the last checkpoint."""
OWN = {
    pairs.METRIC: "--config.evals.pairs=FILE",
    pairs.AUC_METRIC: "--config.evals.pairs=FILE",
    **dict.fromkeys(documents.METRICS.values(), "--config.evals.retrieval=FOLDER"),
    entity.METRIC: "--config.evals.entities=FILE",
}
"""Maps metrics to the options that name the user's data for them."""


def named_sets(best: str, data_folder: str | Path | None) -> dict[str, pairs.GradedPairs]:
    """Reads the dev sets that are not the user's own: maps their metrics to their pairs.

    These are a set of `auc.DEV_METRICS` if `best` names it, from the data folder, and STS-B dev if `best` names it or there is
    a data folder; without one, it is read from the hub.
    """
    named = {}
    if best in auc.DEV_METRICS:
        if not data_folder:
            raise InputError(
                f"evals.best={best!r} needs a set from the data folder; set JAXDISTILL_DATA to that folder."
            )
        named[best] = auc.dev_pairs(data_folder, auc.DEV_METRICS[best])
    if data_folder or best == sts.DEV_METRIC:
        with errors_of(f"dev set {sts.DEV_METRIC}"):
            named[sts.DEV_METRIC] = sts.read_set("sts-b-dev", data_folder)
    return named


def available_tasks(
    *,
    named: Mapping[str, pairs.GradedPairs],
    graded: pairs.GradedPairs | None,
    agreement_task: Task | None,
    retrieval: Sequence[RetrievalSet] = (),
    entities: Sequence[EntitySet] = (),
    best: str = "",
    similarity: str = "cosine",
) -> dict[str, Task]:
    """Maps metrics to evaluations, the preferred one first; `named` are the sets of `named_sets`.

    Graded pairs are scored by AUC if `best` names that metric, or if `best` is empty and all scores are 0 or 1. Retrieval ranks
    by `similarity`.
    """
    tasks: dict[str, Task] = {}
    if graded is not None:
        is_binary = pairs.is_binary(graded)
        if best == pairs.AUC_METRIC and not is_binary:
            raise InputError(f"{graded.name}: {best} needs scores of 0 and 1; use {pairs.METRIC} for others.")
        if is_binary and best in ("", pairs.AUC_METRIC):
            tasks[pairs.AUC_METRIC] = partial(auc.area, graded, pairs.AUC_METRIC)
        else:
            tasks[pairs.METRIC] = partial(pairs.correlation, graded, pairs.METRIC)
    if retrieval:
        tasks[documents.METRICS[retrieval[0].split]] = partial(documents.mean_ndcg, retrieval, similarity=similarity)
    if entities:
        tasks[entity.METRIC] = partial(entity.mean_recall, entities)
    for metric, read in named.items():
        tasks[metric] = partial(auc.area if metric in auc.DEV_METRICS else pairs.correlation, read, metric)
    if agreement_task is not None:
        tasks[agreement.METRIC] = agreement_task
    return tasks


def chosen_metric(tasks: Mapping[str, Task], best_metric: str = "") -> str:
    """The named metric, or the first available one when none is named; higher is better. Empty for `LAST` without any."""
    if best_metric == LAST and not tasks:
        return ""
    wanted = "" if best_metric == LAST else best_metric
    if not tasks and not wanted:
        raise InputError(
            "no evaluation can choose the best checkpoint: give --config.evals.best=sts-b-dev/spearman (from JAXDISTILL_DATA "
            "or the hub) or last, --config.evals.pairs=FILE, --config.evals.retrieval=FOLDER, --config.evals.entities=FILE or "
            "--config.teacher.model=MODEL."
        )
    metric, agreeing = wanted or next(iter(tasks)), tasks.get(agreement.METRIC)
    measured = [*tasks, *(agreeing.metrics[1:] if isinstance(agreeing, agreement.AgreementTask) else ())]
    if metric not in measured and metric in OWN:
        raise InputError(
            f"evals.best={metric!r} needs your own data; give {OWN[metric]}, or another --config.evals.best."
        )
    if metric not in measured:
        raise InputError(
            f"evals.best={metric!r} is not measured in this run; measured: {', '.join([*measured, LAST])}."
            f"{did_you_mean(metric, measured)}"
        )
    return metric
