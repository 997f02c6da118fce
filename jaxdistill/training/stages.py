"""Runs a training, or several stages in a row that pass their best students on (two-stage DistilCSE, Trans-Encoder)."""

import contextlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxdistill.config import errors_of_stage, flat
from jaxdistill.config.options import WITHOUT_EFFECT, Config
from jaxdistill.core import InputError, plugins
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, is_remote, refuse_foreign, replacing, write_atomic
from jaxdistill.core.paths import data_folder
from jaxdistill.core.runtime import source_digest
from jaxdistill.data.text import content_digest, files_of, is_hub, split_specs, tables
from jaxdistill.evals import sts
from jaxdistill.evals.papers import cited
from jaxdistill.evals.report import as_text, stage_table
from jaxdistill.models.checkpoints.model import is_on_hub, locate
from jaxdistill.models.model_text import text_portions
from jaxdistill.training.build import build, checked_setup, context_of, make_student, objective_title, write_student
from jaxdistill.training.dev import agreement_pairs, dev_tasks
from jaxdistill.training.export import export
from jaxdistill.training.finish import finish, student_facts
from jaxdistill.training.loop import train
from jaxdistill.training.metrics import Callback, logged, say
from jaxdistill.training.plan import overview
from jaxdistill.training.workdir import folder as workdirs
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir


def run_stages(
    stages: Sequence[Config], workdir: str | Path, *, dry_run: bool, command: str, callbacks: Sequence[Callback] = ()
) -> None:
    """Runs a training in a workdir, local or in a bucket, or several stages in `workdir/stage1` and so on. A finished stage is not
    run again, and an unfinished one is refused if later stages have begun."""

    def common_settings() -> dict[str, Any]:
        """Options, versions and folders, which must be the same in all processes."""
        data = data_folder()
        options = {name: value for name, value in flat(*stages).items() if not name.endswith("data.cache_folder")}
        return options | {
            "jaxdistill": source_digest()[:12],
            "jax": jax.__version__,
            "--dry_run": dry_run,
            "JAXDISTILL_DATA": sts.digest(data)[:12] if data else None,
            "--workdir": str(workdir if is_remote(workdir) else Path(workdir).absolute()),
        }

    with processes.connected(common_settings), workdirs.opened(workdir, dry_run=dry_run) as files:
        if not processes.is_first():
            logging.getLogger("jaxdistill").setLevel(logging.WARNING)
        run = partial(run_training, dry_run=dry_run, command=command, callbacks=callbacks)
        folder = files.folder
        count = len(stages)
        if count == 1:
            # A finished run with its checkpoints is measured and exported again; a sweep has removed them.
            if files.checkpoints.is_dir() or not is_finished(folder, stages[0]):
                run(stages[0], files)
            else:
                say(f"{folder} is finished: {folder / workdirs.EXPORT}")
            return
        with processes.agreed() as agreed:
            folders = workdirs.stage_folders(folder, count)
            finished = list(map(is_finished, folders, stages))
            agreed["finished stages"] = finished
            check_stages(stages, folders, finished)
            for group in rivals(stages):
                refuse_foreign(folder / f"best-{group}", advice="Move it, or give another --workdir.")
        with contextlib.nullcontext() if dry_run else files.held():
            for number, stage in enumerate(stages, start=1):
                stage_folder = folders[number - 1]
                if finished[number - 1]:
                    say(f"stage {number} of {count} is finished: {stage_folder / workdirs.EXPORT}")
                    continue
                say(f"stage {number} of {count}: {objective_title(stage)} in {stage_folder}")
                run(stage, files.stage(number))
                if dry_run:
                    return  # the next stage's student does not exist yet
                files.share()
            if processes.is_first():
                summarise(stages, folder)


def check_stages(stages: Sequence[Config], folders: Sequence[Path], finished: Sequence[bool]) -> None:
    """Raises `InputError` unless the stages can go on in these folders; `finished` tells which need no training. A finished stage
    must have been trained on the same text. An unfinished one must not replace a student from which later stages began, and must have
    its text, models and dev sets: without this check, a later stage would end the run hours after its start."""
    for number, (stage, folder, is_stage_finished) in enumerate(zip(stages, folders, finished, strict=True), start=1):
        with errors_of_stage(number, stages):
            if is_stage_finished:
                before = workdirs.read_note(folder / workdirs.INPUTS).get(workdirs.TEXT_FILES)
                if before and before != content_digest(split_specs(stage.data.text)):
                    raise InputError(
                        f"data.text={stage.data.text} has changed since {folder} was trained; remove the folders of this and later stages "
                        "to train them again, restore the text, or give another --workdir."
                    )
                continue
            if later := [later_folder.name for later_folder in folders[number:] if later_folder.exists()]:
                raise InputError(
                    f"it is to be trained, but {', '.join(later)} in {folder.parent} began from the student that this would replace; remove "
                    f"{' and '.join(later)} to train all again, give the same options as before, or another --workdir."
                )
            if stage.run.steps == 0:  # an untrained student needs no text
                continue
            check_inputs(stage)
            dev_tasks(stage)
            agreement_pairs(stage)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, files and columns with which the training would fail at its start. Loads no model, and nothing
    from the hub or a bucket. `where` is `here` if the training will see this machine's files, `elsewhere` if only buckets and hubs."""
    workdirs.address_of(workdir)  # raises for a store that cannot hold a workdir
    for number, stage in enumerate(stages, start=1):
        with errors_of_stage(number, stages):
            check_inputs(stage, where=where, workdir=workdir)


def check_inputs(stage: Config, *, where: str = "", workdir: str = "") -> None:
    """Raises `InputError` for wrong options, or if a text, a column of it or a model does not exist; leaves out models on the hub.
    `where` is `here` or `elsewhere` as in `check_launch`; empty: this machine trains, and text on the hub or in a bucket is read
    too."""
    # The devices of a training elsewhere are not known here.
    checked_setup(stage, meshes.make_mesh(devices=jax.devices()[:1]) if where else None)
    specs = split_specs(stage.data.text)
    inputs = {
        "--workdir": [workdir],
        "--config.data.text": specs,
        "--config.data.exclude": split_specs(stage.data.exclude),
        "--config.evals.agreement": split_specs(stage.evals.agreement),
        "--config.teacher.model": stage.teacher.models,
        "--config.student.model": [stage.student.model],
    }
    for flag, names in inputs.items():
        is_model = flag.endswith(".model")
        for name in names:
            is_made_here = name in ("", "teacher") or workdirs.STAGE_NAME.fullmatch(name)
            if is_model and (is_made_here or is_on_hub(name)):
                continue
            if is_hub(name) or (where and is_remote(name)):
                continue
            if where == "elsewhere" and not name.startswith("package:"):
                raise InputError(
                    f"{flag}={name} is on this machine, but the training runs on others; give the address of a bucket, such as "
                    f"{flag}=gs://BUCKET/{Path(name).name}."
                )
            if is_model:
                locate(name)
            elif flag not in ("--workdir", "--config.data.text"):  # the text is opened below
                files_of(flag.removeprefix("--config."), [name])
    for portion in text_portions(stage.data):
        spec = specs[portion.source]
        if not (where and (is_remote(spec) or is_hub(spec))):
            next(tables(spec, portion.columns, cache=stage.data.cache_folder), None)


def run_training(config: Config, files: Workdir, *, dry_run: bool, command: str, callbacks: Sequence[Callback]) -> None:
    """Runs one training from its config to an exported student. All processes call it; only the first prints and writes."""
    is_first = processes.is_first()
    workdir = files.folder
    plugins.use(config.run.plugins)
    config_before = workdirs.claim_workdir(workdir, config, write=False)
    refuse_foreign(workdir / workdirs.EXPORT, advice="Move it, or give another --workdir.")
    if config.run.steps == 0:
        export_untrained(config, files, dry_run=dry_run, command=command)
        return
    with processes.agreed() as agreed:
        if config.run.paper:
            cited(config.run.paper, "run.paper")  # for its error alone
        run = build(config, workdir, progress=is_first)
        contents = {f"content of {name}": digest[:12] for name, digest in run.input_digests().items()}
        # The student is left out: a resumed run reads it from the workdir.
        inputs = {name: digest for name, digest in contents.items() if name != "content of student.model"}
        if not any(map(is_hub, split_specs(config.data.text))):
            inputs[workdirs.TEXT_FILES] = run.store.source_digest
        inputs[workdirs.LENGTH] = str(run.store.max_length)
        inputs[workdirs.DEV_SCORE] = run.dev.best or "none"
        workdirs.refuse_other_inputs(workdir, inputs)
        agreed.update(contents)
    if dry_run:
        overview(run)
        say("dry run: stopped before step 1")
        return
    # Only now is anything written: a dry run writes nothing, and neither does a run whose input is wrong.
    with files.held():
        restore_step = config.run.restore_step
        # If a launcher repeats the command after a kill, the run does not go back again.
        has_gone_back = config_before is not None and config_before.run.restore_step == restore_step
        if restore_step != -1 and not has_gone_back:
            Checkpoints(files).go_back(restore_step, run.program.like, run.program.shardings)
        if is_first:
            workdirs.claim_workdir(workdir, config, write=True)
        with logged(workdir, command):
            run, teacher_scores = overview(run)
            if config.run.minutes:
                inputs[workdirs.STEPS] = str(run.program.steps)
            if is_first:
                if not (workdir / workdirs.INPUTS).is_file():
                    write_atomic(workdir / workdirs.INPUTS, json.dumps(inputs, indent=1) + "\n")
                write_student(run.student, workdir)
            processes.wait("the workdir is claimed")
            record = train(run, files, callbacks=callbacks)
            finish(run, files, record, teacher_scores, command=command)
            processes.wait("finished")


def export_untrained(config: Config, files: Workdir, *, dry_run: bool, command: str) -> None:
    """Exports the untrained student (`run.steps=0`), such as some layers of a model; reads text only if making the student does."""
    workdir = files.folder
    if files.checkpoints.is_dir():
        raise InputError(f"run.steps=0 trains nothing, but {workdir} has checkpoints; give another --workdir.")
    config.student.check(config.teacher)
    teachers = config.teacher.load(context_of(config, workdir))
    student = config.student.evaluated(make_student(config, teachers, workdir))
    width = student.definition.embedding_width
    say(f"student: {student.source}: {student.parameter_count:,} parameters, width {width}")
    if dry_run:
        return
    with files.held():
        if processes.is_first():
            workdirs.claim_workdir(workdir, config, write=True)
            with logged(workdir, command):
                facts = student_facts(config, workdir, student, teachers, command)
                exported = config.student.exported(student)
                folder = export(exported, workdir / workdirs.EXPORT, facts=facts, to=config.run.export_to)
                results = {"command": command, "config": flat(config), "best_metric": "", "no_gain": "", "paper": None}
                results["scores"] = {"student before": {}, "student after": {}}
                write_atomic(workdir / workdirs.RESULTS, json.dumps(results, indent=2) + "\n")
                say(f"export (reloaded and compared): {folder}")
        processes.wait("the untrained student is exported")


def summarise(stages: Sequence[Config], workdir: Path) -> None:
    """Prints a table of all stages, and copies the best export of each group of `rivals` to `best-GROUP`. The best has the highest
    dev score; without dev scores, the last stage counts as the best."""
    rows = []
    for number, stage in enumerate(stages, start=1):
        results = workdirs.read_note(workdirs.stage_folder(workdir, number) / workdirs.RESULTS)
        metric, scores = results["best_metric"], results["scores"]
        before, after = scores["student before"], scores["student after"]
        paper_scores = results["paper"]["scores"] if results["paper"] else {}
        row = dict[str, Any](
            number=number, form=getattr(stage.objective, "form", ""), student=stage.student.model, metric=metric,
            before=before.get(metric), after=after.get(metric), no_gain=results["no_gain"], sts=after.get("average"),
            paper=paper_scores.get("average"),
        )  # fmt: skip
        rows.append(row)
    say(as_text(stage_table(rows)))
    for row in rows:
        if row["no_gain"]:
            say(f"stage {row['number']}: {row['no_gain']}")
    for group, numbers in rivals(stages).items():
        candidates = [rows[number - 1] for number in numbers]
        scored = [row for row in candidates if row["after"] is not None]
        best = max(scored, key=lambda row: row["after"]) if scored else candidates[-1]
        best_export = workdirs.stage_folder(workdir, best["number"]) / workdirs.EXPORT
        folder = workdir / f"best-{group}"
        with replacing(folder, workdirs.read_note(best_export / MARK)) as new:
            shutil.copytree(best_export, new)
        score = f"{100 * best['after']:.2f} {best['metric']}" if scored else "the last, as none has a dev score"
        say(f"best {best['form']}-encoder: stage {best['number']}, {score}: {folder}")


def rivals(stages: Sequence[Config]) -> dict[str, list[int]]:
    """Maps names of groups to the numbers of their stages, which train the same form of the same language model. A group's name is
    the form, `bi` or `cross`; with several language models (mutual distillation) `bi-1`, `bi-2` and so on."""
    origins: list[str] = []  # the checkpoint from which each stage's student ultimately starts
    groups: dict[str, dict[str, list[int]]] = {}  # by form and origin
    for number, stage in enumerate(stages, start=1):
        earlier = workdirs.stage_named(stage.student.model, number)
        origins.append(origins[earlier - 1] if 0 < earlier < number else stage.student.model)
        if form := getattr(stage.objective, "form", ""):
            groups.setdefault(form, {}).setdefault(origins[-1], []).append(number)
    return {
        form if len(by_origin) == 1 else f"{form}-{index}": numbers
        for form, by_origin in sorted(groups.items())
        for index, numbers in enumerate(by_origin.values(), start=1)
    }


def is_finished(folder: Path, config: Config) -> bool:
    """Whether the stage is finished and was run with these options; options that do not affect its results may differ."""

    def effective(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}

    started = workdirs.read_config(folder)
    if started is None or not (folder / workdirs.EXPORT).is_dir():
        return False
    finished_options = workdirs.read_note(folder / workdirs.RESULTS).get("config", {})
    return effective(flat(started)) == effective(finished_options) == effective(flat(config))
