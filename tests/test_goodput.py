"""Where the time of a training goes, and traces of its steps."""

import json
import logging

import jax
import jax.numpy as jnp
import pytest

from jaxdistill import main
from jaxdistill.training.hooks.goodput import ACTIVITIES, Goodput
from jaxdistill.training.hooks.profile import Profile

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
    assert len(list((workdir / "profile").rglob("*.xplane.pb"))) == 1


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


@pytest.fixture
def traces(monkeypatch):
    """What the profiler is asked, and what is waited for."""
    made = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: made.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: made.append("stop"))
    monkeypatch.setattr(jax, "block_until_ready", made.append)
    return made


@pytest.mark.parametrize(
    ("option", "steps", "expected"),
    [
        ("2:3", range(1, 6), ["state 2", "start", "results 3", "stop"]),
        ("10:20", range(13, 25), ["state 13", "start", "results 20", "stop"]),
        ("10:20", range(9, 16), ["state 10", "start", "stop"]),
        ("2:2", range(1, 4), ["state 2", "start", "results 2", "stop"]),
    ],
)
def test_a_trace_has_the_steps_of_the_range_that_the_process_runs(tmp_path, traces, caplog, option, steps, expected):
    profile = Profile(option, tmp_path, Goodput())
    with caplog.at_level(logging.INFO):
        for step in steps:
            profile.before_step(step, f"state {step}")
            profile.after_step(step, None, f"results {step}")
        profile.close()
    assert traces == expected
    first, last = max(steps[0], profile.first), min(steps[-1], profile.last)
    (record,) = caplog.records
    assert record.levelname == "INFO" and f"steps {first} to {last}" in record.message
