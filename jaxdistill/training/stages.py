"""Runs several trainings in a row; each passes its best student on to the next (two-stage DistilCSE, Trans-Encoder)."""

import contextlib
import json
import logging
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from jaxdistill.cluster import processes
from jaxdistill.config import WITHOUT_EFFECT, Config, flat, flat_stages
from jaxdistill.core import InputError
from jaxdistill.evals import sts
from jaxdistill.files import MARK, folder_digest, is_remote, refuse_foreign, replacing, write_atomic
from jaxdistill.paths import data_folder
from jaxdistill.reporting.tables import StageRow, as_text, stage_table
from jaxdistill.runtime import source_digest
from jaxdistill.training.console import say
from jaxdistill.training.job import run_training
from jaxdistill.training.metrics import Callback
from jaxdistill.training.setup.check import check_stages
from jaxdistill.training.setup.objective import objective_title
from jaxdistill.workdir import bucket
from jaxdistill.workdir.bucket import Workdir
from jaxdistill.workdir.folder import (
    EXPORT,
    RESULTS,
    STUDENTS,
    made_of,
    part_digests,
    read_config,
    read_note,
    stage_folder,
    stage_named,
)


def run_stages(
    stages: Sequence[Config],
    workdir: str | pathlib.Path,
    *,
    dry_run: bool,
    command: str,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Runs a training in a workdir, local or in a bucket, or each of several stages in `workdir/stage1` and so on.

    A stage whose `student.model` is `previous` starts from the previous stage's export. A finished stage is not run again. A
    stage that was made from an earlier one is refused if that one has been trained again since.
    """
    with processes.connected(partial(_facts, stages, workdir, dry_run)):
        if not processes.is_first():
            logging.getLogger("jaxdistill").setLevel(logging.WARNING)
        with bucket.opened(workdir, dry_run=dry_run) as place:
            run = partial(run_training, dry_run=dry_run, command=command, callbacks=callbacks)
            _run_stages(stages, place, run, dry_run=dry_run)


def _run_stages(stages: Sequence[Config], place: Workdir, run: Callable[..., None], *, dry_run: bool) -> None:
    workdir = place.folder
    if _is_dropped(stages, place):
        say(f"{workdir} is finished: {workdir / EXPORT}; a sweep removed its checkpoints")
    elif len(stages) == 1:
        run(stages[0], place)
    else:
        _run_chain(stages, place, run, dry_run=dry_run)


def _is_dropped(stages: Sequence[Config], place: Workdir) -> bool:
    """Whether the workdir is a finished point of a sweep, whose checkpoints were removed (one stage only)."""
    return len(stages) == 1 and not place.checkpoints.is_dir() and is_finished(place.folder, stages[0])


def _facts(stages: Sequence[Config], workdir: str | pathlib.Path, dry_run: bool) -> dict[str, Any]:
    """Facts, by name, that must be the same in all processes at the start of a run."""
    data = data_folder()
    folder = sts.digest(data)[:12] if data is not None else None
    facts = {"jaxdistill": source_digest()[:12], "jax": jax.__version__, "JAXDISTILL_DATA": folder}
    facts |= {
        "--workdir": str(workdir if is_remote(workdir) else pathlib.Path(workdir).absolute()),
        "--dry_run": dry_run,
    } | flat_stages(stages)
    digests = {name: digest for stage in stages for name, digest in part_digests(stage).items()}
    facts |= {f"source of {name}": digest[:12] for name, digest in digests.items()}
    return {name: value for name, value in facts.items() if not name.endswith("data.cache_folder")}


def _run_chain(stages: Sequence[Config], place: Workdir, run: Callable[..., None], *, dry_run: bool) -> None:
    """Runs the unfinished stages one after the other."""
    workdir = place.folder
    with processes.agreed() as facts:
        finished = [is_finished(stage_folder(workdir, number), stage) for number, stage in enumerate(stages, start=1)]
        facts["finished stages"] = finished
        check_stages(stages, finished, workdir)
        for name in rivals(stages):
            refuse_foreign(workdir / f"best-{name}", advice="Move it, or give another --workdir.")
    with contextlib.nullcontext() if dry_run else place.held():
        students: dict[str, str] = {}
        for number, stage in enumerate(stages, start=1):
            folder, before = stage_folder(workdir, number), stage_folder(workdir, number - 1)
            with processes.agreed() as facts:
                if number > 1:
                    students[before.name] = folder_digest(before / EXPORT, "*.safetensors")
                note_students(folder, students, write=not dry_run and processes.is_first())
                facts |= students
            if finished[number - 1]:
                say(f"stage {number} of {len(stages)} is finished: {folder / EXPORT}")
                continue
            say(f"stage {number} of {len(stages)}: {objective_title(stage)} in {folder}")
            run(stage, place.stage(number))
            if dry_run:
                return  # the next stage's student does not exist yet
            place.share()
        if processes.is_first():
            summarise(stages, workdir)


def note_students(folder: pathlib.Path, students: Mapping[str, str], *, write: bool) -> None:
    """Notes the earlier students that the stage in `folder` uses; raises `InputError` if it began with others.

    Args:
      students: maps earlier stages to the digests of their exports.
    """
    note, name = folder.parent / STUDENTS, folder.name
    noted = made_of(folder.parent)
    begun = noted.get(name, students) if folder.exists() else students
    other = [stage for stage in students if students[stage] != begun.get(stage)]
    if other:
        raise InputError(
            f"{folder} was made from another student of {other[0]}, which was trained again since; remove that folder "
            "to train it again, or give another --workdir."
        )
    if write and noted.get(name) != students:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, json.dumps(noted | {name: dict(students)}, indent=1) + "\n")


def summarise(stages: Sequence[Config], workdir: pathlib.Path) -> None:
    """Prints a table of all stages, and copies the best encoder of each form and language model."""
    rows = []
    for number, stage in enumerate(stages, start=1):
        results = json.loads((stage_folder(workdir, number) / RESULTS).read_text(encoding="utf-8"))
        metric, scores = results["best_metric"], results["scores"]
        rows.append(
            StageRow(
                number=number,
                form=getattr(stage.objective, "form", ""),
                student=stage.student.model,
                metric=metric,
                before=scores["student before"].get(metric),
                after=scores["student after"].get(metric),
                no_gain=results.get("no_gain", ""),
                sts=scores["student after"].get("average"),
                paper=((results.get("paper") or {}).get("row") or {}).get("scores", {}).get("average"),
            )
        )
    say(as_text(stage_table(rows)))
    for row in rows:
        if row.no_gain:
            say(f"stage {row.number}: {row.no_gain}")
    for name, numbers in rivals(stages).items():
        best = max((row for row in rows if row.number in numbers), key=lambda row: row.after)
        folder = copied(stage_folder(workdir, best.number) / EXPORT, workdir / f"best-{name}")
        say(f"best {best.form}-encoder: stage {best.number}, {100 * best.after:.2f} {best.metric}: {folder}")


def rivals(stages: Sequence[Config]) -> dict[str, list[int]]:
    """Groups the stages that train the same form of the same language model; the best of each group is copied.

    A group's name is the form, `bi` or `cross`; with several language models (mutual distillation) `bi-1`, `bi-2` and so on,
    in the order of their first stages. Stages whose objective has no form are in no group.
    """
    numbers: dict[str, dict[str, list[int]]] = {}
    for number, stage in enumerate(stages, start=1):
        if form := getattr(stage.objective, "form", ""):
            numbers.setdefault(form, {}).setdefault(_origin(stages, number), []).append(number)
    return {
        form if len(of_models) == 1 else f"{form}-{place}": of_model
        for form, of_models in sorted(numbers.items())
        for place, of_model in enumerate(of_models.values(), start=1)
    }


def _origin(stages: Sequence[Config], number: int) -> str:
    """The checkpoint that a stage's student ultimately starts from, traced back through earlier stages."""
    model = stages[number - 1].student.model
    before = stage_named(model, number)
    return _origin(stages, before) if 0 < before < number else model


def copied(export: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Copies an export to `folder`, replacing an earlier copy."""
    with replacing(folder, read_note(export / MARK)) as new:
        shutil.copytree(export, new)
    return folder


def is_finished(folder: pathlib.Path, config: Config) -> bool:
    """Whether the stage is finished and was run with these options; options that do not affect its results may differ."""
    if not (folder / EXPORT).is_dir():
        return False
    before = read_config(folder)
    if before is None:
        return False
    begun, ended, wanted = (
        {option: value for option, value in options.items() if option not in WITHOUT_EFFECT}
        for options in (flat(before), dict(read_note(folder / RESULTS).get("config") or {}), flat(config))
    )
    return begun == wanted == ended
