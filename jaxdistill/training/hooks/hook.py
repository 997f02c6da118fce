"""The base class of hooks, and when they are due."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jaxdistill.config import Config, Evals
from jaxdistill.core import Array, InputError, TrainState

LEAST_POINTS = 3
"""Logged metrics of a short run, whose curves would be a single point otherwise."""


class Diverged(InputError):
    """The loss is not finite, or the student is of no use any more."""


class Hook:
    """Something that a training does beside its updates. The loop calls all hooks at each moment, in one order."""

    def at_start(self, step: int, state: TrainState, *, is_new: bool) -> None:
        """After `step` updates, before the first one of this process; `is_new`: no checkpoint was restored."""

    def before_step(self, step: int, state: TrainState) -> None:
        """Before the update that makes `step` of them."""

    def after_step(self, step: int, state: TrainState, metrics: Mapping[str, Array]) -> None:
        """After it; state and metrics may still be in the making on the devices."""

    def reason_to_stop(self) -> str:
        """Why the training needs no more steps; empty: it does."""
        return ""

    def at_interrupt(self, step: int, state: TrainState) -> None:
        """After `step` updates, where a signal ends the training."""

    def close(self) -> None:
        """At the end of the loop, however it ends."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps after which metrics are written, the student is evaluated, and the state is saved."""

    steps: int
    log_every: int
    evaluate_every: int
    save_every: int
    """0: after evaluations alone."""

    def logs(self, step: int) -> bool:
        return step % self.log_every == 0 or step == self.steps

    def evaluates(self, step: int) -> bool:
        return step % self.evaluate_every == 0 or step == self.steps

    def saves(self, step: int) -> bool:
        return self.evaluates(step) or (self.save_every > 0 and step % self.save_every == 0)

    def evaluations_after(self, step: int) -> int:
        return -(-self.steps // self.evaluate_every) - step // self.evaluate_every if step < self.steps else 0

    def saves_after(self, step: int) -> int:
        """Saves of `save_every` alone."""
        return self.steps // self.save_every - step // self.save_every if self.save_every else 0


def schedule_of(config: Config, steps: int) -> Schedule:
    """The schedule of a run of `steps` steps."""
    return Schedule(
        steps=steps,
        log_every=min(config.run.log_every, max(steps // LEAST_POINTS, 1)),
        evaluate_every=config.evals.every,
        save_every=config.run.save_every,
    )


def patience_of(evals: Evals, steps_per_epoch: int) -> int:
    """Evaluations without a better score after which a run stops; 0: it never does."""
    of_epochs = math.ceil(round(evals.patience_epochs * steps_per_epoch / evals.every, 6))
    return min((count for count in (evals.patience, of_epochs) if count), default=0)
