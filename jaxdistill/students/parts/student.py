"""The base class of all students' options, with defaults for what a kind does not do."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.core import CountOrNone, InputError, Objective, refuse
from jaxdistill.surgery import resizing
from jaxdistill.teachers.parts.teacher import ModelContext, Teacher

Examples = Callable[[SentenceModel], tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n e"]]]
"""Gives a model's vectors, as pooled, of some training sentences, and their targets."""


class StudentInputs(NamedTuple):
    """What a student is made from."""

    context: ModelContext
    teacher: Teacher
    """The options of the teacher."""
    teachers: Sequence[SentenceModel]
    """Models whose vectors are the targets; `student.model=teacher` means the first one."""

    @property
    def widths(self) -> tuple[int, ...]:
        """The width of each teacher's vectors."""
        return widths_of(self.teachers)

    def key(self, part: str) -> jax.Array:
        """The random key of the `body`, the `head` or the `tables`."""
        keys = jax.random.split(jax.random.key(self.context.seed ^ 0x57D), 3)
        return keys[("body", "head", "tables").index(part)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Student:
    """The options of a student. A kind overrides what it does differently; everything but `kind` and `make` has a default."""

    kind: str
    """The kind of student: a file of `jaxdistill/students`, or your own class as `my_file.py:MyStudent`."""
    model: str = dataclasses.field(default="", kw_only=False)
    """Folder, also at `s3://` or `gs://`, `package:NAME/PATH` or hub name. `teacher`: starts from the teacher's
    weights. `previous` or `stage2`, in a later stage: the best student of an earlier stage."""
    pooling: str = ""
    """Pooling of token states, such as `mean` or `cls`; empty: the checkpoint's, or the teacher's if `model` is
    `teacher`. Required if the checkpoint states none."""
    max_length: CountOrNone = 0
    """Maximum tokens per sentence that the student reads after training, in evaluations and as exported, up to its
    number of positions. 0: as many as in training; a static student reads all."""

    computes = True
    """Whether `make` runs a model, except for a draft, see `ModelContext.draft`."""
    reads_pairs = False
    """Whether it is a cross-encoder, which has no vectors and no prompts."""
    export_prompt = False
    """Whether the export's default prompt is the one used in training."""
    dims = ()
    """Nested widths."""

    def make(self, inputs: StudentInputs) -> SentenceModel:
        """The untrained student, with its head."""
        raise NotImplementedError

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        """The untrained student, fitted to the targets."""
        return student

    def loaded(self, inputs: StudentInputs, *, pooling: str | None = None) -> SentenceModel:
        """The model that the student starts from; its vectors are normalised only if the teacher's are.

        Args:
          pooling: overrides the option `pooling`.
        """
        pooling = self.pooling if pooling is None else pooling
        if not self.model:
            raise InputError(
                f"student.model is empty; a student of kind {self.kind} starts from a model: give "
                "--config.student.model=teacher, or a folder, package:NAME/PATH or hub name."
            )
        if self.model == "teacher":
            model = resizing.with_pooling(inputs.teachers[0], pooling) if pooling else inputs.teachers[0]
        else:
            model = load_model(inputs.context.located(self.model), pooling=pooling, option="student.pooling")
        return model if inputs.teacher.normalize else model.as_pooled()

    def check(self, teacher: Teacher) -> None:
        """Raises `InputError` for options that exclude each other, or do not go with the teacher's."""
        refuse([
            (self.model == "teacher" and not teacher.vector_models,
             "student.model='teacher' needs a teacher model; without one, name the student's checkpoint."),
        ])  # fmt: skip

    def in_training(self, student: SentenceModel) -> SentenceModel:
        """The student with its dropout rates for training."""
        return student

    def wrapped(self, objective: Objective) -> Objective:
        """The objective, extended to nested widths if the student trains them."""
        return objective

    def evaluated(self, student: SentenceModel) -> SentenceModel:
        """The student as it is evaluated: with its head or without it, and with the training's prompt."""
        return student

    def exported(self, student: SentenceModel) -> SentenceModel:
        """The evaluated student as it is exported: with the checkpoint's default prompt, unless `export_prompt` is set."""
        own = student.provenance.default_prompt
        return student if self.export_prompt else dataclasses.replace(student, default_prompt=own)

    def with_length(self, student: SentenceModel, trained: int) -> SentenceModel:
        """The student with its maximum length after training, which its number of positions bounds.

        Args:
          trained: maximum tokens per sentence in training.
        """
        architecture = student.definition.architecture
        length = self.max_length or (student.max_length if architecture.is_static else trained)
        return student.with_length(min(length, architecture.longest))


def widths_of(teachers: Sequence[SentenceModel]) -> tuple[int, ...]:
    """The width of each teacher's vectors."""
    return tuple(teacher.definition.embedding_width for teacher in teachers)
