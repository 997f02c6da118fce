"""The base class of hooks, and the schedule of logging, evaluating and saving."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxdistill.config import Config, Evals
from jaxdistill.core import Array, InputError, TrainState

LEAST_POINTS = 3
"""Fewest times that a short run logs its metrics; its curves could otherwise be a single point."""


class Diverged(InputError):
    """The loss is not finite, or the student cannot be evaluated any more."""


class Hook:
    """An activity of a training besides updates. At each of these moments the loop calls all hooks in one fixed order."""

    def at_start(self, step: int, state: TrainState, *, is_new: bool) -> None:
        """Called after `step` updates, before this process's first one; `is_new`: no checkpoint was restored."""

    def before_step(self, step: int, state: TrainState) -> None:
        """Called before the update with number `step`, counted from 1."""

    def after_step(self, step: int, state: TrainState, metrics: Mapping[str, Array]) -> None:
        """Called after update number `step` is dispatched; devices may still be computing state and metrics."""

    def reason_to_stop(self) -> str:
        """Why the training should stop early; empty: it should not."""
        return ""

    def at_interrupt(self, step: int, state: TrainState) -> None:
        """Called after `step` updates if a signal ends the training."""

    def close(self) -> None:
        """Called when the loop ends, also after an error."""


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
        log_every=min(config.run.log_every, max(steps // LEAST_POINTS, 1)),
        evaluate_every=config.evals.every,
        save_every=config.run.save_every,
        averaged=config.evals.average,
    )


def patience_of(evals: Evals, steps_per_epoch: int) -> int:
    """Number of evaluations without a better score after which a run stops; 0: it never does."""
    of_epochs = math.ceil(round(evals.patience_epochs * steps_per_epoch / evals.every, 6))
    return min((count for count in (evals.patience, of_epochs) if count), default=0)
