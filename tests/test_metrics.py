"""Where the numbers of a run go, and what a full disk does to them."""

import contextlib
import json
import logging
import math
import pathlib
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxdistill.core import InputError
from jaxdistill.training.hooks.metrics import Writers


def written(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("loss")
    return lines, [(event.step, event.value) for event in events]


def test_what_a_killed_run_wrote_after_its_checkpoint_is_written_again(tmp_path):
    first = Writers(tmp_path, last_step=0, config={})
    for step in (1, 2, 3, 4):
        first.write(step, {"loss": float(step)})
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "lo\n[1]\nnull\n{"step": "1"}\n{"step": null}\n')
    again = Writers(tmp_path, last_step=2, config={})
    again.write(3, {"loss": 30.0})
    again.write(4, {"loss": math.nan})
    again.close()
    lines, events = written(tmp_path)
    assert lines == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 2.0},
        {"step": 3, "loss": 30.0},
        {"step": 4, "loss": None},
    ]
    assert events[:3] == [(1, 1.0), (2, 2.0), (3, 30.0)] and len(events) == 4 and math.isnan(events[3][1])


def test_without_tensorboard_a_line_says_what_to_install(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with (
        caplog.at_level(logging.INFO, "jaxdistill"),
        contextlib.closing(Writers(tmp_path, last_step=0, config={})) as writers,
    ):
        writers.write(1, {"loss": 1.0})
    assert "pip install 'jaxdistill[tensorboard]'" in caplog.text and not (tmp_path / "tensorboard").exists()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 1.0}


@pytest.mark.parametrize("full", ["metrics.jsonl", "tensorboard"])
def test_a_full_disk_is_one_clear_error(full, tmp_path, monkeypatch):
    """/dev/full refuses every write as a full disk does."""
    real = pathlib.Path.open

    def on_full_disk(path, *args, **kwargs):
        return real(pathlib.Path("/dev/full") if full in str(path) else path, *args, **kwargs)

    with monkeypatch.context() as patched, pytest.raises(InputError, match="no space left on the disk; free some"):
        patched.setattr(pathlib.Path, "open", on_full_disk)
        writers = Writers(tmp_path, last_step=0, config={})
        with contextlib.closing(writers):
            writers.write(1, {"loss": 1.0})
