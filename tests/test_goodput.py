"""Where the time of a training goes, and traces of its steps."""

import json

import jax
import jax.numpy as jnp
import pytest

from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.training.goodput import ACTIVITIES, Goodput
from jaxdistill.training.profile import profiled_steps
from jaxdistill.training.slices import peak_flops_per_s

from program import tiny_arguments, write_text


def test_a_run_says_where_its_time_goes_and_traces_the_steps_asked_for(tmp_path):
    write_text(tmp_path)
    workdir = tmp_path / "w"
    given = tiny_arguments(tmp_path, run__steps=6, run__log_every=2, evals__every=6)
    main.main([*given, f"--workdir={workdir}", "--profile=3:4"])
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "loss" in line]
    assert [line["step"] for line in logged] == [2, 4, 6]
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
    assert goodput._flops == 2 * 4**3  # of the second step: the time of those that compile is not the steps'
    goodput.taken()
    assert goodput._flops == 0 and goodput.taken()["tflops_per_s"] == 0


@pytest.mark.parametrize("option", ["10", "20:10", "0:5", "a:b"])
def test_a_range_of_steps_that_is_none_is_refused(option):
    with pytest.raises(InputError, match=r"run.profile=.*10:20"):
        profiled_steps(option)


def test_the_peak_is_known_for_tpus_and_large_gpus_alone():
    kinds = ("TPU v5 lite", "TPU v5", "NVIDIA H100 80GB HBM3", "cpu")
    assert [peak_flops_per_s(kind) for kind in kinds] == [197e12, 459e12, 989e12, None]
