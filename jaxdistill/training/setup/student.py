"""Builds the models of a run: the teachers, the labellers and the untrained student."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer

from jaxdistill.checkpoints.folder import check_exportable, save
from jaxdistill.checkpoints.model import CardFacts, SentenceModel, load_model
from jaxdistill.cluster import processes
from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.files import MARK, replacing
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.students.parts.student import StudentInputs
from jaxdistill.teachers.parts.teacher import ModelContext
from jaxdistill.training.setup.targets import Targets
from jaxdistill.workdir.folder import STUDENT, read_note, stage_export

log = logging.getLogger(__name__)

FITTING_SAMPLE = 4096
"""Sentences to which a student is fitted: ten times the numbers of a usual vector."""


def context_of(config: Config, workdir: pathlib.Path, *, draft: bool = False) -> ModelContext:
    """The context in which a run's models are made: data and run options, views, earlier stages."""
    return ModelContext(
        data=config.data,
        student_views=config.objective.student_views,
        seed=config.run.seed,
        precision=config.run.precision,
        located=lambda name: stage_export(name, workdir),
        draft=draft,
    )


def load_teachers(config: Config, workdir: pathlib.Path) -> tuple[SentenceModel, ...]:
    """The models whose vectors are the targets; none for your own vectors, for labels, and without a teacher."""
    return config.teacher.load(context_of(config, workdir))


def load_labellers(config: Config, workdir: pathlib.Path) -> list[SentenceModel]:
    """The models that score the text's pairs; none if targets are vectors or your own."""
    return config.teacher.labellers(context_of(config, workdir))


def make_student(
    config: Config, teachers: Sequence[SentenceModel], workdir: pathlib.Path, *, draft: bool = False
) -> SentenceModel:
    """The untrained student; raises `InputError` for what cannot be made or exported.

    Args:
      teachers: models whose vectors are the targets; `student.model=teacher` means the first one.
      draft: see `ModelContext.draft`.
    """
    inputs = StudentInputs(context_of(config, workdir, draft=draft), config.teacher, teachers)
    student = _compared_as_trained(config, config.student.make(inputs), teachers)
    check_exportable(config.student.evaluated(student).definition)
    return student


def _compared_as_trained(config: Config, student: SentenceModel, teachers: Sequence[SentenceModel]) -> SentenceModel:
    """The student with the similarity by which its training compares vectors; logs if checkpoints state another."""
    similarity = config.objective.similarity or (teachers[0] if teachers else student).definition.similarity
    # Targets of several teachers have unit length, transformed ones other lengths than the teacher's.
    if len(teachers) > 1 or config.teacher.transforms:
        similarity = "cosine"
    definition = dataclasses.replace(student.definition, similarity=similarity)
    others = [model.source for model in (*teachers, student) if model.definition.similarity == "dot"]
    if others and definition.similarity == "cosine":
        log.warning(
            "%s: its checkpoint compares by dot product, but this training by cosine, by which the student is evaluated and exported",
            others[0],
        )
    return dataclasses.replace(student, definition=definition)


def write_student(student: SentenceModel, workdir: pathlib.Path) -> None:
    """Writes the untrained student to the workdir, from where resumed runs, exports and means of checkpoints read it."""
    if (workdir / STUDENT).is_dir():
        return
    own = student.provenance
    facts = {"source": own.source, "default_prompt": own.default_prompt, "card": own.card}
    with replacing(workdir / STUDENT, facts) as folder:
        save(student, folder, keeps_form=True)


def read_student(config: Config, workdir: pathlib.Path) -> SentenceModel | None:
    """The untrained student in the workdir; None before the run has written it."""
    folder = workdir / STUDENT
    if not all(processes.gathered(folder.is_dir())):  # some may have no copy of the workdir
        return None
    facts = read_note(folder / MARK)
    if not facts:
        raise InputError(f"{folder / MARK} is missing or damaged; restore {folder}, or give another --workdir.")
    student = load_model(str(folder), own_parts=config.run.parts)
    base_models, licence, languages = facts["card"]
    provenance = dataclasses.replace(
        student.provenance,
        source=facts["source"],
        default_prompt=facts["default_prompt"],
        card=CardFacts(tuple(base_models), licence, tuple(languages)),
    )
    return dataclasses.replace(student, provenance=provenance)


def fitted_student(
    config: Config, student: SentenceModel, targets: Targets, trained: Integer[np.ndarray, " n"]
) -> SentenceModel:
    """The untrained student, fitted to the targets of evenly spaced rows among those that it will be trained on."""

    def examples(model: SentenceModel) -> tuple[np.ndarray, np.ndarray]:
        rows = trained[np.unique(np.linspace(0, len(trained) - 1, FITTING_SAMPLE, dtype=np.int64))]
        embedder = Embedder(model.as_pooled(), compute_dtype=dtype_of(config.run.precision))
        return targets.embedded(embedder.encode, rows), targets.rows(rows)

    return config.student.fitted(student, examples) if targets.width else student
