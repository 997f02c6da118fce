"""Compares time and memory of a training step with bfloat16 and float32 matrix products.

    python benchmarks/precision.py --config=configs/simcse.py:distilface --batch_sizes=64,256 --config.data.text=TEXT

Steps of both precisions alternate, of the same batch. Wall time depends on what else the machine does; the processor time
of the process does so less. Memory is what XLA reserves for a step: arguments and temporaries.
"""

import tempfile
import time
from pathlib import Path

import jax

from jaxdistill.cli import Parser, run
from jaxdistill.cluster import mesh as meshes
from jaxdistill.config import parse_config
from jaxdistill.main import parse_flags
from jaxdistill.training import overview
from jaxdistill.training.setup import build

PRECISIONS = ("float32", "bfloat16")


def main(arguments):
    parser = Parser(prog="benchmarks/precision.py", description=__doc__)
    parser.add_argument("--batch_sizes", default="64,256")
    parser.add_argument("--steps", type=int, default=5, help="of each precision")
    given, of_config = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        raw = parse_flags([*of_config, f"--workdir={folder}"]).config
        for batch_size in map(int, given.batch_sizes.split(",")):
            raw["data"]["batch_size"] = batch_size
            compare(raw, Path(folder), steps=given.steps)


def compare(raw: dict, folder: Path, *, steps: int) -> None:
    """Prints a line for each precision."""
    runs = {
        name: build.build(parse_config({**raw, "run": {**raw["run"], "precision": name}}), folder, progress=False)
        for name in PRECISIONS
    }
    steppers = {name: stepper(run) for name, run in runs.items()}
    walls, processors = {name: [] for name in runs}, {name: [] for name in runs}
    for _ in range(steps):
        for name, step in steppers.items():
            begun = time.monotonic(), time.process_time()
            step()
            walls[name].append(time.monotonic() - begun[0])
            processors[name].append(time.process_time() - begun[1])
    for name, one in runs.items():
        memory, *_ = overview.probe(one, one.text.batches.batch_at(0))
        print(
            f"batch {one.text.batches.batch_size} {name}: {min(walls[name]):.2f} s a step, {min(processors[name]):.2f} s of "
            f"processor time, {memory / 2**20:,.0f} MiB"
        )


def stepper(one: build.Run):
    """A function that takes a step, always of the first batch; it has been called once, so that it is compiled."""
    batch = meshes.place(one.text.batches.batch_at(0), meshes.batch_sharding(one.program.mesh))
    kept = [one.first_state(one.text.seeds())]

    def step() -> None:
        kept[0], metrics = one.program.train_step(kept[0], one.program.teacher_params, batch)
        jax.block_until_ready((kept[0], metrics))

    step()
    return step


if __name__ == "__main__":
    run(main)
