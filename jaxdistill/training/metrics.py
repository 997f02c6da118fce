"""Records the metrics of a run: progress bar, `metrics.jsonl`, and, where they are installed, TensorBoard and Weights & Biases."""

import contextlib
import hashlib
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

from jaxdistill.bars import Bar, seconds_between
from jaxdistill.files import write_atomic, writing
from jaxdistill.workdir.folder import STAGE_NAME

log = logging.getLogger(__name__)

Callback = Callable[[int, Mapping[str, float]], object]
"""A caller's function of a step and its metrics."""


class Writers:
    """Writes a step's scalars to all files; only the first process of a run has one."""

    def __init__(
        self,
        workdir: str | pathlib.Path,
        *,
        last_step: int,
        config: Mapping[str, Any],
        callbacks: Sequence[Callback] = (),
    ):
        """Continues the files of `workdir` after `last_step`; drops the lines of later steps, which run again.

        Args:
          last_step: last step whose lines stay; -1: the run starts from scratch, and step 0 is written too.
          callbacks: called with each step and its scalars after they are written.

        Raises:
          InputError: a full disk, here and while writing and closing.
        """
        folder = pathlib.Path(workdir)
        self._path = folder / "metrics.jsonl"
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        with writing(self._path), contextlib.ExitStack() as files:
            _drop_later_lines(self._path, last_step)
            self._jsonl = files.enter_context(self._path.open("a", encoding="utf-8"))
            self._tensorboard = None
            try:  # imported here: it takes half a second, which other commands need not wait for
                from tensorboard.summary.writer.record_writer import RecordWriter
            except ImportError:
                log.info("no files for TensorBoard; to get them: pip install 'jaxdistill[tensorboard]'")
            else:
                (folder / "tensorboard").mkdir(exist_ok=True)
                self._tensorboard = RecordWriter(files.enter_context((folder / "tensorboard" / name).open("ab")))
                self._record(0, file_version="brain.Event:2")
                # This record makes TensorBoard ignore what earlier files hold of this step and later ones.
                self._record(last_step + 1, session_log={"status": "START"})
            self._files = files.pop_all()
        self._wandb = _wandb_run(folder, config) if config.get("run.wandb") else None
        self._callbacks = tuple(callbacks)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes one line of metrics; non-finite values become null in JSON."""
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        values = [{"tag": name, "simple_value": value} for name, value in scalars.items()]
        with writing(self._path):
            self._jsonl.write(json.dumps({"step": step, **finite}) + "\n")
            self._jsonl.flush()
            self._record(step, summary={"value": values})
        if self._wandb:
            self._wandb.log(dict(scalars), step=step)
        for callback in self._callbacks:
            callback(step, dict(scalars))

    def _record(self, step: int, **content: Any) -> None:
        """Writes a record of TensorBoard, if it is installed."""
        if self._tensorboard is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] - protobuf makes it on import

        self._tensorboard.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
        self._tensorboard.flush()

    def close(self) -> None:
        if self._wandb:
            self._wandb.finish()
        with writing(self._path):
            self._files.close()


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
    if path.exists():
        lines = [
            line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if _step_of(line) <= step
        ]
        write_atomic(path, "".join(f"{line}\n" for line in lines))


def _step_of(line: str) -> float:
    """Step of a line; infinity for a line that a crash cut off or that is none of this program's, so that it is dropped."""
    try:
        step = json.loads(line)["step"]
        return step if isinstance(step, int) else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def _wandb_run(folder: pathlib.Path, config: Mapping[str, Any]):
    """The run in Weights & Biases, which continues for the same folder."""
    import wandb  # pyright: ignore[reportMissingImports] - optional

    whole = folder.absolute()
    name = f"{whole.parent.name}-{whole.name}" if STAGE_NAME.fullmatch(whole.name) else whole.name
    own = f"{name}-{hashlib.sha256(str(whole).encode()).hexdigest()[:8]}"  # or runs of equal names would be merged
    return wandb.init(project="jaxdistill", name=name, id=own, resume="allow", dir=str(folder), config=dict(config))


class _Bar(Bar):
    """Progress bar with the training's own estimate of the time left; tqdm's would count evaluations as steps."""

    seconds_left: Callable[[int], float] = staticmethod(lambda step: 0.0)

    @property
    def format_dict(self) -> dict[str, Any]:
        left = self.seconds_left(self.n)
        return {**super().format_dict, "left": f"<{self.format_interval(left)}" if left else ""}


class Progress:
    """A bar with the time left, loss and sentences per second."""

    def __init__(
        self, *, first_step: int, steps: int, batch_size: int, shown: bool, seconds_left: Callable[[int], float]
    ):
        """
        Args:
          seconds_left: returns the time left after a step; 0 if not known yet.
        """
        self._bar = _Bar(
            initial=first_step,
            total=steps,
            disable=not shown,
            dynamic_ncols=True,
            mininterval=seconds_between(),
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} steps [{elapsed}{left}{postfix}]",
        )
        self._bar.seconds_left = seconds_left
        self._batch_size = batch_size
        self._since = (time.monotonic(), first_step)

    def advance(self) -> None:
        self._bar.update()

    def rate(self, step: int) -> float:
        """Training sentences per second since the last call."""
        now, (then, last) = time.monotonic(), self._since
        self._since = (now, step)
        return (step - last) * self._batch_size / max(now - then, 1e-9)

    def restart(self, step: int) -> None:
        """Starts the clock of `rate` anew: evaluations are not training."""
        self._since = (time.monotonic(), step)

    def show(self, loss: float, sentences_per_s: float) -> None:
        self._bar.set_postfix_str(f"{sentences_per_s:,.0f} sentences/s, loss {loss:.4g}", refresh=sys.stderr.isatty())

    def close(self) -> None:
        self._bar.close()
