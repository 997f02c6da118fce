"""Times a training from the command to its first step, with a cold and with a warm cache.

    python benchmarks/start.py --config=configs/congen.py:quickstart --rounds=3 --out=start.json

Runs the program with one step in a new process each time: first with an empty cache folder (cold), then with the folder that
the cold run left (warm); the two take turns. Counts seconds from the command to the first `loss` in its metrics file.
`ratio` is cold / warm.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from interleaved import write

from jaxdistill.cli import Parser, positive, run

POLL_S = 0.05


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/start.py", description=__doc__)
    parser.add_argument("--config", default="configs/congen.py:quickstart")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--out", default="", help="file for the result")
    given = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(given.rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind, found in seconds.items():
                found.append(to_first_step(given.config, Path(folder), kind))
    medians = {f"{kind}_s": statistics.median(found) for kind, found in seconds.items()}
    result = {"ratio": medians["cold_s"] / medians["warm_s"], **medians, "rounds": seconds}
    write(given.out, {**result, "options": vars(given)})


def to_first_step(config: str, folder: Path, name: str) -> float:
    """Seconds until the first loss is logged; the run is then interrupted."""
    workdir = folder / name
    environment = os.environ | {"JAXDISTILL_CACHE": str(folder / "cache")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, "-m", "jaxdistill.main", f"--config={config}", f"--workdir={workdir}"]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--config.run.log_every=1", f"--config.data.cache_folder={folder / 'cache'}"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not has_loss(workdir / "metrics.jsonl"):
            if process.poll() is not None:
                raise RuntimeError(f"the program ended with status {process.returncode} before its first step")
            time.sleep(POLL_S)
        return time.perf_counter() - begun
    finally:
        process.kill()
        process.wait()


def has_loss(metrics: Path) -> bool:
    return metrics.exists() and '"loss"' in metrics.read_text(encoding="utf-8")


if __name__ == "__main__":
    run(main)
