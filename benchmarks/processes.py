"""Compares runs of 1, 2 and 4 processes: losses, files, time of a step, and what each process reads and packs.

    python benchmarks/processes.py --model=FOLDER --text=FILE --pairs=FILE.tsv --workdir=DIR --out=FILE.json

Trains and encodes with 1, 2 and 4 processes of this machine, four CPU devices together, on the same batches:

  stored, live   ConGen with stored and with live targets
  labels         the first two stages of Trans-Encoder, on the pairs
  encode         the text into a folder of vectors
  restart        ConGen with 4 processes, stopped at a third of its steps, then 2, stopped, then 4
  time           ConGen with one device and `--batch_size` sentences for each process: the seconds of a step

--cases names some of them. Differences are to the run of one process. With JAXDISTILL_DATA, `live` scores the seven STS sets.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from jaxdistill.cli import AGAIN, Parser, run
from jaxdistill.data.batches import Batches
from jaxdistill.data.store import TokenStore
from jaxdistill.data.vectors import blocks
from jaxdistill.files import write_atomic

COUNTS = (1, 2, 4)
CASES = ("stored", "live", "labels", "encode", "restart", "time")


def main(arguments: Sequence[str]) -> None:
    if arguments and arguments[0] == "--child":
        return counted(Path(arguments[1]), arguments[2], arguments[3:])
    parser = Parser(prog="benchmarks/processes.py", description=__doc__)
    for name in ("model", "text", "pairs", "workdir", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=16)
    given = parser.parse_args(arguments)
    results = {case: MEASURES[case](given, Path(given.workdir) / case) for case in given.cases.split(",")}
    print(json.dumps(results, indent=1))
    write_atomic(Path(given.out), json.dumps(results, indent=1) + "\n")


def counted(out: Path, program: str, arguments: Sequence[str]) -> None:
    """Runs a program, and writes down what it read and packed."""
    counts: Counter[str] = Counter()
    gather, batch_at = TokenStore.gather, Batches.batch_at

    def counting_gather(store, column, rows):
        found = gather(store, column, rows)
        counts["bytes"] += found.ids.nbytes + len(found.ids)  # with a mark for each token
        return found

    def counting_batch(batches, step):
        batch = batch_at(batches, step)
        counts["groups"] += len(batch.student.ids)
        return batch

    counting = patch.object(TokenStore, "gather", counting_gather), patch.object(Batches, "batch_at", counting_batch)
    with counting[0], counting[1], patch.object(sys, "argv", [program, *arguments]):
        try:
            runpy.run_module(f"jaxdistill.{program}", run_name="__main__")
        finally:
            out.write_text(json.dumps(counts))


def started(folder: Path, program: str, options: dict[str, Any], *, count: int, devices: int):
    """The processes of one run."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    found = []
    for index in range(count):
        joined = {"JAX_COORDINATOR_ADDRESS": address, "JAX_PROCESS_ID": str(index)} if count > 1 else {}
        variables = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_NUM_PROCESSES": str(count)} | joined
        command = [sys.executable, __file__, "--child", str(beside(folder, f"counts{index}.json")), program]
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with beside(folder, f"log{index}.txt").open("ab") as log:
            found.append(subprocess.Popen([*command, *arguments], env=variables, stdout=log, stderr=log))
    return found


def beside(folder: Path, name: str) -> Path:
    """A file of the run `folder`, which must not hold it: a workdir has to be empty."""
    return folder.with_name(f"{folder.name}.{name}")


def ended(processes: Sequence[subprocess.Popen], folder: Path, *, status: int = 0) -> None:
    if any(process.wait() != status for process in processes):
        raise SystemExit(f"a process failed: see {folder}.log*.txt")


def trained(folder: Path, options: dict[str, Any], *, count: int, devices: int | None = None) -> None:
    options = options | {"workdir": folder}
    ended(started(folder, "main", options, count=count, devices=devices or 4 // count), folder)


def congen(given, **options) -> dict[str, Any]:
    """Options of a ConGen training; dropout as in the paper, so that masks are compared too."""
    named = {
        "data.text": given.text, "data.batch_size": given.batch_size, "data.max_length": 32, "teacher.model": given.model,
        "student.layers": "1", "student.dropout": 0.1, "objective.queue_size": 64, "evals.pairs": "",
        "evals.agreement": "", "evals.best": "", "evals.sts": False, "evals.every": given.steps, "run.steps": given.steps, "run.log_every": 1,
        "run.precision": "float32", "data.cache_folder": Path(given.workdir) / "cache",
    } | {name.replace("__", "."): value for name, value in options.items()}  # fmt: skip
    return {"config": "configs/congen.py:tiny"} | {f"config.{name}": value for name, value in named.items()}


def series(folder: Path, name: str) -> np.ndarray:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return np.array([line[name] for line in lines if name in line])


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The largest relative difference of two series of losses."""
    return float(np.max(np.abs(other / one - 1.0)))


def counts_of(folder: Path, count: int) -> list[dict[str, int]]:
    return [json.loads(beside(folder, f"counts{index}.json").read_text()) for index in range(count)]


def compared(workdir: Path, options: dict[str, Any], stages: Sequence[str] = ("",)) -> list[dict[str, Any]]:
    """Losses of each number of processes beside the losses of one, and what each process read and packed."""
    rows = []
    for count in COUNTS:
        folder = workdir / str(count)
        cache = {"config.data.cache_folder": workdir / f"cache{count}"}  # each makes its own targets
        trained(folder, options | cache, count=count)
        pairs = [(workdir / "1" / stage, folder / stage) for stage in stages]
        losses = max(apart(*(series(one, "loss") for one in pair)) for pair in pairs)
        scores = max(float(np.max(np.abs(np.subtract(*map(final_scores, pair))))) for pair in pairs)
        each = counts_of(folder, count)
        rows.append({"processes": count, "losses apart": losses, "scores apart": scores, "each": each})
    return rows


def final_scores(folder: Path) -> np.ndarray:
    """All scores of the student, in [-1, 1]."""
    scores = json.loads((folder / "results.json").read_text())["scores"]["student after"]
    return np.array([scores[name] for name in sorted(scores)])


def stored(given, workdir: Path) -> list[dict[str, Any]]:
    return compared(workdir, congen(given, teacher__kind="stored"))


def live(given, workdir: Path) -> list[dict[str, Any]]:
    return compared(workdir, congen(given, teacher__kind="live", evals__sts=True))


def labels(given, workdir: Path) -> list[dict[str, Any]]:
    stage = {
        "student.model": given.model, "student.layers": "", "evals.best": "", "evals.every": given.steps,
        "run.steps": given.steps, "run.log_every": 1, "run.precision": "float32", "data.batch_size": given.batch_size,
    }  # fmt: skip
    stage |= {"data.text": given.pairs, "evals.pairs": ""}
    options = {f"config.all.{name}": value for name, value in stage.items()}
    options |= {"config": "configs/trans_encoder.py:tiny", "config.stage1.teacher.model": given.model}
    return compared(workdir, options, ("stage1", "stage2"))


def encode(given, workdir: Path) -> list[dict[str, Any]]:
    rows = []
    for count in COUNTS:
        folder = workdir / str(count)
        options = {
            "model": given.model,
            "input": given.text,
            "output": f"{workdir}/vectors{count}/",
            "precision": "float32",
        }
        begun = time.monotonic()
        ended(started(folder, "encode", options, count=count, devices=4 // count), folder)
        one, other = (np.concatenate(list(blocks(workdir / f"vectors{number}"))) for number in (1, count))
        taken = time.monotonic() - begun
        rows.append(
            {"processes": count, "rows": len(other), "apart": float(np.abs(one - other).max()), "seconds": taken}
        )
    return rows


def restart(given, workdir: Path) -> dict[str, Any]:
    """A run whose number of processes changes, beside an undisturbed one."""
    options = congen(given, teacher__kind="stored")
    trained(workdir / "undisturbed", options, count=1)
    folder, begun_at = workdir / "disturbed", []
    for count, stop in ((4, given.steps // 3), (2, 2 * given.steps // 3), (4, None)):
        processes = started(folder, "main", options | {"workdir": folder}, count=count, devices=4 // count)
        metrics = folder / "metrics.jsonl"
        begun_at.append(len(series(folder, "loss")) if metrics.exists() else 0)
        while stop and not (metrics.exists() and len(series(folder, "loss")) >= stop):
            time.sleep(0.05)
        if stop:
            processes[1].send_signal(signal.SIGTERM)
        ended(processes, folder, status=AGAIN if stop else 0)
    difference = apart(series(workdir / "undisturbed", "loss"), series(folder, "loss"))
    return {"processes": [4, 2, 4], "begun after steps": begun_at, "steps": given.steps, "apart": difference}


def step_time(given, workdir: Path) -> list[dict[str, Any]]:
    """Seconds of a step with the same part of a batch for each process."""
    rows = []
    for count in COUNTS:
        options = congen(given, teacher__kind="stored", data__batch_size=given.batch_size * count)
        trained(workdir / str(count), options, count=count, devices=1)
        rates = series(workdir / str(count), "sentences_per_s")[given.steps // 4 :]
        rows.append({"processes": count, "seconds": float(np.median(given.batch_size * count / rates))})
    return rows


MEASURES = {
    "stored": stored, "live": live, "labels": labels, "encode": encode, "restart": restart, "time": step_time,
}  # fmt: skip


if __name__ == "__main__":
    run(main)
