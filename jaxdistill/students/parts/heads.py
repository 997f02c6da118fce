"""Options of a sentence encoder's vectors: the head (a dense layer to the teacher's width), nested widths and rounding."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config.ranges import Count, CountOrNone
from jaxdistill.core import InputError, Objective, Params
from jaxdistill.objectives.parts.nested import Nested
from jaxdistill.objectives.parts.rounded import Rounding
from jaxdistill.students.parts.fitted import fitted_head
from jaxdistill.students.parts.student import Ground, Student, numbers_of
from jaxdistill.surgery import resizing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Headed(Student):
    """A student with sentence vectors, optionally mapped to the teacher's width by a head."""

    head: Literal["none", "tanh", "linear"] = "none"
    """`none`, or a dense layer to the teacher's width: `tanh` (ConGen) or `linear`."""
    head_init: Literal["uniform", "normal", "identity", "fitted"] = "uniform"
    """Initial values of the head. `uniform`: PyTorch's default (ConGen). `normal`: standard deviation 0.02 (SimCSE).
    `identity`: for a student that starts aligned with the teacher. `fitted`: least squares from the student's to the
    teacher's vectors on up to 4,096 sentences of the text, for a linear head on another model than the teacher."""
    head_of: CountOrNone = 0
    """With several teachers, the number of the one whose part of the head alone is evaluated and exported, such as 2 for
    the second, so that the student searches that teacher's index. 0: the whole head."""
    keep_head: bool = True
    """Evaluate and export the student with its head, as ConGen does. False: without it."""
    dims: tuple[Count, ...] = ()
    """Nested widths to train besides the full width, in rising order, such as (64, 128, 256) (Matryoshka)."""
    dims_targets: Literal["truncated", "projected"] = "projected"
    """Target of a nested width. `truncated`: the teacher's vectors cut to that width. `projected`: the teacher's full
    vectors, reached through one matrix per width that is not exported."""
    vectors: Rounding = "float"
    """How an index will store the vectors; the objective sees them rounded so, at every nested width. `float`: not rounded.
    `int8`: one byte per number, 255 steps over each dimension's range. `binary`: one bit per number, its sign. The export
    gives float vectors in any case."""

    @property
    def truncates(self) -> bool:
        return bool(self.dims) and self.dims_targets == "truncated"

    @property
    def exports_head(self) -> bool:
        return self.head != "none" and self.keep_head

    def wrapped(self, objective: Objective) -> Objective:
        if not self.dims and self.vectors == "float":
            return objective
        if self.head_of or (self.head != "none" and not self.keep_head):
            other = f"student.head_of={self.head_of}" if self.head_of else "student.keep_head=False"
            raise InputError(
                f"student.dims={self.dims} and student.vectors={self.vectors} train the vectors of the whole head, but "
                f"{other} exports other vectors; leave out one or the other (--config.student.dims='()' "
                "--config.student.vectors=float)."
            )
        return Nested(objective=objective, dims=self.dims, targets=self.dims_targets, vectors=self.vectors)

    def with_head(self, ground: Ground, model: SentenceModel) -> SentenceModel:
        """The model with its untrained head: as wide as the targets, or, without a teacher, as its own vectors (SimCSE)."""
        if self.head == "none":
            return model
        init = self.head_init if ground.setting.computed else "uniform"
        if self.head_init == "fitted" and ground.teacher.transforms:
            raise InputError(
                "student.head_init=fitted maps to the teacher's own vectors, not to whitened or reduced ones; leave out "
                "teacher.whiten and teacher.components, or set --config.student.head_init=uniform."
            )
        width = ground.teacher.width(ground.widths) or model.definition.embedding_width
        activation = "tanh" if self.head == "tanh" else "identity"
        fitted = fitted_head(ground, model) if init == "fitted" else None
        return resizing.add_head(model, width, key=ground.key("head"), activation=activation, init=init, fitted=fitted)

    def check(self, *, has_teacher: bool) -> None:
        super().check(has_teacher=has_teacher)
        if self.head_init != "fitted" or self.head == "none":
            return
        if self.head != "linear":
            raise InputError(
                f"student.head_init=fitted needs a linear head, got student.head={self.head}; set --config.student.head=linear."
            )
        if not has_teacher:
            raise InputError(
                "student.head_init=fitted needs a teacher model that gives vectors; use --config.student.head_init=uniform."
            )

    def evaluated(self, student: SentenceModel, widths: Sequence[int]) -> SentenceModel:
        if self.head_of:
            return resizing.head_part(student, numbers_of(self.head_of, widths))
        return student if self.exports_head or self.head == "none" else resizing.drop_head(student)

    def evaluated_params(self, student: SentenceModel, params: Params, widths: Sequence[int]) -> Params:
        if self.head_of:
            return {**params, **resizing.cut_head(student.definition, params, numbers_of(self.head_of, widths))}
        return params
