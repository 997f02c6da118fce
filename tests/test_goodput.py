"""Where the time of a training goes, and traces of its steps."""

import contextlib
import json
import logging
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from jaxdistill import main
from jaxdistill.cluster.chips import peak_flops_per_s
from jaxdistill.core import InputError
from jaxdistill.training.hooks import goodput as goodput_module
from jaxdistill.training.hooks.goodput import ACTIVITIES, Goodput
from jaxdistill.training.hooks.profile import Profile, profiled_steps
from jaxdistill.training.run import Run
from jaxdistill.workdir.checkpoint import Checkpoints

from program import tiny_arguments, write_text


@pytest.fixture
def counted(monkeypatch):
    """What was called inside which activity: (activity, name of the function)."""
    calls, inside, spent = set(), [""], Goodput.spent

    @contextlib.contextmanager
    def noted(goodput, activity):
        inside.append(activity)
        with spent(goodput, activity):
            yield
        inside.pop()

    def watch(owner, name):
        original = getattr(owner, name)

        def called(*arguments, **options):
            calls.add((inside[-1], name))
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, called)

    monkeypatch.setattr(Goodput, "spent", noted)
    for owner, name in (
        (Checkpoints, "restore"), (Checkpoints, "close"), (Run, "first_state"), (jax.profiler, "start_trace"),
        (jax.profiler, "stop_trace"),
    ):  # fmt: skip
        watch(owner, name)
    return calls


def test_a_run_says_where_its_time_goes_and_traces_the_steps_asked_for(tmp_path, counted):
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
    waits = {("checkpoints", name) for name in ("restore", "close", "first_state")}
    assert waits | {("steps", "start_trace"), ("steps", "stop_trace")} <= counted


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


def test_utilisation_is_the_share_of_the_peak_of_all_devices_and_is_left_out_where_no_peak_is_known(monkeypatch):
    seconds = iter([0.0, 0.0, 0.0, 4.0, 4.0, 8.0])  # the wait before the first step, its compilation, the second step
    monkeypatch.setattr(goodput_module, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    goodput, jitted, ones = Goodput(), jax.jit(lambda x: x @ x), jnp.ones((10, 10))
    for _ in range(2):
        with goodput.step(jitted, ones):
            pass
    monkeypatch.setattr(goodput_module, "peak_flops_per_s", lambda kind: 100.0 if kind == "cpu" else 0.0)
    taken = goodput.taken()
    assert taken["seconds/compile"] == 4 and taken["seconds/steps"] == 4
    assert taken["utilisation"] == pytest.approx(2 * 2000 / 4 / jax.device_count() / 100)
    monkeypatch.undo()
    assert "utilisation" not in Goodput().taken()


def test_no_step_is_in_flight_where_one_compiles(monkeypatch):
    goodput, waited = Goodput(), []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    for size in (4, 4, 8):
        with goodput.step(jax.jit(jnp.sum), jnp.ones(size)):
            pass
    assert [given.shape for (given,) in waited] == [(4,), (8,)]


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


@pytest.mark.parametrize(("steps", "ran"), [(range(1, 5), "steps 1 to 4"), (range(0), "no step")])
def test_a_range_that_no_step_falls_into_is_a_warning(tmp_path, traces, caplog, steps, ran):
    profile = Profile("300:310", tmp_path, Goodput())
    for step in steps:
        profile.before_step(step, None)
        profile.after_step(step, None, None)
    profile.close()
    assert not traces and caplog.messages == [f"run.profile=300:310 traced nothing: this process ran {ran}"]
    Profile("", tmp_path, Goodput()).close()
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("option", ["10", "20:10", "0:5", "a:b"])
def test_a_range_of_steps_that_is_none_is_refused(option):
    with pytest.raises(InputError, match=r"run.profile=.*10:20"):
        profiled_steps(option)


def test_the_peak_is_known_for_tpus_and_large_gpus_alone():
    kinds = ("TPU v5 lite", "TPU v5", "NVIDIA H100 80GB HBM3", "cpu")
    assert [peak_flops_per_s(kind) for kind in kinds] == [197e12, 459e12, 989e12, None]
