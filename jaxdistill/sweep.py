"""Trains several configs, or one config with each combination of a grid of options, in sequence, and compares them.

  python -m jaxdistill.sweep --config=l2.py:tiny,congen.py:tiny --seeds=0,1,2 --workdir=runs/methods
  python -m jaxdistill.sweep --grid=congen_alpha --workdir=runs/alpha --seeds=0,1,2 --config.data.text=TEXT
  python -m jaxdistill.sweep --config=configs/congen.py:quickstart --workdir=runs/queue \\
    --grid='objective.queue_size=64,2048;optimizer.learning_rate=1e-4,5e-4'

--config.SECTION.OPTION=VALUE applies to every point. Running the same command again resumes the sweep; points and seeds
may be added. The workdir gets a table (sweep.md, sweep.csv, sweep.tex), the numbers (sweep.json) and a plot
(sweep.png). Each point gets a log and a workdir of its own. The checkpoints of a finished point are removed; its export
holds the best student.
"""

import argparse
import fcntl
import functools
import hashlib
import itertools
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
from typing import Any, NamedTuple

from jaxdistill import config as configs
from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.cli import Interrupted, Interrupts, Parser, did_you_mean, local_path, run
from jaxdistill.config.resuming import refuse_other_training
from jaxdistill.core import InputError, InUseError
from jaxdistill.files import refuse_no_folder
from jaxdistill.files.reading import read_json
from jaxdistill.main import option_names, parse_flags
from jaxdistill.processes import refuse_several_tasks
from jaxdistill.reporting import sweep as comparison
from jaxdistill.reporting.sweep import Row, hundred
from jaxdistill.training.config_file import first_line, load_config_module, shipped_configs
from jaxdistill.training.lock import locked
from jaxdistill.training.stage_checks import HERE, check_launch, refuse_changed_text, text_digest
from jaxdistill.training.stages import in_order, is_finished
from jaxdistill.training.unread import training_of, unread
from jaxdistill.training.workdir import RESULTS, drop_checkpoints, stage_folder

SEED = "run.seed"
CONFIG = "config"
"""Column of the config's name, in sweeps over several."""
LACKS = "-"
"""Instead of the value of an option that a config does not have."""
POINT_FAILED = 1
POLL_SECONDS = 0.1
"""Interval at which a training and interrupts are polled."""


class Point(NamedTuple):
    """One training of the grid."""

    options: dict[str, Any]
    """The swept options without the seed, as the config types them; `CONFIG` is the first of them in sweeps over several."""
    config: configs.Config
    """All options."""
    arguments: tuple[str, ...]
    """Of `jaxdistill.main`, without the workdir."""

    @property
    def shown(self) -> str:
        return " ".join(f"{name}={value}" for name, value in (self.options | {SEED: self.config.run.seed}).items())

    @property
    def name(self) -> str:
        """Name of the point's folder."""
        plain = self.shown.replace(" ", ",")
        safe = re.sub(r"[^A-Za-z0-9_.=,+-]", "-", plain)[:150]
        return safe if safe == plain else f"{safe}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"


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

    NOTE: each training is a process of its own. On a GPU or TPU, call this before anything has used the devices.

    Args:
      config: config file and preset, or several; empty: the study's.
      workdir: folder of the sweep, which gets tables, a plot and each training.
      grid: dotted option to its values, a list of options together, or a study's file or name.
      seeds: of each point.
      options: for every training, by their dotted names, such as `{"data.text": "texts/*.txt"}`.
      dry_run: print the points, and train nothing.

    Returns:
      A row for each training: `point`, `options`, `seed`, `status` (0: trained), `failure`, `metric`, `score`, `sts_average`; none
      of a dry run.
    """
    specs = [config] if isinstance(config, str | pathlib.Path) else config
    flags = [f"--config.{name}={value}" for name, value in (options or {}).items()]
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
    """The rows of a sweep; none of a dry run.

    Args:
      given: `--config...` of every training.
      grid: in place of `options.grid`.
    """
    study_config = ""
    if options.grid:
        study_config, grid = read_grid(options.grid)
    specs = list(dict.fromkeys(_split(options.config or study_config, ",")))
    if not specs:
        raise InputError("--config is missing; only a study file brings its own.")
    seeds = _split(options.seeds, ",")
    if grid is None and not seeds and len(specs) == 1:
        raise InputError("a sweep needs --grid, --seeds or several configs (--config=A,B).")
    chosen = points(grid, seeds) if grid is not None else [{SEED: seed} for seed in seeds] or [{}]
    say_who_takes(specs, list(dict.fromkeys([*map(_named, given), *(name for point in chosen for name in point)])))
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
    parser.add_argument(
        "--config", default="", help="FILE[:PRESET], or several separated by commas; default: the study's"
    )
    parser.add_argument("--grid", default="", help="study file, name of a study, or 'option=value,value;option=...'")
    parser.add_argument(
        "--seeds",
        default="",
        help="seeds of each point, such as 0,1,2; short for run.seed=0,1,2 in --grid; seeds the first stage, "
        "later stages keep then.run.seed",
    )
    parser.add_argument("--workdir", type=local_path, required=True, help="folder of the sweep")
    parser.add_argument("--dry_run", action="store_true", help="check and list the points, and stop")
    return parser


def studies() -> dict[str, pathlib.Path]:
    """Name to file of the studies that come with the package, or lie beside it in a clone."""
    return {path.stem: path for path in sorted((shipped_configs()[0].parent / "studies").glob("*.py"))}


def list_points(planned: Sequence[Point], folder: pathlib.Path) -> None:
    """Prints the points; raises `InputError` if some would end as soon as they are started, whose lines say why."""
    failing = 0
    for number, point in enumerate(planned, start=1):
        note = ", done before" if scores(point, folder) else ""
        try:
            if not note:
                check_launch(in_order(point.config), str(folder / point.name), HERE)
        except InputError as error:
            note, failing = f": error: {error}", failing + 1
        print(f"point {number} of {len(planned)}: {point.shown}{note}")
    if failing:
        raise InputError(f"{failing} of {len(planned)} points would fail; the lines above say why.")


def read_grid(text: str) -> tuple[str, Any]:
    """(config or "", grid) of a study file, of a shipped study's name, or of `option=value,value;option=value`."""
    path, shipped = pathlib.Path(text), studies()
    if "=" in text and not path.is_file():
        parts = [part.partition("=") for part in _split(text, ";")]
        return "", {option: _split(values, ",") for option, _, values in parts}
    if not path.is_file():
        if path.stem not in shipped or path.parent.name not in ("", "studies"):
            close = did_you_mean(path.stem, list(shipped))
            raise InputError(f"study {text!r} does not exist; shipped: {', '.join(shipped)}.{close}")
        path = shipped[path.stem]
    try:
        module = load_config_module(path)
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"study {path} cannot be read ({type(error).__name__}: {error}).") from error
    return getattr(module, "CONFIG", ""), getattr(module, "GRID", None)


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators; those inside brackets separate nothing. None of an empty text."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        parts = [*parts, ""] if letter == separator and not depth else [*parts[:-1], parts[-1] + letter]
    return [part.strip() for part in parts] if text else []


def points(grid: Any, seeds: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Options of every training: all combinations of a dict of lists, or a list's dicts as they are; seeds fastest."""
    if isinstance(grid, Mapping) and all(isinstance(values, list) for values in grid.values()):
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if not grid or not isinstance(grid, list) or not all(isinstance(options, Mapping) and options for options in grid):
        raise InputError("the grid must be a dict of option to list of values, or a list of dicts, and not empty.")
    if seeds and any(SEED in options for options in grid):
        raise InputError(f"{SEED} is in the grid and in --seeds; give it once.")
    return [{**options, **seed} for options in grid for seed in ([{SEED: seed} for seed in seeds] or [{}])]


def whole_config(arguments: Sequence[str]) -> configs.Config:
    """All options as the training will read them; raises `InputError` as it would."""
    raw = parse_flags([*arguments, "--workdir=unused"]).config
    return configs.parse_config(raw)


def config_names(specs: Sequence[str]) -> dict[str, str]:
    """`FILE[:PRESET]` to its name in tables, `congen:tiny` of `configs/congen.py:tiny`; empty for a single config."""
    if len(specs) == 1:
        return {specs[0]: ""}
    parts = [spec.partition(":") for spec in specs]
    names = [f"{pathlib.Path(file).stem}{colon}{preset}" for file, colon, preset in parts]
    return dict(zip(specs, names if len(set(names)) == len(names) else specs, strict=True))


def base_options(specs: Sequence[str], given: Sequence[str]) -> dict[str, Any]:
    """All options before the grid changes them; those of each config under its name in sweeps over several."""
    of_names = {
        name: configs.flat(
            whole_config([f"--config={spec}", *(flag for flag in given if takes(spec, _named(flag), specs))])
        )
        for spec, name in config_names(specs).items()
    }
    return of_names.get("", of_names)


@functools.cache
def _options_of(spec: str) -> frozenset[str]:
    return frozenset(option_names(parse_flags([f"--config={spec}", "--workdir=unused"]).config))


def takes(spec: str, option: str, specs: Sequence[str]) -> bool:
    """Whether a config gets an option that is meant for all of `specs`: those that have it do; if none has, each refuses it."""
    having = [one for one in specs if option in _options_of(one)] if len(specs) > 1 else []
    return not having or spec in having


def _named(flag: str) -> str:
    """The option that a flag such as `--config.run.steps=3` sets."""
    return flag.split("=")[0].removeprefix("--config.")


def say_who_takes(specs: Sequence[str], options: Sequence[str]) -> None:
    """Prints a line for each option that only some of the configs have."""
    for option in options:
        without = [name for spec, name in config_names(specs).items() if not takes(spec, option, specs)]
        if without:
            print(f"{option} is given to the configs that have it, not to {', '.join(without)}")


def plan(specs: Sequence[str], given: Sequence[str], chosen: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The trainings of each config with the chosen options, each once; all command lines are read before the first runs."""
    for name in map(_named, given):
        if any(name in options for options in chosen):
            raise InputError(f"{name} is in the grid and on the command line; give it once.")
    planned: dict[str, Point] = {}
    names = config_names(specs)
    for spec, options in itertools.product(specs, chosen):
        options = {name: value for name, value in options.items() if takes(spec, name, specs)}
        flags = [flag for flag in given if takes(spec, _named(flag), specs)]
        arguments = (f"--config={spec}", *flags, *(f"--config.{name}={value}" for name, value in options.items()))
        try:
            whole = whole_config(arguments)
        except InputError as error:
            raise InputError(f"{spec}: {error}") if names[spec] else error from None
        typed, of_config = configs.flat(whole), {CONFIG: names[spec]} if names[spec] else {}
        point = Point(of_config | {name: typed[name] for name in options if name != SEED}, whole, arguments)
        planned.setdefault(point.name, point)
    refuse_equal(list(planned.values()))
    return list(planned.values())


def refuse_equal(planned: Sequence[Point]) -> None:
    """Raises `InputError` if two points are the same training, because the options that differ are not read."""
    seen: dict[str, Point] = {}
    for point in planned:
        key = json.dumps(training_of(point.config), sort_keys=True)
        other = seen.setdefault(key, point)
        if other is not point:
            reasons = unread(point.config)
            swept = sorted(reasons.keys() & {*other.options, *point.options})
            why = "".join(f"; {name} is not read, because {reasons[name]}" for name in swept)
            raise InputError(
                f"the points {other.shown} and {point.shown} are the same training{why}. Remove one of them."
            )


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
        there = base | {name: value for name, value in options.items() if name in base} | {SEED: row["seed"]}
        refuse_other_training(there, configs.flat(now[row["point"]].config), workdir=str(folder))


def train_all(planned: Sequence[Point], folder: pathlib.Path, report: Mapping[str, Any]) -> list[Row]:
    """Trains what is not done, removes what only a resumed training needs, and writes the report after each point."""
    swept = dict.fromkeys(name for point in planned for name in point.options)
    rows = [
        {
            "point": point.name,
            "options": {name: (configs.flat(point.config) | point.options).get(name, LACKS) for name in swept},
        }
        | {"seed": point.config.run.seed, "status": None, "failure": None}
        | {"metric": None, "score": None, "sts_average": None}
        for point in planned
    ]
    folder.mkdir(parents=True, exist_ok=True)
    comparison.write_sweep(report, rows, folder)
    for number, (point, row) in enumerate(zip(planned, rows, strict=True), start=1):
        print(f"point {number} of {len(planned)}: {point.shown}", end=" ... ", flush=True)
        begun, before = time.monotonic(), scores(point, folder)
        row["status"] = 0 if before else train_point(point, folder)
        if found := before or scores(point, folder):
            row |= found
            for stage in stage_folders(point, folder):
                drop_checkpoints(stage)
        if row["status"]:
            log = folder / f"{point.name}.log"
            row["failure"] = f"failed with status {row['status']}: {last_line(log)} (see {log})"
        took = "done before" if before else f"{(time.monotonic() - begun) / 60:.1f} minutes"
        print(row["failure"] or f"{hundred(row['score'])} ({took})")
        comparison.write_sweep(report, rows, folder)
    return rows


def train_point(point: Point, folder: pathlib.Path) -> int:
    """Exit status of the point's training. Ctrl-C, SIGTERM and SIGHUP are passed on, so that it saves and leaves."""
    command = [sys.executable, "-m", "jaxdistill.main", *point.arguments, f"--workdir={folder / point.name}"]
    with (folder / f"{point.name}.log").open("ab") as log:
        try:
            # The training inherits the lock: a sweep that was killed may have left it running.
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"{folder / point.name} is being trained by another process; end that first.") from None
        # A session of its own: the terminal would send it a second Ctrl-C, on which it leaves without saving.
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
    """Best dev score and STS average, of the last stage, of a point that is trained to its end; None for any other."""
    folders = stage_folders(point, folder)
    try:
        if not all(is_finished(*stage) for stage in zip(folders, in_order(point.config), strict=True)):
            return None
        results = json.loads((folders[-1] / RESULTS).read_text(encoding="utf-8"))
    except json.JSONDecodeError:  # cut off while it was written
        return None
    metric, named = results["best_metric"], results["scores"]["student after"]
    return {"metric": metric, "score": named.get(metric), "sts_average": named.get("average")}


def refuse_other_text(planned: Sequence[Point], folder: pathlib.Path) -> None:
    """Raises `InputError` if a finished point was trained on other text than there is now: scores on two texts are not
    comparable."""
    digest = functools.cache(text_digest)  # points share texts
    for point in planned:
        if scores(point, folder):
            for stage, workdir in zip(in_order(point.config), stage_folders(point, folder), strict=True):
                refuse_changed_text(stage, workdir, digest)


def stage_folders(point: Point, folder: pathlib.Path) -> list[pathlib.Path]:
    """The workdir of each stage of the point."""
    workdir, count = folder / point.name, len(in_order(point.config))
    return [workdir] if count == 1 else [stage_folder(workdir, number) for number in range(1, count + 1)]


def last_line(log: pathlib.Path) -> str:
    return re.split(r"[\r\n]+", log.read_text(encoding="utf-8", errors="replace").strip())[-1]


make_callable(__name__, sweep_options)

if __name__ == "__main__":
    run(main)
