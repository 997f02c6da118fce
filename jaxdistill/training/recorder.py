"""Fetches and writes the metrics of steps, shows progress, and saves the state."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdistill.cluster import processes
from jaxdistill.config import flat
from jaxdistill.core import Array, TrainState
from jaxdistill.training.goodput import Goodput
from jaxdistill.training.metrics import Callback, Progress, Writers
from jaxdistill.training.run import Run
from jaxdistill.training.schedule import Diverged, Hook, schedule_of
from jaxdistill.workdir.checkpoint import Checkpoints


class Recorder(Hook):
    """Writes the mean metrics of the steps since the last report, and scalars of other hooks."""

    def __init__(
        self,
        run: Run,
        goodput: Goodput,
        *,
        first_step: int,
        is_new: bool,
        shown: bool,
        callbacks: Sequence[Callback] = (),
    ):
        self.run, self.goodput, self.first_step = run, goodput, first_step
        self.schedule = schedule_of(run.config, run.program.steps)
        self.writers = None
        if processes.is_first():
            written = -1 if is_new else first_step  # a killed run may have written step 0 without saving it
            self.writers = Writers(run.workdir, last_step=written, config=flat(run.config), callbacks=callbacks)
        self.bar = Progress(
            first_step=first_step,
            steps=run.program.steps,
            batch_size=run.text.batches.batch_size,
            shown=shown,
            seconds_left=self.seconds_left,
        )
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        """Steps whose metrics have not been fetched from the devices."""

    def after_step(self, step: int, state: TrainState, metrics: Mapping[str, Array]) -> None:
        self.pending.append((step, metrics))
        self.bar.advance()
        if self.schedule.logs(step):
            self.report(step)

    def report(self, step: int) -> None:
        """Fetches the metrics of all steps since the last report and writes their means; raises `Diverged` if a loss is not
        finite. Hooks that use the state call it first, so that they never save or evaluate a diverged one."""
        if not self.pending:
            return
        with self.goodput.spent("steps"):
            fetched = [(number, jax.device_get(metrics)) for number, metrics in self.pending]
        self.pending.clear()
        bad = [number for number, metrics in fetched if not math.isfinite(metrics["loss"])]
        if bad:
            span = f"step {bad[0]}" if len(bad) == 1 else f"steps {bad[0]} to {bad[-1]}"
            raise Diverged(f"the loss is not finite at {span}")
        means = {name: float(np.mean([metrics[name] for _, metrics in fetched])) for name in fetched[0][1]}
        rate = self.bar.rate(step)
        means |= {"learning_rate": float(np.asarray(self.run.program.schedule(step - 1))), "sentences_per_s": rate}
        means |= self.goodput.taken()
        self.bar.show(means["loss"], rate)
        self.write(step, means)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step, in the first process only."""
        if self.writers:
            self.writers.write(step, scalars)

    def restart(self, step: int) -> None:
        """Restarts the clock of sentences per second after an activity other than training."""
        self.bar.restart(step)

    def seconds_left(self, step: int) -> float:
        """Estimated time left after `step`; 0 if not known yet. Remaining steps take the mean so far, without compilation;
        remaining evaluations and checkpoints take as long as the latest."""
        if step <= self.first_step:
            return 0.0
        goodput, schedule = self.goodput, self.schedule
        evaluations, saves = schedule.evaluations_after(step), schedule.saves_after(step)
        apart = evaluations * goodput.last["evaluation"] + (evaluations + saves) * goodput.last["checkpoints"]
        taken = goodput.total["data"] + goodput.total["steps"]
        return taken / (step - self.first_step) * (schedule.steps - step) + apart

    def close(self) -> None:
        self.bar.close()
        if self.writers:
            self.writers.close()


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
