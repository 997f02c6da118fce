"""benchmarks/accelerator.py measures on small sizes."""

import json
import subprocess
import sys

from conftest import ROOT
from program import environment


def test_a_step_and_pytorch_are_measured():
    """`encode` and PyTorch's steps are left out: their programs take a minute to compile."""
    command = [sys.executable, "accelerator.py", "--small", "--only=step-stored,torch-queue"]
    completed = subprocess.run(command, capture_output=True, env=environment(), check=True, cwd=ROOT / "benchmarks")
    step, queue = map(json.loads, completed.stdout.splitlines())
    assert step["step"]["tflop"] > 0 and step["step"]["ms"] > 0
    assert queue["256 keys"]["ms"] > 0
