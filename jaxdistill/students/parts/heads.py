"""Options of a sentence encoder's vectors: the head (a dense layer to the teacher's width) and nested widths.

A linear head can be fitted by least squares, so that a student of another family starts in its teacher's space.
"""

import dataclasses
import logging
from typing import Literal

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.checkpoints.modules import sentence_tensors
from jaxdistill.core import Count, InputError, Objective, refuse
from jaxdistill.objectives.parts.nested import Nested
from jaxdistill.students.parts.student import Examples, Student, StudentInputs
from jaxdistill.surgery import resizing
from jaxdistill.teachers.parts.teacher import Teacher

RIDGE = 0.01
"""Penalty on the squared kernel, relative to the mean variance of the student's numbers."""


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Headed(Student):
    """A student with sentence vectors, optionally mapped to the teacher's width by a head."""

    head: Literal["none", "tanh", "linear"] = "none"
    """`none`, or a dense layer to the teacher's width: `tanh` (ConGen) or `linear`."""
    head_init: Literal["uniform", "normal", "identity", "fitted"] = "uniform"
    """Initial values of the head. `uniform`: PyTorch's default (ConGen). `normal`: standard deviation 0.02 (SimCSE).
    `identity`: for a student that starts aligned with the teacher. `fitted`: least squares from the student's vectors to
    the targets of up to 4,096 sentences of the text, for a linear head on another model than the teacher."""
    keep_head: bool = True
    """Evaluate and export the student with its head, as ConGen does. False: without it."""
    dims: tuple[Count, ...] = ()
    """Nested widths to train besides the full width, such as (64, 128, 256) (Matryoshka)."""
    dims_targets: Literal["truncated", "projected"] = "projected"
    """Target of a nested width. `truncated`: the teacher's vectors cut to that width. `projected`: the teacher's full
    vectors, reached through one matrix per width that is not exported."""

    def wrapped(self, objective: Objective) -> Objective:
        if not self.dims:
            return objective
        return Nested(objective=objective, dims=tuple(sorted({*self.dims})), targets=self.dims_targets)

    def with_head(self, inputs: StudentInputs, model: SentenceModel) -> SentenceModel:
        """The model with its untrained head: as wide as the targets, or, without a teacher, as its own vectors (SimCSE)."""
        if self.head != "none":
            init = "uniform" if self.head_init == "fitted" else self.head_init  # which `fitted` replaces
            width = inputs.teacher.width(inputs.widths) or model.definition.embedding_width
            activation = "tanh" if self.head == "tanh" else "identity"
            model = resizing.add_head(model, width, key=inputs.key("head"), activation=activation, init=init)
        if max(self.dims, default=0) > (width := model.definition.embedding_width):
            raise InputError(f"student.dims={self.dims} goes beyond the student's vectors of {width} numbers.")
        return model

    def check(self, teacher: Teacher) -> None:
        super().check(teacher)
        models, fitted = len(teacher.vector_models), self.head_init == "fitted" and self.head != "none"
        leaves_head = self.head != "none" and not self.keep_head
        refuse([
            (self.dims and leaves_head,
             f"student.dims={self.dims} trains the vectors of the head, but student.keep_head=False exports others; leave out one or "
             "the other (--config.student.dims='()')."),
            (self.dims and teacher.scores_pairs,
             "student.dims: a score of a pair has no nested widths; leave it empty with labels as targets."),
            (self.dims and models > 1 and self.dims_targets == "truncated",
             "student.dims: the first numbers of several teachers' vectors are the first teacher's; set "
             "--config.student.dims_targets=projected."),
            (fitted and self.head != "linear",
             f"student.head_init=fitted needs a linear head, got student.head={self.head}; set --config.student.head=linear."),
            (fitted and not models,
             "student.head_init=fitted maps to the vectors of a teacher; name one with --config.teacher.model, or set "
             "--config.student.head_init=uniform."),
        ])  # fmt: skip

    def fitted(self, student: SentenceModel, examples: Examples) -> SentenceModel:
        if self.head == "none" or self.head_init != "fitted":
            return student
        affine = affine_map(*examples(resizing.drop_head(student)))
        *before, head = student.definition.dense
        fitted = {path: affine[path.rpartition("/")[2]] for path in sentence_tensors(len(before), head)}
        return student.with_params({**student.params, **fitted})

    def evaluated(self, student: SentenceModel) -> SentenceModel:
        return student if self.keep_head or self.head == "none" else resizing.drop_head(student)


def affine_map(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n e"]) -> dict[str, np.ndarray]:
    """`kernel` and `bias` that map a student's pooled vectors to targets by least squares."""
    kernel, bias = least_squares(x, y)
    mapped = x @ kernel + bias
    cosines = np.sum(mapped * y, 1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(y, axis=1)
    log.info("student: fitted to %s targets; mean cosine to the teacher %.3f", f"{len(x):,}", cosines.mean())
    return {"kernel": kernel, "bias": bias}


def least_squares(
    x: Float[np.ndarray, "n d"], y: Float[np.ndarray, "n e"]
) -> tuple[Float[np.ndarray, "d e"], Float[np.ndarray, " e"]]:
    """Kernel and bias of the ridge regression of `y` on `x`."""
    # float64: a Gram matrix squares the condition number.
    center = x.mean(0, dtype=np.float64)
    apart = x - center
    gram = apart.T @ apart
    penalty = RIDGE * np.trace(gram) / len(gram) or 1.0  # equal rows span nothing
    kernel = np.linalg.solve(gram + penalty * np.eye(len(gram)), apart.T @ (y - y.mean(0, dtype=np.float64)))
    return kernel.astype(np.float32), (y.mean(0) - center @ kernel).astype(np.float32)
