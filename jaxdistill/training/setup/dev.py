"""The dev evaluations, which judge the student while it trains, and the one that determines the best checkpoint.

It is the one that `evals.best` names, such as STS-B dev, as the papers' presets do, or the dev pairs of QNLI or MRPC. By
default it is the first available of: the user's graded pairs, retrieval sets or entities; STS-B dev, if there is a data folder;
agreement with the teacher. The choice is made, and its data read, before training. With `evals.best=last`, the evaluation, if
there is one, is measured but the last checkpoint counts.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill import paths
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cli import did_you_mean
from jaxdistill.config import Config, Evals
from jaxdistill.core import LABELS, InputError, Objective, Task, errors_of
from jaxdistill.data.sources import file_of, files_of, split_specs
from jaxdistill.data.text import read
from jaxdistill.evals import agreement, documents, pairs, retrieval, sts
from jaxdistill.evals.documents import RetrievalSet, SetFiles
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.retrieval import EntitySet
from jaxdistill.training.run import LAST, Dev
from jaxdistill.training.setup.targets import Targets

HELD_OUT = 2000
"""Sentences held out of training to measure agreement with the teacher, unless a file of sentences is given."""
MIN_HELD_OUT = 4
"""Fewest sentences on which agreement is measured."""
NEEDED = {
    pairs.METRIC: "--config.evals.pairs=FILE",
    pairs.AUC_METRIC: "--config.evals.pairs=FILE",
    **dict.fromkeys(documents.METRICS.values(), "--config.evals.retrieval=FOLDER"),
    retrieval.METRIC: "--config.evals.entities=FILE",
}
"""Maps metrics to the options that name the user's data for them."""


class DevSets(NamedTuple):
    """The data for choosing the best checkpoint: the user's own, and the sets that others made."""

    named: Mapping[str, GradedPairs] = {}
    """Of `named_sets`."""
    pairs: GradedPairs | None = None
    retrieval: Sequence[RetrievalSet] = ()
    entities: Sequence[EntitySet] = ()
    agreement: Sequence[Sequence[str]] = ()
    """The first and second sentences of `evals.agreement`; empty without it."""


def named_sets(best: str, data_folder: pathlib.Path | None) -> dict[str, GradedPairs]:
    """Maps metrics to the dev pairs that are not the user's own: a set of `pairs.DEV_METRICS` if `best` names it, and STS-B dev
    if `best` names it or there is a data folder; without one, it is read from the hub."""
    named = {}
    if best in pairs.DEV_METRICS:
        if not data_folder:
            raise InputError(
                f"evals.best={best!r} needs a set from the data folder; set JAXDISTILL_DATA to that folder."
            )
        named[best] = pairs.dev_pairs(data_folder, pairs.DEV_METRICS[best])
    if data_folder or best == sts.DEV_METRIC:
        with errors_of(f"dev set {sts.DEV_METRIC}"):
            named[sts.DEV_METRIC] = sts.read_set("sts-b-dev", data_folder)
    return named


def available_tasks(
    sets: DevSets, agreement_task: Task | None = None, *, best: str = "", similarity: str = "cosine"
) -> dict[str, Task]:
    """Maps metrics to evaluations, the preferred one first.

    Graded pairs are scored by AUC if `best` names that metric, or if `best` is empty and all scores are 0 or 1. Retrieval ranks
    by `similarity`.
    """
    tasks: dict[str, Task] = {}
    if sets.pairs is not None:
        is_binary = pairs.is_binary(sets.pairs)
        if best == pairs.AUC_METRIC and not is_binary:
            raise InputError(f"{sets.pairs.name}: {best} needs scores of 0 and 1; use {pairs.METRIC} for others.")
        if is_binary and best in ("", pairs.AUC_METRIC):
            tasks[pairs.AUC_METRIC] = partial(pairs.area, sets.pairs, pairs.AUC_METRIC)
        else:
            tasks[pairs.METRIC] = partial(pairs.correlation, sets.pairs, pairs.METRIC)
    if sets.retrieval:
        metric = documents.METRICS[sets.retrieval[0].split]
        tasks[metric] = partial(documents.mean_ndcg, sets.retrieval, similarity=similarity)
    if sets.entities:
        tasks[retrieval.METRIC] = partial(retrieval.mean_recall, sets.entities)
    for metric, named in sets.named.items():
        tasks[metric] = partial(pairs.area if metric in pairs.DEV_METRICS else pairs.correlation, named, metric)
    if agreement_task is not None:
        tasks[agreement.METRIC] = agreement_task
    return tasks


def chosen_metric(tasks: Mapping[str, Task], best: str = "") -> str:
    """The named metric, or the first available one when none is named; higher is better. Empty for `LAST` without any."""
    if best == LAST:
        return next(iter(tasks), "")
    if not tasks and not best:
        raise InputError(
            "no evaluation can choose the best checkpoint: give --config.evals.best=sts-b-dev/spearman (from JAXDISTILL_DATA "
            "or the hub) or last, --config.evals.pairs=FILE, --config.evals.retrieval=FOLDER, --config.evals.entities=FILE or "
            "--config.teacher.model=MODEL."
        )
    metric, agreeing = best or next(iter(tasks)), tasks.get(agreement.METRIC)
    measured = [*tasks, *(agreeing.metrics[1:] if isinstance(agreeing, agreement.AgreementTask) else ())]
    if metric not in measured and metric in NEEDED:
        raise InputError(
            f"evals.best={metric!r} needs your own data; give {NEEDED[metric]}, or another --config.evals.best."
        )
    if metric not in measured:
        raise InputError(
            f"evals.best={metric!r} is not measured in this run; measured: {', '.join([*measured, LAST])}."
            f"{did_you_mean(metric, measured)}"
        )
    return metric


def check_dev(
    config: Config, sets: DevSets, teachers: Sequence[SentenceModel], objective: Objective, *, held_out: int
) -> None:
    """Raises `InputError` if no evaluation will be able to choose the best checkpoint; needs no targets."""
    if config.evals.agreement and not teachers:
        raise InputError("evals.agreement needs a teacher model; your own vectors only cover the training text.")
    sentences, expected = sum(map(len, sets.agreement)) or held_out, None
    if sentences >= MIN_HELD_OUT and (teachers or objective.teacher_views):
        nearest = None if config.teacher.scores_pairs else np.empty((sentences, 0), np.int64)
        expected = agreement.AgreementTask(first=(), second=(), teacher=np.empty(0), nearest=nearest)
    make_dev(config, sets, expected)


def make_dev(config: Config, sets: DevSets, agreement_task: Task | None, *, similarity: str = "cosine") -> Dev:
    """The dev evaluations of a run, for a student of this similarity; raises `InputError` if none can choose the best checkpoint."""
    tasks = available_tasks(sets, agreement_task, best=config.evals.best, similarity=similarity)
    return Dev(tasks=tasks, best=chosen_metric(tasks, config.evals.best))


def dev_agreement(config: Config, targets: Targets, sets: DevSets, held_out: Integer[np.ndarray, " n"]) -> Task | None:
    """Agreement with the teacher on the pairs of a file, or on held-out sentences, each paired with its neighbour and a random
    one."""
    if config.evals.agreement:
        embed = targets.embed
        assert embed is not None  # `check_dev` has found a teacher
        return agreement.agreement_task(embed, *sets.agreement)
    if len(held_out) < MIN_HELD_OUT or (targets.embed is None and not targets.arrays):
        return None
    if targets.views == (LABELS,):
        pair = targets.scored[:2]
        first, second = (tuple(targets.text.text(column, row) for row in held_out) for column in pair)
        roles = (targets.text.roles(pair[0], held_out), targets.text.roles(pair[1], held_out))
        return agreement.AgreementTask(first=first, second=second, teacher=targets.rows(held_out)[:, 0], roles=roles)
    texts = [targets.text.text(targets.column, row) for row in held_out]
    vectors = dict(zip(texts, targets.rows(held_out), strict=True))
    roles = dict(zip(texts, targets.text.roles(targets.column, held_out), strict=True))
    return agreement.held_out_task(vectors, seed=config.run.seed, roles=roles)


def read_dev_sets(config: Config, *, named: bool = True) -> DevSets:
    """Reads the dev sets; raises `InputError` if one cannot be used, or none can choose the best checkpoint.

    Args:
      named: read the sets that are not the user's own, too, which may be on the hub.
    """
    for option in ("retrieval", "entities"):
        if (given := getattr(config.evals, option)) and config.student.reads_pairs:
            raise InputError(
                f"evals.{option}={given} is for students with vectors, but the student {config.student.kind} is a cross-encoder; leave it out."
            )
    entities = files_of("evals.entities", split_specs(config.evals.entities))
    rows = read(split_specs(config.evals.agreement), cache=config.data.cache_folder)
    sentences = [text for (text,) in rows if text.strip()]
    sets = DevSets(
        pairs=pairs.read_pairs(file_of("evals.pairs", config.evals.pairs)) if config.evals.pairs else None,
        retrieval=[documents.read_set(files) for files in retrieval_files(config.evals)],
        entities=[retrieval.read_entities(path) for path in entities],
        named=named_sets(config.evals.best, sts_data_folder()) if named else {},
        agreement=agreement.neighbouring_pairs(sentences) if config.evals.agreement else (),
    )
    if named and not any(sets) and not config.teacher.is_given:  # no agreement either
        chosen_metric({}, config.evals.best)
    return sets


def retrieval_files(evals: Evals) -> list[SetFiles]:
    """The files of the sets that `evals.retrieval` names."""
    specs = [os.path.expanduser(spec) for spec in split_specs(evals.retrieval)]
    option = "--config.evals.retrieval_split"
    return [documents.set_files(spec, split=evals.retrieval_split or "dev", option=option) for spec in specs]


def held_out_rows(evals: Evals, rows: int) -> int:
    """Number of sentences to hold out of training for agreement with the teacher; 0 if another metric judges the run."""
    by_sts_b = evals.best == sts.DEV_METRIC or sts_data_folder() is not None
    judged_otherwise = evals.pairs or evals.retrieval or evals.entities or by_sts_b
    if evals.agreement or (judged_otherwise and evals.best not in agreement.METRICS):
        return 0
    return min(HELD_OUT, rows // 20 * 2)


def sts_data_folder() -> pathlib.Path | None:
    """The data folder, checked for STS sets; None without one."""
    folder = paths.data_folder()
    if folder is not None:
        sts.sts_folder(folder)
    return folder
