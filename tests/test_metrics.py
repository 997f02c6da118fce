"""Where the numbers of a run go, and what a full disk does to them."""

import json
import math

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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
