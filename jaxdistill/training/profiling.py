"""Traces some steps of a training for xprof."""

import logging
import pathlib
import re
from typing import Any

import jax

from jaxdistill.core import InputError

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


class Profiler:
    """Traces the steps of `run.profile` into `workdir/profile`; a resumed run traces those that are left.

    Args:
      option: value of `run.profile`; empty: no trace.
    """

    def __init__(self, option: str, workdir: pathlib.Path):
        self.first, self.last = profiled_steps(option)
        self.folder = workdir / "profile"
        self.began_at = 0
        """First step of the trace; 0 before it begins."""
        self.is_tracing = False

    def before_step(self, step: int, state: Any) -> None:
        """Begins the trace at the first step of the range, once the steps before it have made the state."""
        if not self.began_at and self.first <= step <= self.last:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder))
            self.began_at, self.is_tracing = step, True

    def after_step(self, step: int, metrics: Any) -> None:
        """Ends the trace after the last step, once its metrics are there."""
        if self.is_tracing and step == self.last:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Ends a trace that has begun, and warns of one that has not."""
        if self.is_tracing:
            self.is_tracing = False
            jax.profiler.stop_trace()
            log.info("trace from step %d on: %s; xprof --logdir=%s shows it", self.began_at, self.folder, self.folder)
        elif self.last and not self.began_at:
            log.warning("run.profile=%d:%d traced nothing: this process ran none of these steps", self.first, self.last)
