"""Where the time of a training goes, and traces of its steps."""

import contextlib
import json
import logging
import sys

import jax
import jax.numpy as jnp

from jaxdistill import main
from jaxdistill.training.goodput import ACTIVITIES, Goodput
from jaxdistill.training.metrics import MetricWriter

from program import tiny_arguments, write_text


def test_a_run_says_where_its_time_goes_and_traces_the_steps_asked_for(tmp_path):
    write_text(tmp_path)
    workdir = tmp_path / "w"
    given = tiny_arguments(tmp_path, run__steps=6, run__log_every=50, evals__every=6)
    main.main([*given, f"--workdir={workdir}", "--profile=3:4"])
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [2, 4, 6]  # a short run has a curve all the same
    for line in logged:
        assert all(line[f"seconds/{name}"] >= 0 for name in ACTIVITIES)
        assert 0 < line["goodput"] < 1
    assert max(line["tflops_per_s"] for line in logged) > 0
    assert logged[0]["seconds/compile"] > 0 and logged[0]["seconds/evaluation"] > 0  # of the untrained student
    spent = json.loads((workdir / "results.json").read_text())["seconds_of_activities"]
    assert set(spent) == set(ACTIVITIES) and spent["checkpoints"] > 0
    (trace,) = (workdir / "profile").rglob("*.xplane.pb")
    assert b"step_num" in trace.read_bytes()


def test_a_step_is_compiled_once_for_each_shape_and_its_products_are_counted():
    traces = []

    def step(x):
        traces.append(x.shape)
        return x @ x

    goodput, jitted = Goodput(), jax.jit(step)
    for size in (4, 4, 8):
        with goodput.step(jitted, jnp.ones((size, size))):
            jitted(jnp.ones((size, size)))
    assert traces == [(4, 4), (8, 8)]
    assert goodput._flops == 2 * (2 * 4**3) + 2 * 8**3, "a step that compiles is executed like any other"
    goodput.taken()
    assert goodput._flops == 0 and goodput.taken()["tflops_per_s"] == 0


def test_without_tensorboard_a_line_says_what_to_install(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with (
        caplog.at_level(logging.INFO, "jaxdistill"),
        contextlib.closing(MetricWriter(tmp_path, last_step=0)) as writers,
    ):
        writers.write(1, {"loss": 1.0})
    assert "pip install 'jaxdistill[tensorboard]'" in caplog.text and not (tmp_path / "tensorboard").exists()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 1.0}
