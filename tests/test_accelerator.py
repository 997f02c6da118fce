"""benchmarks/accelerator.py: a step is measured on small sizes."""

import json
import subprocess
import sys

from conftest import ROOT
from program import environment


def test_a_step_is_measured():
    """`encode` is left out: its programs take a minute to compile."""
    command = [sys.executable, "accelerator.py", "--small", "--only=step-stored"]
    done = subprocess.run(command, capture_output=True, env=environment(), check=True, cwd=ROOT / "benchmarks")
    step = json.loads(done.stdout)["step"]
    assert step["tflop"] > 0 and step["ms"] > 0
