"""Writes a trace of some steps of a training, for xprof."""

import logging
import pathlib
import re
from typing import Any

import jax

from jaxdistill.core import InputError
from jaxdistill.training.goodput import Goodput
from jaxdistill.training.schedule import Hook

FOLDER = "profile"

log = logging.getLogger(__name__)


def profiled_steps(option: str) -> tuple[int, int]:
    """First and last step of `run.profile`, (0, 0) for none; raises `InputError` for anything but `FIRST:LAST`."""
    if not option:
        return 0, 0
    match = re.fullmatch(r"(\d+):(\d+)", option)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(
            f"run.profile={option!r} is not a range of steps; give the first and the last one, such as 10:20."
        )
    return int(match[1]), int(match[2])


class Profile(Hook):
    """Traces the steps of `run.profile` in one process; a resumed run traces the remaining ones."""

    def __init__(self, option: str, workdir: pathlib.Path, goodput: Goodput):
        self.goodput = goodput
        self.option, (self.first, self.last) = option, profiled_steps(option)
        self.folder = workdir / FOLDER
        self._ran: tuple[int, int] | None = None
        self._begun = 0
        """First step of the trace; 0 before it begins."""
        self._traces = False

    def before_step(self, step: int, state: Any) -> None:
        """Begins the trace at the first step of the range, once the steps before it have made the state."""
        self._ran = (self._ran[0] if self._ran else step, step)
        if not self._begun and self.first <= step <= self.last:
            with self.goodput.spent("steps"):
                jax.block_until_ready(state)
                jax.profiler.start_trace(str(self.folder))
            self._begun, self._traces = step, True

    def after_step(self, step: int, state: Any, metrics: Any) -> None:
        """Ends the trace after the last step, once its metrics are there."""
        if self._traces and step == self.last:
            with self.goodput.spent("steps"):
                jax.block_until_ready(metrics)
                self._end(step)

    def close(self) -> None:
        """Ends a trace that has begun, and warns of one that has not."""
        if self._traces and self._ran:
            with self.goodput.spent("steps"):
                self._end(self._ran[1])
        elif self.option and not self._begun:
            ran = f"steps {self._ran[0]} to {self._ran[1]}" if self._ran else "no step"
            log.warning("run.profile=%s traced nothing: this process ran %s", self.option, ran)

    def _end(self, step: int) -> None:
        self._traces = False
        jax.profiler.stop_trace()
        log.info("trace of steps %d to %d: %s; xprof --logdir=%s shows it", self._begun, step, self.folder, self.folder)
