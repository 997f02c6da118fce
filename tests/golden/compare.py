"""Compares what this clone computes with what another commit computes, on this machine, bit for bit.

    python tests/golden/compare.py COMMIT [CASE ...]

Each commit runs its own `record.py`, so the command line may change between the two; a commit without one runs this clone's.
Prints a line for each array that differs, and ends with status 1 if any does.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import numpy as np

HERE = pathlib.Path(__file__).parent


def differences(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], *, tolerance: float) -> list[str]:
    """A line for each array that one side lacks or that differs; `tolerance` is relative for numbers above 1."""
    lines = [f"{name}: only in {side}" for side, names in (("the first", one.keys() - other.keys()), ("the second", other.keys() - one.keys())) for name in sorted(names)]  # fmt: skip
    for name in sorted(one.keys() & other.keys()):
        a, b = one[name], other[name]
        if a.shape != b.shape:
            lines.append(f"{name}: shapes {a.shape} and {b.shape}")
        elif a.dtype.kind not in "fiu" or b.dtype.kind not in "fiu":
            lines += [f"{name}: texts differ"] if not np.array_equal(a, b) else []
        else:
            error = np.abs(a.astype(np.float64) - b) / np.maximum(np.abs(b), 1.0)
            worst = float(np.nan_to_num(error).max(initial=0.0))
            if worst > tolerance or not np.array_equal(np.isnan(a), np.isnan(b)):
                lines.append(f"{name}: differs by up to {worst:.3g}")
    return lines


def main(commit: str, *cases: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=HERE, check=True)
        try:
            script = tree / "tests" / "golden" / "record.py"
            if not script.exists():
                shutil.copytree(HERE, script.parent, dirs_exist_ok=True)
            recorded = []
            for side, path in (("other", script), ("this", HERE / "record.py")):
                print(f"{side} commit", flush=True)
                subprocess.run([sys.executable, path, f"{folder}/{side}.npz", *cases], check=True)
                recorded.append(dict(np.load(f"{folder}/{side}.npz")))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)
    other, this = recorded
    lines = differences(this, other, tolerance=0.0)
    print("\n".join(lines) or f"{len(this)} arrays are equal")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
