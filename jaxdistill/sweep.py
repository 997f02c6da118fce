"""Trains configs with each combination of some options and seeds, one after the other, and compares the students.

  python -m jaxdistill.sweep --config=l2.py:tiny,congen.py:tiny --seeds=0,1,2 --workdir=runs/methods
  python -m jaxdistill.sweep --config=congen.py:quickstart --config.objective.queue_size=64,2048 --workdir=runs/queue
  python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --seeds=0,1,2 --config.data.text=TEXT

--config.SECTION.OPTION=A,B trains with each value, and several such options with each combination. Brackets and quotes keep a
value whole: --config.data.text='"a.txt,b.txt"'. Running the same command again resumes the sweep; points and seeds may be
added. Each point has its own log and workdir. The workdir of the sweep gets sweep.csv with the scores of all points. The
checkpoints of a finished point are removed; its export holds the best student.
"""

import collections
import csv
import hashlib
import io
import itertools
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdistill.config import in_every_stage, load_config
from jaxdistill.core import InputError, did_you_mean, errors_of, plugins, refuse
from jaxdistill.core.cli import BY_NAME, Listed, listed, make_callable, parse, run
from jaxdistill.core.files import local, write_atomic
from jaxdistill.core.paths import configs_folder
from jaxdistill.core.runtime import Interrupted, Interrupts
from jaxdistill.evals.report import as_text, hundredfold
from jaxdistill.main import parse_flags
from jaxdistill.training.stages import is_finished
from jaxdistill.training.workdir import folder as workdirs

Row = dict[str, Any]
"""A point: its folder `point`, swept `options`, `seed`, `stages`, `arguments` of `jaxdistill.main`, exit `status`, a line on its
`failure`, digest of its `text`, and in [-1, 1] the best `score` by `metric` and the `sts_average`."""
SCORES = ("score", "sts_average")
POINT_FAILED = 1


def sweep(
    config: Listed = "",
    *,
    workdir: str | Path,
    grid: Annotated[str | Path | Mapping[str, list[Any]] | Sequence[Mapping[str, Any]], BY_NAME] = "",
    seeds: Listed = "",
    options: Annotated[Mapping[str, Any] | None, tyro.conf.Suppress] = None,
    dry_run: bool = False,
) -> list[Row]:
    """Trains configs with each combination of some options; calling it again resumes.

    NOTE: each training is a separate process. On a GPU or TPU, call this before anything has used the devices.

    Args:
      config: FILE[:PRESET], or several; empty: the study's.
      workdir: Folder of the sweep, which gets a table and each training.
      grid: Name of a study, or a file with CONFIG and GRID as in configs/studies/; from Python also such a GRID.
      seeds: Seeds of each point, of all its stages.
      options: options of every training, by dotted name, such as `{"data.text": "texts/*.txt"}`; lists are swept.
      dry_run: Check the options, list the points, and stop.

    Returns:
      One row per training: `point`, `options`, `seed`, `status` (0: trained), `failure`, `metric`, `score`, `sts_average`; empty
      for a dry run.
    """
    study, grid = read_study(str(grid)) if isinstance(grid, str | Path) else ("", grid)
    lists = {name: value for name, value in (options or {}).items() if isinstance(value, list)}
    fixed = {name: value for name, value in (options or {}).items() if name not in lists}
    points = [{**point, **chosen} for point in combinations(grid) for chosen in combinations(lists)]
    rows, folder = plan(listed(config) or [study], fixed, points, listed(seeds)), local(workdir, "workdir")
    if dry_run:
        print("\n".join(f"point {number} of {len(rows)}: {row['point']}" for number, row in enumerate(rows, 1)))
        return []
    with workdirs.locked(folder):
        for number, row in enumerate(rows, 1):
            done, log = finished(row, folder), folder / f"{row['point']}.log"
            print(f"point {number} of {len(rows)}: {row['point']}, log {log}", end=" ... ", flush=True)
            row["status"] = 0 if done else train(row, folder, log)
            row |= done or finished(row, folder) or {}
            if row["status"]:
                line = re.split(r"[\r\n]+", log.read_text(encoding="utf-8", errors="replace").strip())[-1]
                row["failure"] = f"failed with status {row['status']}: {line}"
            score = "-" if row["score"] is None else hundredfold(row["score"])
            print(row["failure"] or score + " (done before)" * bool(done))
            write_csv(rows, folder / "sweep.csv")
    texts = {(row["stages"][-1].data.text, row["text"]) for row in rows if row["text"]}
    if len(texts) > len(dict(texts)):
        raise InputError(
            "the files of data.text have changed between points, whose scores are not comparable; remove the folders of the points "
            "that were trained before, or give another workdir."
        )
    print(f"{as_text(table(rows), width=160)}\ntable: {folder / 'sweep.csv'}")
    return rows


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.sweep`. NOTE: nothing here may start JAX's devices; the trainings need them."""
    parsed, flags = parse(sweep, arguments, others="--config.")
    options = parsed["options"] = {}
    for name, _, text in (flag.partition("=") for flag in flags):
        is_whole = text.startswith(("(", "[", '"', "'"))
        values = [text.strip("\"'")] if is_whole else [value.strip() for value in text.split(",")]
        options[name.removeprefix("--config.")] = values if len(values) > 1 else values[0]
    if any(row["status"] for row in sweep(**parsed)):
        sys.exit(POINT_FAILED)


def shipped_studies() -> dict[str, Path]:
    """Maps names to files of the papers' studies."""
    return {path.stem: path for path in sorted((configs_folder() / "studies").glob("*.py"))}


def read_study(name: str) -> tuple[str, Any]:
    """CONFIG and GRID of a file or of a shipped study; for an empty name, one point without options."""
    path, shipped = Path(name), shipped_studies()
    if name and not path.is_file() and path.stem not in shipped:
        close = did_you_mean(path.stem, list(shipped))
        raise InputError(f"study {name} does not exist; shipped: {', '.join(shipped)}.{close}")
    module = plugins.load_module(str(path if path.is_file() else shipped[path.stem])) if name else None
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None if name else [{}])


def combinations(grid: Any) -> Sequence[Mapping[str, Any]]:
    """All combinations of a dict of lists; a list of dicts as it is."""
    if isinstance(grid, Mapping) and all(isinstance(values, list) for values in grid.values()):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    is_grid = isinstance(grid, list) and grid and all(isinstance(options, Mapping) for options in grid)
    refuse([(not is_grid, "the grid must be a dict of option to list of values, or a list of dicts, and not empty.")])
    return list(grid)


def plan(
    specs: Sequence[str], options: Mapping[str, Any], grid: Sequence[Mapping[str, Any]], seeds: Sequence[Any]
) -> list[Row]:
    """The points of a sweep; parses the options of all before the first one runs. A grid's values override `options`, seeds both."""
    columns = dict.fromkeys(name for chosen in grid for name in chosen)
    points: dict[str, Row] = {}
    for spec, chosen, seed in itertools.product(specs, grid, seeds or [None]):
        values = {**options, **chosen}
        if seed is not None:
            values |= dict.fromkeys(in_every_stage(load_config(spec), "run.seed"), seed)
        arguments = [f"--config={spec}", *(f"--config.{name}={value}" for name, value in values.items())]
        with errors_of(spec or "a sweep"):
            stages = parse_flags([*arguments, "--workdir=unused"]).stages
        shown = {"config": spec} if len(specs) > 1 else {}
        shown |= {name: chosen.get(name, "-") for name in columns if not name.endswith("run.seed")}
        named = {name: value for name, value in shown.items() if value != "-"} | {"run.seed": stages[0].run.seed}
        plain = ",".join(f"{name}={value}" for name, value in named.items())
        point = re.sub(r"[^A-Za-z0-9_.=,+-]", "-", plain)[:150]
        point += "" if point == plain else f"-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
        points[point] = {
            "point": point, "options": shown, "seed": stages[0].run.seed, "stages": stages, "arguments": arguments, "status": None,
            "failure": "", "text": None, "metric": None, **dict.fromkeys(SCORES),
        }  # fmt: skip
    return list(points.values())


def train(row: Row, folder: Path, log: Path) -> int:
    """Trains a point; returns the exit status. Passes on Ctrl-C, SIGTERM and SIGHUP, so that the training saves and exits."""
    command = [sys.executable, "-m", "jaxdistill.main", *row["arguments"], f"--workdir={folder / row['point']}"]
    with log.open("ab") as file, Interrupts() as interrupts:
        # A new session: otherwise the terminal would send it a second Ctrl-C, on which it exits without saving.
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=unbuffered, start_new_session=True)
        while process.poll() is None and not interrupts.status:
            time.sleep(0.1)
        if interrupts.status:
            process.send_signal(signal.SIGINT)
            print("stopping as soon as the training has saved; the same command continues from there", flush=True)
            process.wait()
            raise Interrupted(interrupts.status)
    return process.returncode


def finished(row: Row, folder: Path) -> Row | None:
    """The scores of a finished point, whose checkpoints are removed; None for an unfinished one."""
    workdir, count = folder / row["point"], len(row["stages"])
    folders = [workdir] if count == 1 else [workdirs.stage_folder(workdir, number) for number in range(1, count + 1)]
    if not all(map(is_finished, folders, row["stages"])):
        return None
    for each in folders:
        shutil.rmtree(each / workdirs.CHECKPOINTS, ignore_errors=True)
    results = workdirs.read_note(folders[-1] / workdirs.RESULTS)
    metric, scores = results["best_metric"], results["scores"]["student after"]
    text = workdirs.read_note(folders[-1] / workdirs.INPUTS).get(workdirs.TEXT_FILES)
    return {"metric": metric, "score": scores.get(metric), "sts_average": scores.get("average"), "text": text}


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Adds means and standard deviations (n - 1) over the seeds of the same options to the rows, and writes them."""
    for row, name in itertools.product(rows, SCORES):
        scores = [other[name] for other in rows if other["options"] == row["options"] and other[name] is not None]
        row[f"{name}_mean"] = statistics.fmean(scores) if scores else None
        row[f"{name}_sd"] = statistics.stdev(scores) if len(scores) > 1 else None
    text, names = io.StringIO(), [f"{name}{end}" for name in SCORES for end in ("", "_mean", "_sd")]
    columns = [*rows[0]["options"], "seed", "status", "metric", *names]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row["options"] | row for row in rows)
    write_atomic(path, text.getvalue())


def table(rows: Sequence[Row]) -> Table:
    """One line for each choice of options: means and standard deviations over seeds, times 100."""
    names = [name for name in SCORES if any(row[name] is not None for row in rows)]
    shown = Table(*rows[0]["options"], "seeds", "metric", *(f"{name} ± s.d." for name in names), box=SIMPLE_HEAD)
    for choice, seeds in collections.Counter(str(row["options"]) for row in rows).items():
        row = next(row for row in rows if str(row["options"]) == choice)
        numbers = [[row[f"{name}_{end}"] for end in ("mean", "sd")] for name in names]
        scores = [" ± ".join(hundredfold(number) for number in pair if number is not None) or "-" for pair in numbers]
        shown.add_row(*map(str, row["options"].values()), str(seeds), row["metric"] or "-", *scores)
    return shown


make_callable(__name__, sweep)

if __name__ == "__main__":
    run(main)
