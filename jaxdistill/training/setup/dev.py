"""The dev evaluations, which judge the student while it trains."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill import paths
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import Config, Evals
from jaxdistill.core import LABELS, InputError, Objective, Task
from jaxdistill.data import sources
from jaxdistill.data.sources import split_specs
from jaxdistill.evals import agreement, beir, beir_files, dev_metric, entity, pairs, sts
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.beir_files import SetFiles
from jaxdistill.evals.entity import EntitySet
from jaxdistill.evals.small_forms import SmallForm
from jaxdistill.students.parts.student import numbers_of
from jaxdistill.training.run import Dev
from jaxdistill.training.setup.targets import Targets

HELD_OUT = 2000
"""Sentences held out of training to measure agreement with the teacher, unless a file of sentences is given."""
LEAST_HELD_OUT = 4
"""Fewest sentences on which agreement is measured."""


class DevSets(NamedTuple):
    """The data for choosing the best checkpoint: the user's own, and the sets that others made."""

    named: Mapping[str, pairs.GradedPairs]
    """Of `dev_metric.named_sets`."""
    pairs: pairs.GradedPairs | None
    retrieval: Sequence[RetrievalSet]
    entities: Sequence[EntitySet]
    agreement: Sequence[Sequence[str]] = ()
    """The first and second sentences of `evals.agreement`; empty without it."""


def check_dev(
    config: Config, sets: DevSets, teachers: Sequence[SentenceModel], objective: Objective, *, held_out: int
) -> None:
    """Raises `InputError` if no evaluation will be able to choose the best checkpoint; needs no targets."""
    if config.evals.agreement and not teachers:
        raise InputError("evals.agreement needs a teacher model; your own vectors only cover the training text.")
    sentences, expected = sum(map(len, sets.agreement)) or held_out, None
    if sentences >= LEAST_HELD_OUT and (teachers or objective.teacher_views):
        nearest = None if config.teacher.scores_pairs else np.empty((sentences, 0), np.int64)
        expected = agreement.AgreementTask(first=(), second=(), teacher=np.empty(0), nearest=nearest)
    make_dev(config, sets, expected)


def make_dev(config: Config, sets: DevSets, agreement_task: Task | None, *, similarity: str = "cosine") -> Dev:
    """The dev evaluations of a run, for a student of this similarity; raises `InputError` if none can choose the best checkpoint."""
    tasks = dev_metric.available_tasks(
        named=sets.named,
        graded=sets.pairs,
        retrieval=sets.retrieval,
        entities=sets.entities,
        agreement_task=agreement_task,
        best=config.evals.best,
        similarity=similarity,
    )
    form = None if config.student.vectors == "float" else SmallForm(dims=0, dtype=config.student.vectors)
    return Dev(tasks=tasks, best=dev_metric.chosen_metric(tasks, config.evals.best), form=form)


def dev_agreement(config: Config, targets: Targets, sets: DevSets, held_out: Integer[np.ndarray, " n"]) -> Task | None:
    """Agreement with the teacher on the pairs of a file, or on held-out sentences, each paired with its neighbour and a random
    one. A student evaluated by its segment for one of several teachers (`student.head_of`) is compared with that teacher."""
    compared, head_of = slice(None), config.student.head_of
    if head_of:
        compared = numbers_of(head_of, [embedder.width for embedder in targets.embedders])
    if config.evals.agreement:
        embed = targets.embed
        assert embed is not None  # `check_dev` has found a teacher
        return agreement.agreement_task(lambda texts: embed(texts)[:, compared], *sets.agreement)
    if len(held_out) < LEAST_HELD_OUT or (targets.embed is None and not targets.arrays):
        return None
    if targets.views == (LABELS,):
        pair = targets.scored[:2]
        first, second = (tuple(targets.text.text(column, row) for row in held_out) for column in pair)
        roles = (targets.text.roles(pair[0], held_out), targets.text.roles(pair[1], held_out))
        return agreement.AgreementTask(first=first, second=second, teacher=targets.rows(held_out)[:, 0], roles=roles)
    texts = [targets.text.text(targets.column, row) for row in held_out]
    vectors = dict(zip(texts, targets.rows(held_out)[:, compared], strict=True))
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
                f"evals.{option}={given} is for students with vectors, but student.kind={config.student.kind} is a cross-encoder; leave it out."
            )
    entities = sources.files_of("evals.entities", split_specs(config.evals.entities))
    read = sources.read(split_specs(config.evals.agreement), line_bytes=config.data.max_line_bytes)
    sentences = [text for (text,) in read if text.strip()]
    sets = DevSets(
        pairs=pairs.read_pairs(sources.file_of("evals.pairs", config.evals.pairs)) if config.evals.pairs else None,
        retrieval=[beir.read_set(files) for files in retrieval_files(config.evals)],
        entities=[entity.read_entities(path) for path in entities],
        named=dev_metric.named_sets(config.evals.best, sts_data_folder()) if named else {},
        agreement=agreement.neighbouring_pairs(sentences) if config.evals.agreement else (),
    )
    if named and not any(sets) and not config.teacher.is_given:  # no agreement either
        dev_metric.chosen_metric({}, config.evals.best)
    return sets


def dev_set_is_here(config: Config) -> bool:
    """Whether no dev set has to come from the hub."""
    return config.evals.best != sts.DEV_METRIC or sts_data_folder() is not None


def retrieval_files(evals: Evals) -> list[SetFiles]:
    """The files of the sets that `evals.retrieval` names."""
    specs = [os.path.expanduser(spec) for spec in split_specs(evals.retrieval)]
    split, option = evals.retrieval_split or "dev", "--config.evals.retrieval_split"
    named = beir_files.named_sets(specs).items()
    return [replace(beir_files.set_files(spec, split=split, option=option), name=name) for spec, name in named]


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
