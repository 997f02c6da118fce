"""Trains configs with each combination of some options and seeds, one after the other, and compares the students.

  python -m jaxdistill.sweep --config=l2.py:tiny,congen.py:tiny --seeds=0,1,2 --workdir=runs/methods
  python -m jaxdistill.sweep --config=congen.py:quickstart --config.objective.queue_size=64,2048 --workdir=runs/queue
  python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --seeds=0,1,2 --config.data.text=TEXT

--config.SECTION.OPTION=A,B trains with each value, and several such options with each combination. Brackets and quotes keep a
value whole: --config.data.text='"a.txt,b.txt"'. Running the same command again resumes the sweep; points and seeds may be
added. Each point has its own log and workdir. The workdir of the sweep gets sweep.csv with the scores of all points. The
checkpoints of a finished point are removed; its export holds the best student.
"""

import csv
import hashlib
import io
import itertools
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdistill.calls import by_name, in_python_words, make_callable
from jaxdistill.cli import Interrupted, Interrupts, Parser, did_you_mean, local_path, run
from jaxdistill.config.files import load_config
from jaxdistill.config.write import in_every_stage
from jaxdistill.core import InputError, errors_of
from jaxdistill.files import parts, refuse_no_folder, write_atomic
from jaxdistill.main import parse_flags
from jaxdistill.paths import configs_folder
from jaxdistill.reporting.tables import as_text, hundredfold
from jaxdistill.training.stages import is_finished
from jaxdistill.workdir.folder import INPUTS, RESULTS, TEXT_FILES, drop_checkpoints, read_note, stage_folder
from jaxdistill.workdir.lock import locked

Row = dict[str, Any]
"""A point: its folder `point`, swept `options`, `seed`, `stages`, `arguments` of `jaxdistill.main`, exit `status`, a line on its
`failure`, digest of its `text`, and in [-1, 1] the best `score` by `metric` and the `sts_average`."""
SCORES = ("score", "sts_average")
POINT_FAILED = 1


@in_python_words()
def sweep_options(
    config: str | pathlib.Path | Sequence[str] = "",
    *,
    workdir: str | pathlib.Path,
    grid: str | pathlib.Path | Mapping[str, list[Any]] | Sequence[Mapping[str, Any]] = "",
    seeds: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> list[Row]:
    """Trains configs with each combination of some options; calling it again resumes. `jaxdistill.sweep` is this function.

    NOTE: each training is a separate process. On a GPU or TPU, call this before anything has used the devices.

    Args:
      config: config file and preset, or several; empty: the study's.
      workdir: folder of the sweep, which gets a table and each training.
      grid: maps dotted options to values, all of which are combined; or a list of mappings of options; or a study's file or name.
      seeds: seeds of each point, of all its stages.
      options: options of every training, by dotted name, such as `{"data.text": "texts/*.txt"}`.
      dry_run: print the points, and train nothing.

    Returns:
      One row per training: `point`, `options`, `seed`, `status` (0: trained), `failure`, `metric`, `score`, `sts_average`; empty
      for a dry run.
    """
    study, grid = read_study(str(grid)) if isinstance(grid, str | pathlib.Path) else ("", grid)
    specs = [config] if isinstance(config, str | pathlib.Path) else config
    rows = plan(list(map(str, filter(None, specs))) or [study], by_name(options), combinations(grid), seeds)
    folder = pathlib.Path(workdir)
    refuse_no_folder(folder)
    if dry_run:
        print("\n".join(f"point {number} of {len(rows)}: {row['point']}" for number, row in enumerate(rows, 1)))
        return []
    with locked(folder):
        for number, row in enumerate(rows, 1):
            done, log = finished(row, folder), folder / f"{row['point']}.log"
            print(f"point {number} of {len(rows)}: {row['point']}, log {log}", end=" ... ", flush=True)
            row["status"] = 0 if done else train(row, folder, log)
            row |= done or finished(row, folder) or {}
            if row["status"]:
                line = re.split(r"[\r\n]+", log.read_text(encoding="utf-8", errors="replace").strip())[-1]
                row["failure"] = f"failed with status {row['status']}: {line}"
            print(row["failure"] or hundred(row["score"]) + " (done before)" * bool(done))
            write_csv(rows, folder / "sweep.csv")
    texts = {(row["stages"][-1].data.text, row["text"]) for row in rows if row["text"]}
    if len(texts) > len(dict(texts)):
        raise InputError(
            "the files of data.text have changed between points, whose scores are not comparable; remove the folders of the points "
            "that were trained before, or give another --workdir."
        )
    print(f"{as_text(table(rows), width=160)}\ntable: {folder / 'sweep.csv'}")
    return rows


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.sweep`. NOTE: nothing here may start JAX's devices; the trainings need them."""
    flags = [argument for argument in arguments if argument.startswith("--config.")]
    options = _parser().parse_args([argument for argument in arguments if argument not in flags])
    values = {name.removeprefix("--config."): split(text) for name, _, text in (flag.partition("=") for flag in flags)}
    fixed = {name: several[0] for name, several in values.items() if len(several) == 1}
    swept = combinations({name: several for name, several in values.items() if name not in fixed})
    study, grid = read_study(options.grid)
    grid = [{**point, **chosen} for point in combinations(grid) for chosen in swept]
    config, seeds = (options.config or study).split(","), options.seeds
    rows = sweep_options(
        config, workdir=options.workdir, grid=grid, seeds=seeds, options=fixed, dry_run=options.dry_run
    )
    if any(row["status"] for row in rows):
        sys.exit(POINT_FAILED)


def _parser() -> Parser:
    modules = {name: parts.load_module(str(path)) for name, path in shipped_studies().items()}
    studies = [f"  {name}: {str(module.__doc__).splitlines()[0]}" for name, module in modules.items()]
    parser = Parser(prog="python -m jaxdistill.sweep", description=__doc__, epilog="\n".join(["studies:", *studies]))
    add = parser.add_argument
    add("--config", default="", help="FILE[:PRESET], or several separated by commas; default: the study's")
    add("--grid", default="", help="name of a study, or a file with CONFIG and GRID as in configs/studies/")
    add("--seeds", type=whole_numbers, default=(), help="seeds of each point, such as 0,1,2; of all its stages")
    add("--workdir", type=local_path, required=True, help="folder of the sweep")
    add("--dry_run", action="store_true", help="check the options, list the points, and stop")
    return parser


def whole_numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def split(text: str) -> list[str]:
    """The values of an option; a text in brackets or quotes is one value, without the quotes."""
    if text.startswith(("(", "[", '"', "'")):
        return [text.strip("\"'")]
    return [value.strip() for value in text.split(",")]


def shipped_studies() -> dict[str, pathlib.Path]:
    """Maps names to files of the papers' studies."""
    return {path.stem: path for path in sorted((configs_folder() / "studies").glob("*.py"))}


def read_study(name: str) -> tuple[str, Any]:
    """CONFIG and GRID of a file or of a shipped study; for an empty name, one point without options."""
    if not name:
        return "", [{}]
    path, shipped = pathlib.Path(name), shipped_studies()
    if not path.is_file() and path.stem not in shipped:
        close = did_you_mean(path.stem, list(shipped))
        raise InputError(f"study {name} does not exist; shipped: {', '.join(shipped)}.{close}")
    module = parts.load_module(str(path if path.is_file() else shipped[path.stem]))
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None)


def combinations(grid: Any) -> list[Mapping[str, Any]]:
    """All combinations of a dict of lists; a list of dicts as it is."""
    if isinstance(grid, Mapping) and all(isinstance(values, list) for values in grid.values()):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not isinstance(grid, list) or not grid or not all(isinstance(options, Mapping) for options in grid):
        raise InputError("the grid must be a dict of option to list of values, or a list of dicts, and not empty.")
    return grid


def plan(
    specs: Sequence[str], options: Mapping[str, Any], grid: Sequence[Mapping[str, Any]], seeds: Sequence[Any]
) -> list[Row]:
    """The points of a sweep; parses the options of all before the first one runs."""
    swept = dict.fromkeys(name for chosen in grid for name in chosen)
    for name in swept | dict(options):
        if (name in swept and name in options) or (seeds and name.endswith("run.seed")):
            raise InputError(f"{name} has two values, of all points and of each; give it once.")
    points: dict[str, Row] = {}
    for spec, chosen, seed in itertools.product(specs, grid, seeds or [None]):
        of_point = {**options, **chosen} | (
            {} if seed is None else dict.fromkeys(in_every_stage(load_config(spec), "run.seed"), seed)
        )
        arguments = [f"--config={spec}", *(f"--config.{name}={value}" for name, value in of_point.items())]
        with errors_of(spec or "a sweep"):
            stages = parse_flags([*arguments, "--workdir=unused"]).stages
        own = {"config": spec} if len(specs) > 1 else {}
        own |= {name: value for name, value in chosen.items() if not name.endswith("run.seed")}
        seed = stages[0].run.seed
        plain = ",".join(f"{name}={value}" for name, value in (own | {"run.seed": seed}).items())
        name = re.sub(r"[^A-Za-z0-9_.=,+-]", "-", plain)[:150]
        name += "" if name == plain else f"-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
        row = {"point": name, "options": own, "seed": seed, "stages": stages, "arguments": arguments}
        points[name] = row | {"status": None, "failure": "", "text": None, "metric": None, **dict.fromkeys(SCORES)}
    names = dict.fromkeys(name for row in points.values() for name in row["options"])
    for row in points.values():
        row["options"] = {name: row["options"].get(name, "-") for name in names}
    return list(points.values())


def train(row: Row, folder: pathlib.Path, log: pathlib.Path) -> int:
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


def finished(row: Row, folder: pathlib.Path) -> Row | None:
    """The scores of a finished point, whose checkpoints are removed; None for an unfinished one."""
    workdir, count = folder / row["point"], len(row["stages"])
    workdirs = [workdir] if count == 1 else [stage_folder(workdir, number) for number in range(1, count + 1)]
    if not all(map(is_finished, workdirs, row["stages"])):
        return None
    for each in workdirs:
        drop_checkpoints(each)
    results = read_note(workdirs[-1] / RESULTS)
    metric, scores = results["best_metric"], results["scores"]["student after"]
    text = read_note(workdirs[-1] / INPUTS).get(TEXT_FILES)
    return {"metric": metric, "score": scores.get(metric), "sts_average": scores.get("average"), "text": text}


def write_csv(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Adds means and standard deviations (n - 1) over the seeds of the same options to the rows, and writes them."""
    for row, name in itertools.product(rows, SCORES):
        alike = [other[name] for other in rows if other["options"] == row["options"] and other[name] is not None]
        row[f"{name}_mean"] = statistics.fmean(alike) if alike else None
        row[f"{name}_sd"] = statistics.stdev(alike) if len(alike) > 1 else None
    text, scores = io.StringIO(), [f"{name}{end}" for name in SCORES for end in ("", "_mean", "_sd")]
    columns = [*rows[0]["options"], "seed", "status", "metric", *scores]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row["options"] | row for row in rows)
    write_atomic(path, text.getvalue())


def hundred(score: float | None) -> str:
    return "-" if score is None else hundredfold(score)


def table(rows: Sequence[Row]) -> Table:
    """One line for each choice of options: means and deviations over seeds, and differences from the first choice, times 100."""
    choices: dict[str, list[Row]] = {}
    for row in rows:
        choices.setdefault(str(row["options"]), []).append(row)
    first, *_ = choices.values()
    names = [name for name in SCORES if any(row[name] is not None for row in rows)]
    headings = [heading for name in names for heading in (f"{name} ± s.d.", "against the first (95 %)")]
    made = Table(*rows[0]["options"], "seeds", "metric", *headings, box=SIMPLE_HEAD)
    for group in choices.values():
        cells = [*group[0]["options"].values(), len(group), group[0]["metric"] or "-"]
        for name in names:
            mean, sd = group[0][f"{name}_mean"], group[0][f"{name}_sd"]
            cells += [hundred(mean) + (f" ± {hundred(sd)}" if sd is not None else ""), difference(group, first, name)]
        made.add_row(*map(str, cells))
    return made


def difference(rows: Sequence[Row], base: Sequence[Row], name: str) -> str:
    """The mean difference over the seeds that both have, and its interval (Student's t)."""
    from scipy import stats  # imported here: it takes over a second

    before = {(row["seed"], row["metric"]): row[name] for row in base if row[name] is not None}
    scores = {(row["seed"], row["metric"]): row[name] for row in rows if row[name] is not None}
    gains = [100 * (scores[key] - before[key]) for key in scores.keys() & before.keys()]
    if rows is base or len(gains) < 2:
        return "-"
    half = stats.t.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / len(gains) ** 0.5
    return f"{statistics.fmean(gains):+.2f} ± {half:.2f}"


make_callable(__name__, sweep_options)

if __name__ == "__main__":
    run(main)
