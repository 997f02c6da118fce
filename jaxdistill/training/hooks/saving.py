"""Saves the state of a training."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.core import Array, TrainState
from jaxdistill.training.hooks.goodput import Goodput
from jaxdistill.training.hooks.hook import Hook
from jaxdistill.training.hooks.recorder import Recorder
from jaxdistill.workdir.checkpoint import Checkpoints


class Saving(Hook):
    """Writes checkpoints when they are due, after the recorder has checked that all losses so far are finite.

    Args:
      track: the record of evaluations, which the checkpoint keeps.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        track: dict[str, Any],
        *,
        recorder: Recorder,
        goodput: Goodput,
    ):
        self.checkpoints, self.track, self.recorder, self.goodput = checkpoints, track, recorder, goodput

    def at_start(self, step: int, state: TrainState, *, is_new: bool) -> None:
        if is_new:
            self.save(step, state)

    def after_step(self, step: int, state: TrainState, metrics: Mapping[str, Array]) -> None:
        if self.recorder.schedule.saves(step):
            self.save(step, state)

    def at_interrupt(self, step: int, state: TrainState) -> None:
        self.save(step, state)
        self.checkpoints.wait()

    def save(self, step: int, state: TrainState) -> None:
        self.recorder.report(step)
        with self.goodput.spent("checkpoints"):
            self.checkpoints.save(state, self.track)
        self.recorder.restart(step)
