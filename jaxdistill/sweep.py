"""Trains several configs, or one config with each combination of a grid of options, in sequence, and compares them.

  python -m jaxdistill.sweep --config=l2.py:tiny,congen.py:tiny --seeds=0,1,2 --workdir=runs/methods
  python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --seeds=0,1,2 --config.data.text=TEXT
  python -m jaxdistill.sweep --config=configs/congen.py:quickstart --workdir=runs/queue \\
    --grid='objective.queue_size=64,2048;optimizer.learning_rate=1e-4,5e-4'

--config.SECTION.OPTION=VALUE applies to every point. Running the same command again resumes the sweep; points and seeds
may be added. The workdir gets a table (sweep.md, sweep.csv), the numbers (sweep.json) and a plot
(sweep.png). Each point has its own log and workdir. Stages with the same options as an earlier point's, after the same stages, are
not trained again: the workdir links to them. The checkpoints of a finished point are removed; its export holds the best
student.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdistill import config as configs
from jaxdistill.calls import by_name, in_python_words, make_callable
from jaxdistill.cli import Interrupted, Interrupts, Parser, local_path, run
from jaxdistill.cluster.processes import refuse_several_tasks
from jaxdistill.core import InputError
from jaxdistill.files import refuse_no_folder
from jaxdistill.files.reading import read_json
from jaxdistill.grid import (
    CONFIG,
    LACKS,
    SEED,
    Point,
    base_options,
    option_named,
    plan,
    points,
    read_grid,
    say_who_takes,
    split_outside_brackets,
    studies,
)
from jaxdistill.options.config_file import first_line, load_config_module
from jaxdistill.reporting import sweep as comparison
from jaxdistill.reporting.sweep import Row, hundred
from jaxdistill.training.setup.stage_checks import HERE, check_launch, refuse_changed_text, text_digest
from jaxdistill.training.stages import is_finished
from jaxdistill.workdir.folder import RESULTS, drop_checkpoints, stage_folder
from jaxdistill.workdir.lock import locked

POINT_FAILED = 1
POLL_SECONDS = 0.1
"""Interval at which a training and interrupts are polled."""


@in_python_words()
def sweep_options(
    config: str | pathlib.Path | Sequence[str] = "",
    *,
    workdir: str | pathlib.Path,
    grid: str | pathlib.Path | Mapping[str, list[Any]] | list[Mapping[str, Any]] = "",
    seeds: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> list[Row]:
    """Trains configs with each combination of some options; calling it again resumes. `jaxdistill.sweep` is this function.

    NOTE: each training is a separate process. On a GPU or TPU, call this before anything has used the devices.

    Args:
      config: config file and preset, or several; empty: the study's.
      workdir: folder of the sweep, which gets tables, a plot and each training.
      grid: maps dotted options to values, all of which are combined; or a list of mappings of options; or a study's file or name.
      seeds: seeds of each point.
      options: options of every training, by dotted name, such as `{"data.text": "texts/*.txt"}`.
      dry_run: print the points, and train nothing.

    Returns:
      One row per training: `point`, `options`, `seed`, `status` (0: trained), `failure`, `metric`, `score`, `sts_average`; empty
      for a dry run.
    """
    specs = [config] if isinstance(config, str | pathlib.Path) else config
    flags = [f"--config.{name}={value}" for name, value in by_name(options).items()]
    study = str(grid) if isinstance(grid, str | pathlib.Path) else ""
    parsed = _parser().parse_call(
        {"config": specs, "grid": study, "seeds": seeds, "workdir": workdir, "dry_run": dry_run},
        joined=("config", "seeds"),
        repeated=(),
    )
    return _swept(parsed, flags, None if study or not grid else grid)


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.sweep`. NOTE: nothing here may start JAX's devices; the trainings need them."""
    given = [argument for argument in arguments if argument.startswith("--config.")]
    options = _parser().parse_args([argument for argument in arguments if argument not in given])
    if any(row["status"] for row in _swept(options, given)):
        sys.exit(POINT_FAILED)


def _swept(options: argparse.Namespace, given: Sequence[str], grid: Any = None) -> list[Row]:
    """The rows of a sweep; empty for a dry run.

    Args:
      given: `--config...` options of every training.
      grid: replaces `options.grid`.
    """
    study_config = ""
    if options.grid:
        study_config, grid = read_grid(options.grid)
    specs = list(dict.fromkeys(split_outside_brackets(options.config or study_config, ",")))
    if not specs:
        raise InputError("--config is missing; only a study file brings its own.")
    seeds = split_outside_brackets(options.seeds, ",")
    if grid is None and not seeds and len(specs) == 1:
        raise InputError("a sweep needs --grid, --seeds or several configs (--config=A,B).")
    chosen = points(grid, seeds) if grid is not None else [{SEED: seed} for seed in seeds] or [{}]
    say_who_takes(
        specs, list(dict.fromkeys([*map(option_named, given), *(name for point in chosen for name in point)]))
    )
    base, planned = base_options(specs, given), plan(specs, given, chosen)
    folder = pathlib.Path(options.workdir)
    refuse_several_tasks("a sweep")
    refuse_other_sweep(folder, planned)
    refuse_other_text(planned, folder)
    if options.dry_run:
        list_points(planned, folder)
        return []
    said_grid = options.grid or (json.dumps(grid) if grid is not None else "")
    named = {"--config": ",".join(specs), "--grid": said_grid, "--seeds": options.seeds}
    said = shlex.join([*(f"{name}={value}" for name, value in named.items() if value), *given])
    report = {"command": f"python -m jaxdistill.sweep {said} --workdir=DIR", "base": base}
    with locked(folder):
        rows = train_all(planned, folder, report)
        comparison.show_sweep(report, rows, folder)
    return rows


def _parser() -> Parser:
    lines = [f"  {name}: {first_line(load_config_module(path))}" for name, path in studies().items()]
    parser = Parser(prog="python -m jaxdistill.sweep", description=__doc__, epilog="\n".join(["studies:", *lines]))
    add = parser.add_argument
    add("--config", default="", help="FILE[:PRESET], or several separated by commas; default: the study's")
    add("--grid", default="", help="study file, name of a study, or 'option=value,value;option=...'")
    add("--seeds", default="", help="seeds of each point, such as 0,1,2; of all its stages")
    add("--workdir", type=local_path, required=True, help="folder of the sweep")
    add("--dry_run", action="store_true", help="check and list the points, and stop")
    return parser


def list_points(planned: Sequence[Point], folder: pathlib.Path) -> None:
    """Prints the points, and why a point would fail at its start; raises `InputError` if any would."""
    failing = 0
    for number, point in enumerate(planned, start=1):
        note = ", done before" if scores(point, folder) else ""
        try:
            if not note:
                check_launch(point.stages, str(folder / point.name), HERE)
        except InputError as error:
            note, failing = f": error: {error}", failing + 1
        print(f"point {number} of {len(planned)}: {point.shown}{note}")
    if failing:
        raise InputError(f"{failing} of {len(planned)} points would fail; the lines above say why.")


def refuse_other_sweep(folder: pathlib.Path, planned: Sequence[Point]) -> None:
    """Raises `InputError` unless the folder is new, or was made with the same configs and with no other points."""
    refuse_no_folder(folder)
    path, now = folder / "sweep.json", {point.name: point for point in planned}
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and not the folder of a sweep; use another --workdir.")
        return
    before = read_json(path)
    gone = "; ".join(row["point"] for row in before["points"] if row["point"] not in now)
    if gone:
        raise InputError(f"{folder} was made with a grid that also has {gone}: keep it, or use another --workdir.")
    for row in before["points"]:
        options = dict(row["options"])
        base = before["base"][options.pop(CONFIG)] if CONFIG in options else before["base"]
        there = (
            base
            | {name: value for name, value in options.items() if name in base}
            | {name: row["seed"] for name in base if name.endswith("run.seed")}
        )
        configs.refuse_other_training(there, configs.flat_stages(now[row["point"]].stages), workdir=str(folder))


def train_all(planned: Sequence[Point], folder: pathlib.Path, report: Mapping[str, Any]) -> list[Row]:
    """Trains the unfinished points, removes checkpoints of finished ones, and writes the report after each point."""
    swept = dict.fromkeys(name for point in planned for name in point.options)
    rows = [
        {
            "point": point.name,
            "options": {name: (configs.flat_stages(point.stages) | point.options).get(name, LACKS) for name in swept},
        }
        | {"seed": point.seed, "status": None, "failure": None}
        | {"metric": None, "score": None, "sts_average": None}
        for point in planned
    ]
    folder.mkdir(parents=True, exist_ok=True)
    comparison.write_sweep(report, rows, folder)
    for number, (point, row) in enumerate(zip(planned, rows, strict=True), start=1):
        reuse_stages(point, planned[: number - 1], folder)
        begun, before, log = time.monotonic(), scores(point, folder), folder / f"{point.name}.log"
        log_note = "" if before else f", log {log}"
        print(f"point {number} of {len(planned)}: {point.shown}{log_note}", end=" ... ", flush=True)
        row["status"] = 0 if before else train_point(point, folder)
        if result := before or scores(point, folder):
            row |= result
            for stage in stage_folders(point, folder):
                drop_checkpoints(stage)
        if row["status"]:
            row["failure"] = f"failed with status {row['status']}: {last_line(log)} (see {log})"
        took = "done before" if before else f"{(time.monotonic() - begun) / 60:.1f} minutes"
        print(row["failure"] or f"{hundred(row['score'])} ({took})")
        comparison.write_sweep(report, rows, folder)
    return rows


def reuse_stages(point: Point, earlier: Sequence[Point], folder: pathlib.Path) -> None:
    """Links the first stages of a point to the stages of earlier points that have the same options and are finished."""
    for other in earlier:
        both = zip(point.stages, other.stages, stage_folders(point, folder), stage_folders(other, folder), strict=False)
        for stage, like, place, there in both:
            if stage != like:
                break
            if place.exists():
                continue
            if not is_finished(there, like):
                break
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(os.path.relpath(there, place.parent))


def train_point(point: Point, folder: pathlib.Path) -> int:
    """Trains a point; returns the exit status. Passes on Ctrl-C, SIGTERM and SIGHUP, so that the training saves and exits."""
    command = [sys.executable, "-m", "jaxdistill.main", *point.arguments, f"--workdir={folder / point.name}"]
    with locked(folder / point.name):
        pass  # a killed sweep may have left a training running there
    with (folder / f"{point.name}.log").open("ab") as log:
        # A new session: otherwise the terminal would send it a second Ctrl-C, on which it exits without saving.
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=unbuffered, start_new_session=True)
    with Interrupts() as interrupts:
        while process.poll() is None and not interrupts.status:
            time.sleep(POLL_SECONDS)
        if interrupts.status:
            process.send_signal(signal.SIGINT)
            print("stopping as soon as the training has saved; the same command continues from there", flush=True)
            process.wait()
            raise Interrupted(interrupts.status)
    return process.returncode


def scores(point: Point, folder: pathlib.Path) -> Row | None:
    """Best dev score and STS average, of the last stage, of a finished point; None for any other."""
    folders = stage_folders(point, folder)
    try:
        if not all(is_finished(*stage) for stage in zip(folders, point.stages, strict=True)):
            return None
        results = json.loads((folders[-1] / RESULTS).read_text(encoding="utf-8"))
    except json.JSONDecodeError:  # cut off by a crash
        return None
    metric, named = results["best_metric"], results["scores"]["student after"]
    return {"metric": metric, "score": named.get(metric), "sts_average": named.get("average")}


def refuse_other_text(planned: Sequence[Point], folder: pathlib.Path) -> None:
    """Raises `InputError` if the text has changed since a finished point was trained: scores on two texts are not
    comparable."""
    digest = functools.cache(text_digest)  # points share texts
    for point in planned:
        if scores(point, folder):
            for stage, workdir in zip(point.stages, stage_folders(point, folder), strict=True):
                refuse_changed_text(stage, workdir, digest)


def stage_folders(point: Point, folder: pathlib.Path) -> list[pathlib.Path]:
    """The workdir of each stage of the point."""
    workdir, count = folder / point.name, len(point.stages)
    return [workdir] if count == 1 else [stage_folder(workdir, number) for number in range(1, count + 1)]


def last_line(log: pathlib.Path) -> str:
    return re.split(r"[\r\n]+", log.read_text(encoding="utf-8", errors="replace").strip())[-1]


make_callable(__name__, sweep_options)

if __name__ == "__main__":
    run(main)
