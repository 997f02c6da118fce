"""Writes a trace of some steps of a training, for xprof."""

import logging
import pathlib
import re
from typing import Any

import jax

from jaxdistill.core import InputError

FOLDER = "profile"

log = logging.getLogger(__name__)


def profiled_steps(option: str) -> tuple[int, int]:
    """First and last step of `run.profile`, (0, 0) for none; raises `InputError` for anything but `FIRST:LAST`."""
    if not option:
        return 0, 0
    match = re.fullmatch(r"(\d+):(\d+)", option)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"run.profile={option!r} is no range of steps; give the first and the last one: 10:20.")
    return int(match[1]), int(match[2])


class Profile:
    """Traces the steps of `run.profile` in one process."""

    def __init__(self, option: str, workdir: pathlib.Path):
        self.first, self.last = profiled_steps(option)
        self.folder = workdir / FOLDER
        self._traces = False

    def before(self, step: int) -> None:
        if step == self.first:
            jax.profiler.start_trace(str(self.folder))
            self._traces = True

    def after(self, step: int, results: Any) -> None:
        """Ends the trace after the last step, once its results are there."""
        if self._traces and step == self.last:
            jax.block_until_ready(results)
            self.close()

    def close(self) -> None:
        """Ends a trace that has begun."""
        if self._traces:
            self._traces = False
            jax.profiler.stop_trace()
            log.info(
                "trace of steps %d to %d: %s; xprof --logdir=%s shows it",
                self.first,
                self.last,
                self.folder,
                self.folder,
            )
