"""Runs a training, or several in a row, each of which passes its best student on (two-stage DistilCSE, Trans-Encoder)."""

import contextlib
import json
import logging
import pathlib
import shutil
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from jaxdistill.config import flat, flat_stages
from jaxdistill.config.options import WITHOUT_EFFECT, Config
from jaxdistill.core import InputError, plugins
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, folder_digest, is_remote, refuse_foreign, replacing, write_atomic
from jaxdistill.core.paths import data_folder
from jaxdistill.core.runtime import source_digest
from jaxdistill.data.text import content_digest, is_hub, split_specs
from jaxdistill.evals import sts
from jaxdistill.evals.papers import cited
from jaxdistill.evals.report import StageRow, as_text, stage_table
from jaxdistill.training.build import build
from jaxdistill.training.check import check_stages
from jaxdistill.training.dev import retrieval_files
from jaxdistill.training.finish import finish
from jaxdistill.training.loop import train
from jaxdistill.training.metrics import Callback, logged, say
from jaxdistill.training.models import write_student
from jaxdistill.training.objective import objective_title
from jaxdistill.training.plan import print_overview, timed
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.training.workdir.folder import (
    DEV_SCORE,
    EXPORT,
    LENGTH,
    RESULTS,
    STEPS,
    STUDENTS,
    TEXT_FILES,
    Workdir,
    claim_workdir,
    note_inputs,
    opened,
    read_config,
    read_note,
    refuse_other_inputs,
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

    def facts() -> dict[str, Any]:
        """What must be the same in all processes at the start, by name."""
        data = data_folder()
        facts = {"jaxdistill": source_digest()[:12], "jax": jax.__version__, "--dry_run": dry_run}
        facts["JAXDISTILL_DATA"] = sts.digest(data)[:12] if data is not None else None
        facts["--workdir"] = str(workdir if is_remote(workdir) else pathlib.Path(workdir).absolute())
        options = flat_stages(stages).items()
        return facts | {name: value for name, value in options if not name.endswith("data.cache_folder")}

    with processes.connected(facts):
        if not processes.is_first():
            logging.getLogger("jaxdistill").setLevel(logging.WARNING)
        with opened(workdir, dry_run=dry_run) as files:
            run = partial(run_training, dry_run=dry_run, command=command, callbacks=callbacks)
            folder = files.folder
            if len(stages) > 1:
                _run_chain(stages, files, run, dry_run=dry_run)
            elif not files.checkpoints.is_dir() and is_finished(folder, stages[0]):
                say(f"{folder} is finished: {folder / EXPORT}; a sweep removed its checkpoints")
            else:
                run(stages[0], files)


def _run_chain(stages: Sequence[Config], files: Workdir, run: Any, *, dry_run: bool) -> None:
    """Runs the unfinished stages one after the other."""
    workdir = files.folder
    with processes.agreed() as facts:
        finished = [is_finished(stage_folder(workdir, number), stage) for number, stage in enumerate(stages, start=1)]
        facts["finished stages"] = finished
        check_stages(stages, finished, workdir)
        for name in rivals(stages):
            refuse_foreign(workdir / f"best-{name}", advice="Move it, or give another --workdir.")
    with contextlib.nullcontext() if dry_run else files.held():
        students: dict[str, str] = {}
        for number, stage in enumerate(stages, start=1):
            folder, before = stage_folder(workdir, number), stage_folder(workdir, number - 1)
            with processes.agreed() as facts:
                if number > 1:
                    students[before.name] = folder_digest(before / EXPORT, "*.safetensors")
                noted = read_note(workdir / STUDENTS)
                begun = noted.get(folder.name, students) if folder.exists() else students
                if other := [name for name in students if students[name] != begun.get(name)]:
                    raise InputError(
                        f"{folder} was made from another student of {other[0]}, which was trained again since; remove that folder "
                        "to train it again, or give another --workdir."
                    )
                if not dry_run and processes.is_first():
                    workdir.mkdir(parents=True, exist_ok=True)
                    write_atomic(workdir / STUDENTS, json.dumps(noted | {folder.name: students}, indent=1) + "\n")
                facts |= students
            if finished[number - 1]:
                say(f"stage {number} of {len(stages)} is finished: {folder / EXPORT}")
                continue
            say(f"stage {number} of {len(stages)}: {objective_title(stage)} in {folder}")
            run(stage, files.stage(number))
            if dry_run:
                return  # the next stage's student does not exist yet
            files.share()
        if processes.is_first():
            summarise(stages, workdir)


def run_training(
    config: Config, files: Workdir, *, dry_run: bool, command: str, callbacks: Sequence[Callback] = ()
) -> None:
    """Runs one training from its config to an exported student: build, train, export, report.

    Every process of a multi-host run calls it, and only the first prints and writes.
    """
    is_first, workdir = processes.is_first(), files.folder
    with logged(command) as log_into:
        with processes.agreed() as facts:
            plugins.use(config.run.plugins)
            claim_workdir(workdir, config, write=False)
            refuse_foreign(workdir / EXPORT, advice="Move it, or give another --workdir.")
            paper = cited(config.run.paper, "run.paper") if config.run.paper else None
            run = build(config, workdir, progress=is_first)
            contents = digests(run)
            # The student is left out: a resumed run reads it from the workdir.
            inputs = {name: digest for name, digest in contents.items() if name != "content of student.model"}
            if not any(map(is_hub, split_specs(config.data.text))) and run.text.store.source_digest:
                inputs[TEXT_FILES] = run.text.store.source_digest
            inputs |= {LENGTH: str(run.text.store.max_length), DEV_SCORE: run.dev.best or "none"}
            refuse_other_inputs(workdir, inputs)
            # Compared between the processes as this block ends, before the first step.
            facts.update(contents)
        run = timed(run)
        if config.run.minutes:
            inputs |= {STEPS: str(run.program.steps)}
        teacher_scores = print_overview(run)
        if dry_run:
            say("dry run: stopped before step 1")
            return
        # Not before: a dry run writes nothing, and everything that can be refused has been.
        with files.held():
            if is_first:
                claim_workdir(workdir, config, write=True)
                note_inputs(workdir, inputs)
                write_student(run.models.student, workdir)
                log_into(workdir)
            processes.wait("the workdir is claimed")
            outcome = train(run, files, progress=is_first, callbacks=callbacks)
            finish(run, outcome, teacher_scores, paper=paper, command=command)
            processes.wait("finished")


def digests(run: Run) -> dict[str, str]:
    """Digests, by name, of inputs that must be the same in all processes of a run, and when it is resumed."""
    config, evals = run.config, run.config.evals
    files: dict[str, Sequence[str]] = {
        "evals.pairs": split_specs(evals.pairs),
        "evals.agreement": split_specs(evals.agreement),
        "evals.entities": split_specs(evals.entities),
        "evals.retrieval": [str(path) for of_set in retrieval_files(evals) for path in of_set],
    }
    files |= config.teacher.files
    contents = {name: content_digest(specs) for name, specs in files.items() if specs}
    contents |= {f"{name}.model": model.digest() for name, model in teachers_by_name(run.models.teachers).items()}
    contents |= {f"labeller {number}": digest for number, digest in enumerate(run.models.labeller_digests, start=1)}
    contents["student.model"] = run.models.student.digest()
    contents["data.text"] = run.text.store.content_digest
    outside = [name.rpartition(":")[0] for name in config.kinds.values() if plugins.is_outside(name)]
    contents |= plugins.source_digests([*outside, *split_specs(config.run.plugins)])
    return {f"content of {name}": digest[:12] for name, digest in contents.items()}


def summarise(stages: Sequence[Config], workdir: pathlib.Path) -> None:
    """Prints a table of all stages, and copies the best encoder of each form and language model."""
    rows = []
    for number, stage in enumerate(stages, start=1):
        results = read_note(stage_folder(workdir, number) / RESULTS)
        metric, scores = results["best_metric"], results["scores"]
        rows.append(
            StageRow(
                number=number,
                form=getattr(stage.objective, "form", ""),
                student=stage.student.model,
                metric=metric,
                before=scores["student before"].get(metric),
                after=scores["student after"].get(metric),
                no_gain=results["no_gain"],
                sts=scores["student after"].get("average"),
                paper=(results["paper"] or {}).get("scores", {}).get("average"),
            )
        )
    say(as_text(stage_table(rows)))
    for row in rows:
        if row.no_gain:
            say(f"stage {row.number}: {row.no_gain}")
    for name, numbers in rivals(stages).items():
        best = max((row for row in rows if row.number in numbers), key=lambda row: row.after)
        export, folder = stage_folder(workdir, best.number) / EXPORT, workdir / f"best-{name}"
        with replacing(folder, read_note(export / MARK)) as new:
            shutil.copytree(export, new)
        say(f"best {best.form}-encoder: stage {best.number}, {100 * best.after:.2f} {best.metric}: {folder}")


def rivals(stages: Sequence[Config]) -> dict[str, list[int]]:
    """Groups the stages that train the same form of the same language model; the best of each group is copied.

    A group's name is the form, `bi` or `cross`; with several language models (mutual distillation) `bi-1`, `bi-2` and so on,
    in the order of their first stages. Stages whose objective has no form are in no group.
    """

    def origin(number: int) -> str:
        """The checkpoint that a stage's student ultimately starts from, traced back through earlier stages."""
        model = stages[number - 1].student.model
        before = stage_named(model, number)
        return origin(before) if 0 < before < number else model

    numbers: dict[str, dict[str, list[int]]] = {}
    for number, stage in enumerate(stages, start=1):
        if form := getattr(stage.objective, "form", ""):
            numbers.setdefault(form, {}).setdefault(origin(number), []).append(number)
    return {
        form if len(of_models) == 1 else f"{form}-{index}": of_model
        for form, of_models in sorted(numbers.items())
        for index, of_model in enumerate(of_models.values(), start=1)
    }


def is_finished(folder: pathlib.Path, config: Config) -> bool:
    """Whether the stage is finished and was run with these options; options that do not affect its results may differ."""
    before = read_config(folder)
    if before is None or not (folder / EXPORT).is_dir():
        return False
    begun, ended, requested = (
        {option: value for option, value in options.items() if option not in WITHOUT_EFFECT}
        for options in (flat(before), read_note(folder / RESULTS).get("config", {}), flat(config))
    )
    return begun == ended == requested
