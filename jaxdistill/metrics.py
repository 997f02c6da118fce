"""Where do the numbers of a run go? A progress bar, `metrics.jsonl`, TensorBoard, and Weights & Biases if installed."""

import importlib.util
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

import tqdm


class Writers:
    """Writes scalars of a step to every place; one process of a run owns it."""

    def __init__(self, workdir: str | pathlib.Path, *, first_step: int, config: Mapping[str, Any]):
        """Continues the files of `workdir`; lines of steps after `first_step`, which will be run again, are dropped."""
        # Here, since this takes half a second that other commands need not wait for.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = pathlib.Path(workdir)
        self._path = folder / "metrics.jsonl"
        _drop_later_lines(self._path, first_step)
        self._jsonl = self._path.open("a", encoding="utf-8")
        self._tensorboard = EventFileWriter(str(folder / "tensorboard"))
        # From this event on, TensorBoard leaves out what earlier files have of this step and later ones.
        self._tensorboard.add_event(_event(first_step + 1, session_log={"status": "START"}))
        self._wandb = _wandb_run(folder, config)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """One line of metrics; non-finite values become null in JSON."""
        finite = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._jsonl.write(json.dumps({"step": step, **finite}) + "\n")
        self._jsonl.flush()
        values = [{"tag": name, "simple_value": value} for name, value in scalars.items()]
        self._tensorboard.add_event(_event(step, summary={"value": values}))
        if self._wandb:
            self._wandb.log(dict(scalars), step=step)

    def close(self) -> None:
        self._jsonl.close()
        self._tensorboard.close()
        if self._wandb:
            self._wandb.finish()


def _event(step: int, **content: Mapping[str, Any]):
    """A record of TensorBoard."""
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(wall_time=time.time(), step=step, **content)


def _drop_later_lines(path: pathlib.Path, step: int) -> None:
    if path.exists():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _step_of(line: str) -> float:
    """Step of a line; infinity for one that a crash cut off."""
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError):
        return math.inf


def _wandb_run(folder: pathlib.Path, config: Mapping[str, Any]):
    """A run in Weights & Biases where the package is installed and an account is set up."""
    if importlib.util.find_spec("wandb") is None or not os.environ.get("WANDB_API_KEY"):
        return None
    import wandb

    return wandb.init(
        project="jaxdistill", name=folder.name, id=folder.name, resume="allow", dir=str(folder), config=dict(config)
    )


class Progress:
    """A bar with loss, sentences per second and the time left."""

    def __init__(self, *, first_step: int, steps: int, batch_size: int, shown: bool):
        self._bar = tqdm.tqdm(
            initial=first_step,
            total=steps,
            unit="step",
            disable=not shown,
            dynamic_ncols=True,
            mininterval=1.0 if sys.stderr.isatty() else 30.0,
            smoothing=0.1,
        )
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
        self._bar.set_postfix_str(f"loss {loss:.4f}, {sentences_per_s:,.0f} sentences/s")

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._bar.write(line)

    def close(self) -> None:
        self._bar.close()
