"""Finds options that have no effect because of a training's other options."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxdistill.config import Config, flat, flat_stages
from jaxdistill.options.overrides import ALL
from jaxdistill.training.setup.objective import plain_objective

SWITCHES = (
    ("student.head", "none", ("student.head_init", "student.keep_head")),
    ("student.embedding", 0, ("student.embedding_init",)),
    ("student.dims", [], ("student.dims_targets",)),
)
"""(option, value that switches a feature off, options that are then not read)."""

log = logging.getLogger(__name__)


def warn_of_unread(stages: Sequence[Config], given: Iterable[str], *, flag: str = "--config.") -> None:
    """Logs a warning for each given option (a dotted name) that has no effect in any stage.

    Args:
      flag: prefix of a name in the warning.
    """
    reasons = unread_of_stages(stages)
    for name in sorted(set(given) & reasons.keys()):
        log.warning("warning: %s%s has no effect, because %s", flag, name, reasons[name])


def unread_of_stages(stages: Sequence[Config]) -> dict[str, str]:
    """Maps each unread option of any stage, by the name that `with_options` takes, to the reason."""
    of_each = [unread(stage) for stage in stages]
    if len(stages) == 1:
        return of_each[0] | {f"{ALL}{name}": why for name, why in of_each[0].items()}
    found = {f"stage{number}.{name}": why for number, one in enumerate(of_each, start=1) for name, why in one.items()}
    everywhere = [
        name
        for name in of_each[0]
        if all(name in one or name not in flat(stage) for one, stage in zip(of_each, stages, strict=True))
    ]
    return found | {f"{ALL}{name}": of_each[0][name] for name in everywhere}


def unread(config: Config) -> dict[str, str]:
    """Maps each unread option of one stage, by dotted name, to the reason."""
    objective = plain_objective(config)
    found = {f"objective.{name}": why for name, why in objective.unread.items()} | dict(_of_parts(config))
    if not objective.teacher_views:
        names = ("teacher.dropout", "teacher.normalize", "student.dims_targets")
        found |= dict.fromkeys(names, f"objective {config.objective['name']} has no teacher")
    return found


def _of_parts(config: Config) -> Iterator[tuple[str, str]]:
    options = flat(config)
    for option, off, names in SWITCHES:
        if options.get(option) == off:
            yield from ((name, f"{option} is {'empty' if off == [] else off}") for name in names)
    if options.get("student.heads") == options.get("student.intermediate") == 0:
        yield "student.prune_by", "student.heads and student.intermediate are 0"
    if config.run.steps:
        yield "run.epochs", f"run.steps is {config.run.steps}"
    if config.optimizer.warmup_steps:
        yield "optimizer.warmup_fraction", f"optimizer.warmup_steps is {config.optimizer.warmup_steps}"


def training_of(stages: Sequence[Config]) -> Mapping[str, Any]:
    """All options that have an effect; if these are equal, so are the trainings."""
    ignored = unread_of_stages(stages)
    return {name: value for name, value in flat_stages(stages).items() if name not in ignored}
