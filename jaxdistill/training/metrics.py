"""Records the metrics of a run: `metrics.jsonl`, TensorBoard's files where it is installed, callbacks, and a progress bar."""

import contextlib
import json
import logging
import math
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxdistill.bars import Bar, duration, seconds_between
from jaxdistill.cluster import processes
from jaxdistill.core import Array, Diverged
from jaxdistill.files import write_atomic, writing
from jaxdistill.training.goodput import Goodput
from jaxdistill.training.run import Run
from jaxdistill.training.schedule import Schedule
from jaxdistill.workdir.folder import METRICS

log = logging.getLogger(__name__)

Callback = Callable[[int, Mapping[str, float]], object]
"""A caller's function of a step and its metrics."""


class Metrics:
    """Means of the steps' metrics, fetched from the devices only when they are due.

    Args:
      start: the step from which this process continues.
      is_new: no checkpoint was restored.
      progress: whether to show a bar.
      callbacks: called in the first process with each step and its scalars, after they are written.
    """

    def __init__(
        self,
        run: Run,
        schedule: Schedule,
        goodput: Goodput,
        *,
        start: int,
        is_new: bool,
        progress: bool,
        callbacks: Sequence[Callback] = (),
    ):
        self.schedule, self.goodput, self.start = schedule, goodput, start
        self.learning_rate, self.batch_size = run.program.schedule, run.text.batches.batch_size
        # A killed run may have written step 0 without saving it.
        last_step = -1 if is_new else start
        self.writer = MetricWriter(run.workdir, last_step=last_step) if processes.is_first() else None
        self.callbacks = callbacks if processes.is_first() else ()
        self.bar = Bar(
            initial=start,
            total=schedule.steps,
            disable=not progress,
            dynamic_ncols=True,
            mininterval=seconds_between(),
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}{postfix}]",
        )
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        """Steps whose metrics have not been fetched from the devices."""
        self.restart_clock(start)

    def add(self, step: int, metrics: Mapping[str, Array]) -> None:
        """Keeps the metrics of a step, which devices may still be computing."""
        self.pending.append((step, metrics))
        self.bar.update()

    def report(self, step: int) -> None:
        """Fetches the metrics of all steps since the last report and writes their means.

        Raises:
          Diverged: a loss is not finite. Whoever evaluates or saves a state reports first, so a diverged one is never kept.
        """
        if not self.pending:
            return
        with self.goodput.spent("steps"):
            fetched = [(number, jax.device_get(metrics)) for number, metrics in self.pending]
        self.pending.clear()
        if bad := [number for number, metrics in fetched if not math.isfinite(metrics["loss"])]:
            span = f"step {bad[0]}" if len(bad) == 1 else f"steps {bad[0]} to {bad[-1]}"
            raise Diverged(f"the loss is not finite at {span}")
        means = {name: float(np.mean([metrics[name] for _, metrics in fetched])) for name in fetched[0][1]}
        rate = self.batch_size * (step - self.clock[1]) / max(time.monotonic() - self.clock[0], 1e-9)
        self.restart_clock(step)
        means |= {"learning_rate": float(np.asarray(self.learning_rate(step - 1))), "sentences_per_s": rate}
        means |= self.goodput.taken()
        left = f"{duration(self.seconds_left(step))} left, "
        self.bar.set_postfix_str(
            f"{left}{rate:,.0f} sentences/s, loss {means['loss']:.4g}", refresh=sys.stderr.isatty()
        )
        self.write(step, means)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step, in the first process only."""
        if self.writer:
            self.writer.write(step, scalars)
        for callback in self.callbacks:
            callback(step, dict(scalars))

    def restart_clock(self, step: int) -> None:
        """Starts to count sentences per second anew: evaluations and saves are not training."""
        self.clock = time.monotonic(), step

    def seconds_left(self, step: int) -> float:
        """Estimated time left after `step`. Remaining steps take the mean so far, without compilation; remaining evaluations
        and checkpoints take as long as the latest."""
        goodput, schedule = self.goodput, self.schedule
        evaluations, saves = schedule.evaluations_after(step), schedule.saves_after(step)
        apart = evaluations * goodput.last["evaluation"] + (evaluations + saves) * goodput.last["checkpoints"]
        taken = goodput.total["data"] + goodput.total["steps"]
        return taken / max(step - self.start, 1) * (schedule.steps - step) + apart

    def close(self) -> None:
        self.bar.close()
        if self.writer:
            self.writer.close()


class MetricWriter:
    """Appends the scalars of steps to `metrics.jsonl` and, where TensorBoard is installed, to its files.

    Args:
      last_step: last step whose lines stay; those of later steps, which run again, are dropped. -1: the run starts from
        scratch, and step 0 is written too.

    Raises:
      InputError: a full disk, here and while writing and closing.
    """

    def __init__(self, workdir: pathlib.Path, *, last_step: int):
        self._path = workdir / METRICS
        with writing(self._path), contextlib.ExitStack() as files:
            _drop_later_lines(self._path, last_step)
            self._jsonl = files.enter_context(self._path.open("a", encoding="utf-8"))
            self._tensorboard = None
            try:  # imported here: it takes half a second, which other commands need not wait for
                from tensorboard.summary.writer.record_writer import RecordWriter
            except ImportError:
                log.info("no files for TensorBoard; to get them: pip install 'jaxdistill[tensorboard]'")
            else:
                folder = workdir / "tensorboard"
                folder.mkdir(exist_ok=True)
                name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
                self._tensorboard = RecordWriter(files.enter_context((folder / name).open("ab")))
                self._record(0, file_version="brain.Event:2")
                # This record makes TensorBoard ignore what earlier files hold of this step and later ones.
                self._record(last_step + 1, session_log={"status": "START"})
            self._files = files.pop_all()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes one line of metrics; non-finite values become null in JSON."""
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        with writing(self._path):
            self._jsonl.write(json.dumps({"step": step, **finite}) + "\n")
            self._jsonl.flush()
            values = [{"tag": name, "simple_value": value} for name, value in scalars.items()]
            self._record(step, summary={"value": values})

    def _record(self, step: int, **content: Any) -> None:
        """Writes a record of TensorBoard, if it is installed."""
        if self._tensorboard is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - protobuf makes it on import

        self._tensorboard.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
        self._tensorboard.flush()

    def close(self) -> None:
        with writing(self._path):
            self._files.close()


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
    if path.exists():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        write_atomic(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))


def _step_of(line: str) -> float:
    """Step of a line; infinity, so that it is dropped, for one that a crash cut off or that this program did not write."""
    try:
        step = json.loads(line)["step"]
        return step if isinstance(step, int) else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
