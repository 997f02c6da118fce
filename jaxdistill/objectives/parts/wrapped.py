"""The base class of objectives that wrap another one."""

import dataclasses

from jaxdistill.core import Objective, alias


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrapped(Objective):
    """Forwards the members of `objective` that a wrapper does not change."""

    objective: Objective

    student_views = alias("objective.student_views")
    teacher_views = alias("objective.teacher_views")
    queue_size = alias("objective.queue_size")
    reserve_rows = alias("objective.reserve_rows")
    reads = alias("objective.reads")
    unread = alias("objective.unread")
    couples_examples = alias("objective.couples_examples")
    any_width = alias("objective.any_width")
    scored = alias("objective.scored")
    logits = alias("objective.logits")
    similarity = alias("objective.similarity")
    largest_label = alias("objective.largest_label")
