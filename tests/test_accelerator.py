"""benchmarks/accelerator.py: each figure of this project is measured on small sizes, and one that fails costs no other."""

import json
import subprocess
import sys

from conftest import ROOT
from program import environment

OURS = ("device", "peak", "step-live", "step-stored", "step-minilm", "queue", "attention", "parity")
"""Without PyTorch's figures and `encode`, whose compilation takes minutes here."""
BENCHMARKS = ROOT / "benchmarks"
PROGRAMS = """
import json
from accelerator import FIGURES, SMALL, make_mesh
size, mesh = SMALL._replace(absent=True), make_mesh()
print(json.dumps({name: [each for each, _ in one.programs(size, mesh)] for name, one in FIGURES.items() if one.programs}))
"""


def lines(*arguments, **variables):
    command = [sys.executable, BENCHMARKS / "accelerator.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment() | variables, check=True)
    return {line.pop("figure"): line for line in map(json.loads, done.stdout.splitlines())}


def test_every_figure_of_this_project_is_measured():
    found = lines("--small", f"--only={','.join(OURS)}")
    assert tuple(found) == OURS and not [line for line in found.values() if "error" in line]
    assert found["step-live"]["step"]["tflop"] > found["step-stored"]["step"]["tflop"] > 0
    assert len(found["queue"]) == 4 and len(found["attention"]) == 7  # and the seconds of each process
    assert all("ms" in program for name in OURS[1:-1] for program in found[name].values() if isinstance(program, dict))
    assert found["parity"]["largest_difference"] == 0.0  # both on the CPU


def test_the_programs_to_compile_for_an_absent_device_are_all_of_this_projects():
    command = [sys.executable, "-c", PROGRAMS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True, cwd=BENCHMARKS)
    found = json.loads(done.stdout)
    assert found.keys() == {*OURS, "encode"} - {"device"}
    assert [len(found[name]) for name in ("peak", "step-live", "encode", "queue", "attention")] == [1, 1, 5, 3, 6]


def test_a_figure_that_fails_or_is_out_of_time_is_said():
    found = lines("--small", "--only=peak,device", JAX_PLATFORMS="no-such-platform")
    assert "no-such-platform" in found["peak"]["error"] and "error" in found["device"]
    assert lines("--small", "--minutes=0")["parity"] == {"error": "left out: no time"}
