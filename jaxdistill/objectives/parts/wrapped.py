"""What an objective that wraps another one passes on."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxdistill.core import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapped(Objective):
    """The members of `objective` that a wrapper does not change."""

    objective: Objective

    @property
    def student_views(self) -> Sequence[str]:
        return self.objective.student_views

    @property
    def teacher_views(self) -> Sequence[str]:
        return self.objective.teacher_views

    @property
    def reserve_rows(self) -> int:
        return self.objective.reserve_rows

    @property
    def reads(self) -> Sequence[str]:
        return self.objective.reads

    @property
    def unread(self) -> Mapping[str, str]:
        return self.objective.unread

    @property
    def couples_examples(self) -> bool:
        return self.objective.couples_examples

    @property
    def any_width(self) -> bool:
        return self.objective.any_width

    @property
    def scored(self) -> Sequence[str]:
        return self.objective.scored

    @property
    def logits(self) -> bool:
        return self.objective.logits

    @property
    def largest_label(self) -> float:
        return self.objective.largest_label


def innermost(objective: Objective) -> Objective:
    """The objective inside all wrappers, which has the options."""
    while isinstance(objective, Wrapped):
        objective = objective.objective
    return objective
