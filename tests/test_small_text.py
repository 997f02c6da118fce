"""A text of a few hundred sentences trains: the queue shrinks with it."""

import logging

import numpy as np
import pytest

from jaxdistill import config as configs
from jaxdistill.config import load_config
from jaxdistill.core import InputError
from jaxdistill.training import build as build_module

from program import write_teacher
from tiny_text import made_up


def small_run(folder, rows: int):
    (folder / "text.txt").write_text("\n".join(made_up(rows, words=4)) + "\n")
    raw = load_config("configs/congen.py:minilm-l3").to_dict()
    raw["data"] |= dict(text=str(folder / "text.txt"), batch_size=16, cache_folder=str(folder / "cache"))
    raw["teacher"]["model"] = str(folder / "model")
    raw["student"]["layers"] = "1"
    return build_module.build(configs.parse_config(raw), folder / "w", progress=False)


def test_a_preset_trains_on_a_small_text_with_a_smaller_queue(tmp_path, caplog):
    write_teacher(tmp_path)
    with caplog.at_level(logging.INFO, "jaxdistill"):
        run = small_run(tmp_path, 200)
    assert "objective.queue_size: 50 instead of 16,384: at most a quarter of the text's 200 rows" in caplog.text
    assert run.objective.reserve_rows == 50 and len(np.unique(run.seeds(), axis=0)) == 50
    # A tenth, for the agreement; the queue begins with sentences that are trained on.
    assert (len(run.batches.trained), run.batches.steps_per_epoch) == (200 - 20, 11)
    words = "15 of the text's 16 sentences are left for training without the 1 reserved ones .* needs 16"
    with pytest.raises(InputError, match=words):
        small_run(tmp_path, 16)
