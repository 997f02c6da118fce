"""Options that have no effect under the other options of a training."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from jaxdistill.config import Config, flat
from jaxdistill.training.objective import plain_objective
from jaxdistill.training.several import vector_teachers

log = logging.getLogger(__name__)


def warn_of_unread(config: Config, given: Iterable[str], *, flag: str = "--config.") -> None:
    """Logs a warning for each option among the given ones, by their dotted names, that has no effect.

    Args:
      flag: what goes before a name.
    """
    reasons = unread(config)
    for name in sorted(set(given) & reasons.keys()):
        log.warning("warning: %s%s has no effect, because %s", flag, name, reasons[name])


def unread(config: Config) -> dict[str, str]:
    """The unread options of all stages, by their dotted names, each with the reason."""
    objective = plain_objective(config)
    found = {f"objective.{name}": why for name, why in objective.unread.items()} | dict(_of_parts(config))
    if not objective.teacher_views:
        names = ("teacher.targets", "teacher.dropout", "teacher.normalize", "student.dims_targets")
        found |= dict.fromkeys(names, f"objective {config.objective['name']} has no teacher")
    return found | ({f"then.{name}": why for name, why in unread(config.then).items()} if config.then else {})


def _of_parts(config: Config):
    student, optimizer, run = config.student, config.optimizer, config.run
    if student.head in ("none", "pair"):
        yield "student.head_init", f"student.head is {student.head}"
    if student.head == "none":
        yield "student.keep_head", "student.head is none"
    if not student.embedding:
        yield "student.embedding_init", "student.embedding is 0"
    if student.width:
        yield "student.prune_by", f"student.width is {student.width}: nothing is pruned"
    elif not student.heads and not student.intermediate:
        yield "student.prune_by", "student.heads and student.intermediate are 0"
    if student.static:
        yield "student.drophead", f"student.static is {student.static}: there are no attention heads"
    if not student.dims:
        yield "student.dims_targets", "student.dims is empty"
    if vector_teachers(config.teacher) < 2:
        yield "teacher.combine", "there is one teacher at most"
    if run.steps:
        yield "run.epochs", f"run.steps is {run.steps}"
    if optimizer.warmup_steps:
        yield "optimizer.warmup_fraction", f"optimizer.warmup_steps is {optimizer.warmup_steps}"


def training_of(config: Config) -> Mapping[str, Any]:
    """All options that are read: equal mappings are the same training."""
    ignored = unread(config)
    return {name: value for name, value in flat(config).items() if name not in ignored}
