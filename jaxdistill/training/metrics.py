"""Records a run on the console and in `train.log`, `metrics.jsonl`, TensorBoard's files, callbacks, and a progress bar."""

import contextlib
import json
import logging
import math
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params
from tqdm.auto import tqdm

from jaxdistill.core import Array, Diverged
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.mesh import PEAK_FLOPS_PER_S
from jaxdistill.core.files import write_atomic
from jaxdistill.core.runtime import Bar, duration, last_line
from jaxdistill.training.workdir.folder import LOG, METRICS

if TYPE_CHECKING:
    from jaxdistill.training.build import Run

Callback = Callable[[int, Mapping[str, float]], object]
"""A caller's function of a step and its metrics."""

ACTIVITIES = ("compile", "data", "steps", "evaluation", "checkpoints")
log = logging.getLogger(__name__)
_printed = logging.getLogger("jaxdistill.printed")
"""Logger whose lines go to `train.log` alone; `say` prints them itself."""
_printed.setLevel(logging.INFO)
_printed.propagate = False


def say(line: str) -> None:
    """Prints a line, above a progress bar if there is one, and writes it to `train.log`; in the first process of a run only."""
    if processes.is_first():
        tqdm.write(line)
        sys.stdout.flush()  # or a file or pipe would show the line much later
        _printed.info("%s", line)


def note(lines: str) -> None:
    """Writes lines to `train.log` only."""
    for line in lines.splitlines():
        _printed.info("%s", line)


@contextlib.contextmanager
def logged(workdir: pathlib.Path, command: str) -> Iterator[None]:
    """Appends to the workdir's `train.log` the command, what the first process prints and logs in the block, and a final error."""
    if not processes.is_first():
        yield
        return
    loggers = (_printed, logging.getLogger("jaxdistill"))
    handler = logging.FileHandler(workdir / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    handler.handleError = lambda record: None  # a full disk, which the run's other files report in one line
    for logger in loggers:
        logger.addHandler(handler)
    try:
        note(f"$ {command}")
        yield
    except BaseException as error:
        if isinstance(error, OSError) and not error.filename:  # writing to an open file does not name it
            error.filename = str(workdir)
        if line_and_status := last_line(error):
            _printed.error("%s", line_and_status[0])
        else:  # a bug
            _printed.error("failed:", exc_info=error)
        raise
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # which would hide the error of the block
            handler.close()


class Goodput:
    """Seconds that one process's host spends on each activity, and the floating-point operations of its steps. `data` is the time
    that the host waits for a batch, `steps` the time that it waits for devices, `compile` tracing and compiling a step of a new
    shape. `checkpoints` includes making or restoring the first state."""

    def __init__(self) -> None:
        self.total: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
        """Seconds since this process began or resumed the training, by activity."""
        self.flops = 0.0
        """Floating-point operations since the last report, including those that remat or a gradient cache repeats."""
        self._reported = dict(self.total)

    @contextlib.contextmanager
    def spent(self, activity: str) -> Iterator[None]:
        """Counts the time inside the `with` block as spent on the activity."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.total[activity] += time.monotonic() - begun

    def report(self) -> dict[str, float]:
        """Metrics of the time since the last report; `goodput` is the share of `steps` in all the time counted so far."""
        seconds = {name: total - self._reported[name] for name, total in self.total.items()}
        device_flops_per_s = self.flops / max(seconds["data"] + seconds["steps"], 1e-9) / jax.device_count()
        self._reported, self.flops = dict(self.total), 0.0
        scalars = {f"seconds/{name}": value for name, value in seconds.items()}
        scalars["goodput"] = self.total["steps"] / max(sum(self.total.values()), 1e-9)
        scalars["tflops_per_s"] = device_flops_per_s / 1e12
        if peaks := [peak for name, peak in PEAK_FLOPS_PER_S.items() if name in jax.devices()[0].device_kind]:
            scalars["utilisation"] = device_flops_per_s / peaks[0]
        return scalars


def product_flops(jaxpr: Jaxpr) -> float:
    """Operations of a traced program's matrix products, over all devices; a multiplication and an addition count as two. The body of
    a `scan` counts once per iteration, unlike in XLA's own count; the body of another loop counts once."""
    total = 0.0
    for equation in jaxpr.eqns:
        inner = [product_flops(body) for body in jaxprs_in_params(equation.params)]
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]  # axes of the left operand that are summed over
            left = cast(Any, equation.invars[0].aval).shape
            result = cast(Any, equation.outvars[0].aval).shape
            total += 2.0 * math.prod(result) * math.prod(left[axis] for axis in contracted)
        elif equation.primitive.name == "scan":
            total += equation.params["length"] * sum(inner)
        elif equation.primitive.name == "shard_map":
            mesh = equation.params["mesh"]  # the body is one device's work, done along all of the manual axes
            total += math.prod(mesh.shape[axis] for axis in equation.params["newly_manual_axes"]) * sum(inner)
        elif equation.primitive.name == "cond":
            total += max(inner)
        else:
            total += sum(inner)
    return total


class Metrics:
    """Means of the steps' metrics, fetched from the devices only when they are due. The first process writes them to `metrics.jsonl`, to
    callbacks and, where TensorBoard is installed, to its files.

    Args:
      stack: closes the files and the progress bar.
      start: the step from which this process continues. Lines of later steps, which run again, are dropped.
      is_new: no checkpoint was restored. The lines of step 0, which a killed run may have written, are dropped too.
    """

    def __init__(
        self, run: "Run", goodput: Goodput, stack: ExitStack, *, start: int, is_new: bool, callbacks: Sequence[Callback]
    ):
        self.run = run
        self.goodput = goodput
        self.start = start
        self.callbacks = callbacks
        bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}{postfix}]"
        bar = Bar(initial=start, total=run.program.steps, disable=not processes.is_first(), bar_format=bar_format)
        self.bar = stack.enter_context(bar)
        self.pending: list[tuple[int, Mapping[str, Array]]] = []
        """Steps whose metrics have not been fetched from the devices."""
        self.jsonl = self.event = self.records = None
        if not processes.is_first():
            return
        last_step = -1 if is_new else start  # the last one of which earlier lines are kept
        path = run.workdir / METRICS
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        kept = []
        for line in lines:
            with contextlib.suppress(ValueError):  # not JSON, because a crash has damaged it
                if json.loads(line)["step"] <= last_step:
                    kept.append(f"{line}\n")
        write_atomic(path, "".join(kept))
        self.jsonl = stack.enter_context(path.open("a", encoding="utf-8"))
        try:  # imported here: it takes half a second, which other commands need not wait for
            from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - protobuf makes it on import
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            log.info("no files for TensorBoard; to get them: pip install 'jaxdistill[tensorboard]'")
            return
        folder = run.workdir / "tensorboard"
        folder.mkdir(exist_ok=True)
        events = folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self.event = Event
        self.records = RecordWriter(stack.enter_context(events.open("ab")))
        self._record(0, file_version="brain.Event:2")
        # This record makes TensorBoard ignore what earlier files hold of the steps after `last_step`.
        self._record(last_step + 1, session_log={"status": "START"})

    def add(self, step: int, metrics: Mapping[str, Array]) -> None:
        """Keeps the metrics of a step, which devices may still be computing."""
        self.pending.append((step, metrics))
        self.bar.update()

    def report(self, step: int) -> None:
        """Fetches the metrics of all steps since the last report and writes their means; raises `Diverged` if a loss is not finite.
        Call it before a state is evaluated or saved, so that a diverged state is never kept."""
        if not self.pending:
            return
        with self.goodput.spent("steps"):
            fetched = [(number, jax.device_get(metrics)) for number, metrics in self.pending]
        self.pending.clear()
        for number, metrics in fetched:
            if not math.isfinite(metrics["loss"]):
                raise Diverged(f"the loss is not finite at step {number}")
        means = {}
        for name in fetched[0][1]:  # NaN where an objective did not train on the batch's source
            values = [metrics[name] for _, metrics in fetched if not math.isnan(metrics[name])]
            means[name] = float(np.mean(values)) if values else math.nan
        means |= {"learning_rate": float(np.asarray(self.run.program.schedule(step - 1)))} | self.goodput.report()
        training_seconds = sum(means[f"seconds/{activity}"] for activity in ("compile", "data", "steps"))
        means["sentences_per_s"] = self.run.batches.batch_size * len(fetched) / max(training_seconds, 1e-9)
        # The other steps will take as long as those so far, but need no compilation.
        seconds = sum(self.goodput.total.values()) - self.goodput.total["compile"]
        seconds_left = seconds / max(step - self.start, 1) * (self.run.program.steps - step)
        line = f"{duration(seconds_left)} left, {means['sentences_per_s']:,.0f} sentences/s, loss {means['loss']:.4g}"
        self.bar.set_postfix_str(line, refresh=sys.stderr.isatty())
        self.write(step, means)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes scalars of a step, in the first process only; non-finite values become null in JSON."""
        if self.jsonl is None:
            return
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self.jsonl.write(json.dumps({"step": step, **finite}) + "\n")
        self.jsonl.flush()
        self._record(step, summary={"value": [{"tag": name, "simple_value": value} for name, value in scalars.items()]})
        for callback in self.callbacks:
            callback(step, dict(scalars))

    def _record(self, step: int, **content: Any) -> None:
        if self.event and self.records:
            self.records.write(self.event(wall_time=time.time(), step=step, **content).SerializeToString())
            self.records.flush()
