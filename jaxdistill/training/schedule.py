"""The steps after which a training logs, evaluates and saves."""

import math
from collections.abc import Collection
from dataclasses import dataclass

from jaxdistill.config import Config, Evals

MIN_POINTS = 3
"""Fewest times that a short run logs its metrics; its curves could otherwise be a single point."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps after which metrics are written, the student is evaluated, and the state is saved."""

    steps: int
    log_every: int
    evaluate_every: int
    save_every: int
    """Steps between saves besides those after evaluations; 0: none."""
    averaged: Collection[int] = ()
    """Steps of `evals.average`, which are saved too."""

    def logs(self, step: int) -> bool:
        return step % self.log_every == 0 or step == self.steps

    def evaluates(self, step: int) -> bool:
        return step % self.evaluate_every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        regular = self.save_every > 0 and step % self.save_every == 0
        return regular or self.evaluates(step) or step in self.averaged

    def evaluations_after(self, step: int) -> int:
        return -(-self.steps // self.evaluate_every) - step // self.evaluate_every if step < self.steps else 0

    def saves_after(self, step: int) -> int:
        """Number of saves after a step that `save_every` causes."""
        return self.steps // self.save_every - step // self.save_every if self.save_every else 0


def schedule_of(config: Config, steps: int) -> Schedule:
    """The schedule of a run of `steps` steps."""
    return Schedule(
        steps=steps,
        log_every=min(config.run.log_every, max(steps // MIN_POINTS, 1)),
        evaluate_every=config.evals.every,
        save_every=config.run.save_every,
        averaged=config.evals.average,
    )


def patience_of(evals: Evals, steps_per_epoch: int) -> int:
    """Number of evaluations without a better score after which a run stops; 0: it never does."""
    of_epochs = math.ceil(round(evals.patience_epochs * steps_per_epoch / evals.every, 6))
    return min((count for count in (evals.patience, of_epochs) if count), default=0)
