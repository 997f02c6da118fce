"""Compares what this clone computes with what another commit computes, on this machine, bit for bit.

    python tests/golden/compare.py COMMIT [CASE ...]

Each commit runs its own `record.py`, so the command line may change between the two; a commit without one runs this clone's.
Prints the name of each array that differs, and ends with status 1 if any does.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent


def bits(array: np.ndarray) -> tuple:
    return array.shape, array.dtype, array.tobytes()


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
    names = this.keys() | other.keys()
    absent = np.zeros(0)
    differ = [name for name in sorted(names) if bits(this.get(name, absent)) != bits(other.get(name, absent))]
    print("\n".join(differ) or f"{len(names)} arrays are equal")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
