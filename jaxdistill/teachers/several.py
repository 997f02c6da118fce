"""Several teachers whose stored vectors are concatenated, or compared one by one."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from jaxdistill.config.ranges import Positive
from jaxdistill.core import Objective, refuse
from jaxdistill.objectives.parts.each_teacher import EachTeacher
from jaxdistill.teachers.parts.encoder import StoredVectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Several(StoredVectors):
    """Several models, of any width and tokenizer, whose vectors are computed once and cached on disk."""

    kind: str = "several"
    weights: tuple[Positive, ...] = ()
    """Relative weight of each of several teachers; empty: equal weights."""
    combine: Literal["concatenate", "each"] = "concatenate"
    """How several teachers are combined. `concatenate`: the target is one vector, the concatenation of the teachers'
    unit vectors; its cosines are the weighted mean of theirs. `each`: the student's vector has a segment per teacher
    (with `student.head=linear`, a head per teacher). The objective compares each segment with its teacher, and the loss
    is the weighted mean."""

    takes_several = True

    def check(self) -> None:
        super().check()
        count = len(self.models)
        refuse([
            (self.weights and len(self.weights) != count,
             f"teacher.weights={self.weights} has {len(self.weights)} weights, but teacher.model names {count} teachers; give one weight for each."),
            (not self.normalize and not self.compares_each,
             f"teacher.normalize=False: {count} teachers' vectors are joined at unit length; set --config.teacher.normalize=True."),
            (self.transforms and self.compares_each,
             "teacher.whiten and teacher.components mix the numbers of several teachers; set --config.teacher.combine=concatenate."),
        ])  # fmt: skip

    @property
    def compares_each(self) -> bool:
        return self.combine == "each"

    def shares(self) -> tuple[float, ...]:
        weights = self.weights or (1.0,) * len(self.models)
        return tuple(weight / sum(weights) for weight in weights)

    def wrapped(self, objective: Objective, widths: Sequence[int]) -> Objective:
        if self.combine == "concatenate":
            return objective
        return EachTeacher(objective=objective, widths=tuple(widths), shares=self.shares())
