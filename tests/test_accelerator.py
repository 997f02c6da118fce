"""benchmarks/accelerator.py: each figure is measured on small sizes, and one that fails costs no other."""

import json
import subprocess
import sys

from conftest import ROOT
from program import environment


def output(*arguments, **variables):
    command = [sys.executable, "accelerator.py", "--small", *arguments]
    environ = environment() | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, cwd=ROOT / "benchmarks")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_step_is_measured_and_a_figure_that_fails_is_an_error_of_its_own():
    """`encode` is left out: its programs take a minute to compile."""
    [step] = output("--only=step-stored")
    assert step["step"]["tflop"] > 0 and step["step"]["ms"] > 0
    [peak] = output("--only=peak", JAX_PLATFORMS="no-such-platform")
    assert "no-such-platform" in peak["error"]
