"""Trains configs with each combination of some options and seeds, one after the other, and compares the students.

  python -m jaxdistill.sweep --config=l2.py:tiny,congen.py:tiny --seeds=0,1,2 --workdir=runs/methods
  python -m jaxdistill.sweep --config=congen.py:quickstart --config.objective.queue_size=64,2048 --workdir=runs/queue
  python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --seeds=0,1,2 --config.data.text=TEXT

--config.SECTION.OPTION=A,B trains with each value, and several such options with each combination. Brackets and quotes keep a
value whole: --config.data.text='"a.txt,b.txt"'. The same command resumes a sweep, also with more points or seeds. Each point has
its own log and workdir; sweep.csv has the scores of all. A finished point keeps its export alone.
"""

import hashlib
import itertools
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import pandas
import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdistill.config import in_every_stage, load_config, load_study
from jaxdistill.core import InputError, errors_of
from jaxdistill.core.cli import BY_NAME, Listed, listed, make_callable, parse, run
from jaxdistill.core.files import local, write_atomic
from jaxdistill.core.runtime import Interrupted, Interrupts
from jaxdistill.evals.report import as_text, hundredfold
from jaxdistill.main import parse_flags
from jaxdistill.training.stages import is_finished
from jaxdistill.training.workdir import folder as workdirs

Row = dict[str, Any]
"""A point of a sweep, as `sweep` returns it; `arguments` are those of `jaxdistill.main`. Results are None until it is trained."""
SCORES = ("score", "sts_average")


def sweep(
    config: Listed = "",
    *,
    workdir: str | Path,
    grid: Annotated[str | Path | Mapping[str, list[Any]] | Sequence[Mapping[str, Any]], BY_NAME] = "",
    seeds: Listed = "",
    options: Annotated[Mapping[str, Any] | None, tyro.conf.Suppress] = None,
    dry_run: bool = False,
) -> list[Row]:
    """Trains configs with each combination of some options, one process each; the same call resumes a sweep.
    On a GPU or TPU, call it before this process has used the devices, which the trainings need.

    Args:
      config: FILE[:PRESET], or several; empty: the study's.
      workdir: Folder of the sweep, which gets a table and each training.
      grid: Name of a study, or a file with CONFIG and GRID as in configs/studies/; from Python also such a GRID.
      seeds: Seeds of each point, of all its stages.
      options: options of every training, by dotted name, such as `{"data.text": "texts/*.txt"}`; lists are swept.
      dry_run: Check the options, list the points, and stop; returns no rows.

    Returns:
      A row per training: its folder `point`, `options`, `seed`, `status` (0: trained), `failure`, `metric`, `score`, `sts_average`.
    """
    study = ""
    if isinstance(grid, str | Path):
        study, grid = load_study(str(grid))
    options = options or {}
    swept = {name: value for name, value in options.items() if isinstance(value, list)}
    points = [{**point, **chosen} for point in combinations(grid) for chosen in combinations(swept)]
    rows = plan(listed(config) or [study], options, points, listed(seeds))
    folder = local(workdir, "workdir")
    if dry_run:
        print("\n".join(f"point {number} of {len(rows)}: {row['point']}" for number, row in enumerate(rows, 1)))
        return []
    with workdirs.locked(folder):
        for number, row in enumerate(rows, 1):
            log = folder / f"{row['point']}.log"
            was_finished = read_scores(row, folder)
            print(f"point {number} of {len(rows)}: {row['point']}, log {log}", end=" ... ", flush=True)
            row["status"] = 0 if was_finished else train(row, folder, log)
            read_scores(row, folder)
            if row["status"]:
                last_line = re.split(r"[\r\n]+", log.read_text(encoding="utf-8", errors="replace").strip())[-1]
                row["failure"] = f"failed with status {row['status']}: {last_line}"
            score = "-" if row["score"] is None else hundredfold(row["score"])
            print(row["failure"] or (f"{score} (done before)" if was_finished else score))
            write_atomic(folder / "sweep.csv", compared(rows).to_csv(index=False))
    texts_and_digests = {(row["stages"][-1].data.text, row["text_digest"]) for row in rows if row["text_digest"]}
    if len(texts_and_digests) > len(dict(texts_and_digests)):  # the dict has one digest per text, the set has all
        raise InputError("the texts have changed between points; remove older points, or give another workdir.")
    print(f"{as_text(table(rows), width=160)}\ntable: {folder / 'sweep.csv'}")
    return rows


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.sweep`. NOTE: nothing here may start JAX's devices; the trainings need them."""
    parsed, flags = parse(sweep, arguments, others="--config.")
    options = parsed["options"] = {}
    for flag in flags:
        name, _, text = flag.removeprefix("--config.").partition("=")
        is_whole = text.startswith(("(", "[", '"', "'"))  # its commas are part of one value
        values = [text.strip("\"'")] if is_whole else [value.strip() for value in text.split(",")]
        options[name] = values if len(values) > 1 else values[0]
    if any(row["status"] for row in sweep(**parsed)):
        sys.exit(1)


def combinations(grid: Any) -> Sequence[Mapping[str, Any]]:
    """The points of a grid: the combinations of a dict of lists, or a list of dicts itself. Raises `InputError` for other grids."""
    if isinstance(grid, Mapping) and all(isinstance(values, list) for values in grid.values()):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    is_list_of_dicts = isinstance(grid, list) and all(isinstance(point, Mapping) for point in grid)
    if not is_list_of_dicts or not grid:
        raise InputError("the grid must be a dict of option to list of values, or a list of dicts, and not empty.")
    return cast(list[Mapping[str, Any]], grid)


def plan(
    specs: Sequence[str], options: Mapping[str, Any], grid: Sequence[Mapping[str, Any]], seeds: Sequence[Any]
) -> list[Row]:
    """The rows of a sweep: one for each config of `specs`, combination of options in `grid`, and seed. Parses the options of all, so
    that errors appear before any is trained. Values in `grid` override `options`, and `seeds` override both."""
    rows: dict[str, Row] = {}  # by point
    for spec, grid_values, seed_override in itertools.product(specs, grid, seeds or [None]):
        values = {**options, **grid_values}
        if seed_override is not None:
            values |= dict.fromkeys(in_every_stage(load_config(spec), "run.seed"), seed_override)
        arguments = [f"--config={spec}", *(f"--config.{name}={value}" for name, value in values.items())]
        with errors_of(spec or "a sweep"):
            stages = parse_flags([*arguments, "--workdir=unused"]).stages
        # What tells the points apart; seeds have a column of their own.
        swept = {"config": spec} if len(specs) > 1 else {}
        swept |= {name: value for name, value in grid_values.items() if not name.endswith("run.seed")}
        seed = stages[0].run.seed  # which the config or the grid may have set
        description = ",".join(f"{name}={value}" for name, value in {**swept, "run.seed": seed}.items())
        # Names the point's folder. A repeated point has the same name and is trained once; a digest tells shortened names apart.
        point = re.sub(r"[^A-Za-z0-9_.=,+-]", "-", description)[:150]
        if point != description:
            point += f"-{hashlib.sha256(description.encode()).hexdigest()[:8]}"
        row = {"point": point, "options": swept, "seed": seed, "stages": stages, "arguments": arguments, "failure": ""}
        rows[point] = row | dict.fromkeys(["status", "text_digest", "metric", *SCORES])
    return list(rows.values())


def train(row: Row, folder: Path, log: Path) -> int:
    """Trains a point in a new process; returns its exit status. Passes on signals, so that the training saves before it exits."""
    command = [sys.executable, "-u", "-m", "jaxdistill.main", *row["arguments"], f"--workdir={folder / row['point']}"]
    with log.open("ab") as file, Interrupts() as interrupts:
        # In a new session: otherwise the terminal would send the training a second Ctrl-C, on which it exits without saving.
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        while process.poll() is None and not interrupts.status:
            time.sleep(0.1)
        if interrupts.status:
            process.send_signal(signal.SIGINT)
            print("stopping as soon as the training has saved; the same command continues from there", flush=True)
            process.wait()
            raise Interrupted(interrupts.status)
    return process.returncode


def read_scores(row: Row, folder: Path) -> bool:
    """Returns whether a point is finished; if so, puts its scores into its row, and removes its checkpoints."""
    folders = workdirs.stage_folders(folder / row["point"], len(row["stages"]))
    if not all(map(is_finished, folders, row["stages"])):
        return False
    for stage_folder in folders:
        shutil.rmtree(stage_folder / workdirs.CHECKPOINTS, ignore_errors=True)
    results = workdirs.read_note(folders[-1] / workdirs.RESULTS)
    metric = results["best_metric"]
    scores = results["scores"]["student after"]
    row |= {"metric": metric, "score": scores.get(metric), "sts_average": scores.get("average")}
    row["text_digest"] = workdirs.read_note(folders[-1] / workdirs.INPUTS).get(workdirs.TEXT_FILES)
    return True


def compared(rows: Sequence[Row]) -> pandas.DataFrame:
    """The table of sweep.csv: options and scores of each point; mean and deviation (n - 1) over the seeds of equal options."""
    options = pandas.DataFrame([row["options"] for row in rows], dtype=object).fillna("-")
    frame = options.join(pandas.DataFrame(rows, columns=["seed", "status", "metric", *SCORES], dtype=object))
    for name in SCORES:
        scores = frame[name].astype(float).groupby([str(row["options"]) for row in rows])
        frame = frame.assign(**{f"{name}_mean": scores.transform("mean"), f"{name}_sd": scores.transform("std")})
    return frame


def table(rows: Sequence[Row]) -> Table:
    """The printed table, a line for each choice of options: means and standard deviations over seeds, times 100."""
    frame = compared(rows)  # one line per row, so several with equal options
    options = list(dict.fromkeys(name for row in rows for name in row["options"]))
    names = [name for name in SCORES if any(row[name] is not None for row in rows)]
    shown = Table(*options, "seeds", "metric", *(f"{name} ± s.d." for name in names), box=SIMPLE_HEAD)
    for _, points in frame.groupby([str(row["options"]) for row in rows], sort=False):
        first = cast(Any, points.iloc[0])
        # One seed has no standard deviation, and a failed point no mean.
        scores = [" ± ".join(map(hundredfold, first[[f"{name}_mean", f"{name}_sd"]].dropna())) or "-" for name in names]
        shown.add_row(*map(str, first[options]), str(len(points)), first["metric"] or "-", *scores)
    return shown


make_callable(__name__, sweep)

if __name__ == "__main__":
    run(main)
