"""Finds options that have no effect because of a training's other options."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from jaxdistill.config import Config, flat
from jaxdistill.core import switched_off
from jaxdistill.options.overrides import placed
from jaxdistill.training.setup.objective import plain_objective

log = logging.getLogger(__name__)


def warn_of_unread(stages: Sequence[Config], given: Iterable[str], *, flag: str = "--config.") -> None:
    """Logs a warning for each given option, named as `with_options` takes it, that has no effect in any of its stages.

    Args:
      flag: prefix of a name in the warning.
    """
    for name in sorted(set(given)):
        if reason := why_unread(stages, name):
            log.warning("warning: %s%s has no effect, because %s", flag, name, reason)


def why_unread(stages: Sequence[Config], name: str) -> str:
    """Why an option has no effect in any of its stages; empty if it has one."""
    option, numbers = placed(name, len(stages))
    reasons = [unread(stages[number]).get(option, "") for number in numbers if option in flat(stages[number])]
    return reasons[0] if reasons and all(reasons) else ""


def unread(config: Config) -> dict[str, str]:
    """Maps each unread option of one stage, by dotted name, to the reason."""
    objective = plain_objective(config)
    of_sections = {"objective": objective.unread, "student": switched_off(config.student, "student")}
    reasons = {f"{section}.{name}": why for section, of_one in of_sections.items() for name, why in of_one.items()}
    pairs = (("run.epochs", "run.steps"), ("run.epochs", "run.minutes"))
    for option, steps in (*pairs, ("optimizer.warmup_fraction", "optimizer.warmup_steps")):
        if number := flat(config)[steps]:
            reasons[option] = f"{steps} is {number}"
    if not objective.teacher_views:
        names = ("teacher.dropout", "teacher.normalize", "teacher.whiten", "teacher.components", "student.dims_targets")
        reasons |= dict.fromkeys(names, f"objective {config.objective['kind']} has no teacher")
    return reasons


def training_of(stages: Sequence[Config]) -> list[dict[str, Any]]:
    """The options of each stage that are read: equal ones are the same training."""
    return [{name: value for name, value in flat(stage).items() if name not in unread(stage)} for stage in stages]
