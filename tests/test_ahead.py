"""Programs of the step that threads compile before the first batch."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from jaxdistill import main
from jaxdistill.training import ahead, loop

from program import tiny_arguments, write_text

KEYS = """
import hashlib, sys
import jax.numpy as jnp
from compiled import congen, train_step
from jaxdistill.cluster.mesh import make_mesh
from test_compiled_step import tpu_mesh

for mesh in (make_mesh(), tpu_mesh("v5e:2x4")):
    step, arguments = train_step(mesh, congen(64), batch_size=16, groups=8, compute_dtype=jnp.bfloat16)
    lowered = step.lower(*arguments)
    print(hashlib.sha256(lowered.as_text().encode()).hexdigest())
    if mesh.devices.flat[0].platform == "cpu":
        lowered.compile()
"""


def test_accelerators_run_the_programs_that_threads_compiled_and_learn_the_same(tmp_path, monkeypatch, capsys):
    write_text(tmp_path)
    losses, compiled = [], ahead.StepPrograms._compiled
    for platform in ("cpu", "tpu"):
        made = []
        monkeypatch.setattr(loop, "platform", lambda mesh, platform=platform: platform)
        monkeypatch.setattr(
            ahead.StepPrograms, "_compiled", lambda *given, made=made: made.append(given) or compiled(*given)
        )
        given = tiny_arguments(tmp_path, run__steps=2, evals__every=2, data__pack_shapes=3)
        main.main([*given, f"--workdir={tmp_path / platform}"])
        lines = (tmp_path / platform / "metrics.jsonl").read_text().splitlines()
        losses.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
        assert len(made) in ((0,) if platform == "cpu" else (1, 2))
        assert ("compiled the step for a batch of 8 x " in capsys.readouterr().out) == (platform == "tpu")
    assert losses[0] == losses[1]


def test_the_key_of_a_kept_program_is_the_same_in_every_process(tmp_path):
    """On CPUs the name of its file, on TPUs, which are absent here, the program before it is compiled."""
    pytest.importorskip("libtpu", reason="the TPU compiler is missing: pip install libtpu")
    said = []
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
        environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        done = subprocess.run(
            [sys.executable, "-c", KEYS],
            env=environment,
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] and said[0].count("\n") == 2
    assert len(list((tmp_path / "cache").glob("jit_train_step-*-cache"))) == 1
