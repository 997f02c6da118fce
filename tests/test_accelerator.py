"""benchmarks/accelerator.py: each figure is measured on small sizes, and one that fails costs no other."""

import json
import subprocess
import sys

from conftest import ROOT
from program import environment

MEASURED = """
import json
from accelerator import SMALL, measured
print(json.dumps({name: measured(name, SMALL) for name in ("peak", "step-live", "step-stored")}))
"""
"""In one process. `step-minilm` is `step-stored` at this size, and the programs of `encode` take a minute to compile."""


def output(*arguments, **variables):
    command = [sys.executable, *arguments]
    environ = environment() | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, cwd=ROOT / "benchmarks")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_figure_is_measured():
    [found] = output("-c", MEASURED)
    assert found["step-live"]["step"]["tflop"] > found["step-stored"]["step"]["tflop"] > 0
    assert all(program["ms"] > 0 for figure in found.values() for program in figure.values())


def test_a_figure_that_fails_or_is_out_of_time_is_an_error_of_its_own():
    [peak] = output("accelerator.py", "--small", "--only=peak", JAX_PLATFORMS="no-such-platform")
    [device] = output("accelerator.py", "--small", "--minutes=0", "--only=device")
    assert "no-such-platform" in peak["error"] and device == {"figure": "device", "error": "left out: no time"}
