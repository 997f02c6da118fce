"""The layout of a workdir (stage folders, export, notes), and the checks before a run uses one."""

import json
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any, NoReturn

from jaxdistill.config import Config, flat, nested, parse_config, refuse_other_training
from jaxdistill.core import InputError
from jaxdistill.data.sources import split_specs
from jaxdistill.files import is_unfinished, parts, refuse_no_folder, write_atomic

LOCK = ".lock"
"""File that a run keeps locked, with a note on the run. The system unlocks it when the process ends."""
EXPORT = "export"
"""Folder of the exported student."""
STUDENT = "student"
"""Folder of the untrained student as it is trained: its parameters are the checkpoints', by name and shape."""
CHECKPOINTS = "checkpoints"
"""Folder of the kept train states."""
CONFIG, RESULTS, METRICS = "config.json", "results.json", "metrics.jsonl"
"""Options of the run, its final scores, and its curves."""
LOG = "train.log"
"""Output of the run and its continuations, with times."""
PARTS = "parts.json"
"""Digests of the source code of parts from outside the package."""
INPUTS = "inputs.json"
"""Digests of the run's inputs, and the metric that chooses its best checkpoint."""
TEXT_FILES, DEV_SCORE = "content of the files of data.text", "dev score"
"""Names of two of the inputs."""
LENGTH = "data.max_length"
"""Name of a third input: the maximum number of tokens, given or chosen from the text."""
STEPS = "run.steps"
"""Name of the note of the number of steps that `run.minutes` chose."""
STUDENTS = "students.json"
"""In a workdir of several stages: for each stage that has begun, the digests of the earlier exports that it uses."""

STAGE_NAME = re.compile(r"previous|stage(\d+)")


def stage_folder(workdir: pathlib.Path, number: int) -> pathlib.Path:
    """The workdir of one stage, counted from 1."""
    return workdir / f"stage{number}"


def stage_named(name: str, own: int) -> int:
    """The stage that `previous` or `stage3` refers to from stage `own`; 0 for other names."""
    named = STAGE_NAME.fullmatch(name)
    return int(named[1] or own - 1) if named else 0


def stage_export(name: str, workdir: pathlib.Path) -> str:
    """The export that `previous` or `stage3` refers to from the stage in `workdir`; other names are returned unchanged."""
    if not STAGE_NAME.fullmatch(name):
        return name
    own = re.fullmatch(r"stage(\d+)", workdir.name)
    number = stage_named(name, int(own[1]) if own else 1)
    folder = stage_folder(workdir.parent, number) / EXPORT
    if own is None or number >= int(own[1]) or not folder.is_dir():
        raise InputError(
            f"model {name!r} refers to the export of a stage before {workdir}, which does not exist; it is for the options "
            "of a later stage (--config.stage2.student.model)."
        )
    return str(folder)


def read_config(workdir: pathlib.Path) -> Config | None:
    """The config that a workdir was made with; None for a new one."""
    path = workdir / CONFIG
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({error!s:.200}); remove {workdir} to start again.") from error
    try:
        return parse_config(content)
    except InputError as error:
        raise InputError(
            f"{path} was written by another version of this program ({error}); use another --workdir."
        ) from None


def drop_checkpoints(workdir: pathlib.Path) -> None:
    """Removes the checkpoints; export, results and curves stay."""
    if (workdir / CHECKPOINTS).is_dir():
        shutil.rmtree(workdir / CHECKPOINTS)


def claim_workdir(workdir: pathlib.Path, config: Config, *, write: bool) -> None:
    """Raises `InputError` if the workdir belongs to another training. With `write`, creates it and notes the options."""
    refuse_no_folder(workdir)
    if any(character in str(workdir.absolute()) for character in "[\\"):
        raise InputError(
            f"--workdir={workdir}: Orbax takes [ and \\ in a path for a pattern and finds no checkpoints; name another folder."
        )
    before = read_config(workdir)
    if before is not None:
        refuse_other_training(flat(before), flat(config), workdir=str(workdir))
        if other := _changed(workdir / PARTS, part_digests(config), "these files"):
            raise InputError(
                f"{other[0]} has changed since {workdir} was started; undo the change or use another --workdir."
            )
    elif workdir.exists() and any(path.name != LOCK and not is_unfinished(path) for path in workdir.iterdir()):
        raise InputError(f"{workdir} is not empty and not a workdir of this program; use another --workdir.")
    if not write:
        return
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomic(workdir / CONFIG, json.dumps(nested(config), indent=2))
    if digests := part_digests(config):
        write_atomic(workdir / PARTS, json.dumps(digests, indent=2) + "\n")


def refuse_other_inputs(workdir: pathlib.Path, now: Mapping[str, str]) -> None:
    """Raises `InputError` if the run in the workdir began with other inputs."""
    other = _changed(workdir / INPUTS, now, "text and models")
    if DEV_SCORE in other:
        refuse_other_dev_score(workdir, read_note(workdir / INPUTS)[DEV_SCORE], now[DEV_SCORE])
    if other:
        raise InputError(
            f"the {other[0]} has changed since {workdir} was started; restore it, or give another --workdir."
        )


def refuse_other_dev_score(workdir: pathlib.Path, before: str, now: str) -> NoReturn:
    """Raises `InputError`: the best checkpoint so far was chosen by a score that is no longer measured."""
    raise InputError(
        f"{workdir} was started with {before} as its dev score, which is {now} now; set or unset JAXDISTILL_DATA as it was then, "
        "or give another --workdir. `python -m jaxdistill.evaluate` scores the export."
    )


def note_inputs(workdir: pathlib.Path, inputs: Mapping[str, str]) -> None:
    """Notes the inputs for `refuse_other_inputs`; keeps an existing note."""
    if not (workdir / INPUTS).is_file():
        write_atomic(workdir / INPUTS, json.dumps(dict(inputs), indent=1) + "\n")


def made_of(workdir: pathlib.Path) -> dict[str, dict[str, str]]:
    """For each stage that has begun, maps the earlier stages that it uses to the digests of their exports."""
    return read_note(workdir / STUDENTS)


def read_note(path: pathlib.Path) -> dict[str, Any]:
    """The content of a note; empty if it is missing or damaged."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _changed(note: pathlib.Path, now: Mapping[str, str], what: str) -> list[str]:
    """The inputs whose digests differ from those in a note; none without one. Raises `InputError`, in which `what` names the
    inputs, if the note is damaged."""
    before = read_note(note)
    if note.exists() and not before:
        raise InputError(f"{note} is damaged; remove it if {what} are unchanged since the run began.")
    return [name for name in now if before.get(name, now[name]) != now[name]]


def part_digests(config: Config) -> dict[str, str]:
    """Maps every part from outside that the config names to the SHA-256 of its source code."""
    names = config.kinds.values()
    own = [name.rpartition(":")[0] for name in names if parts.is_outside(name)]
    return parts.source_digests([*own, *split_specs(config.run.parts)])
