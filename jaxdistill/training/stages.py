"""Runs a training, or several stages in a row that pass their best students on (two-stage DistilCSE, Trans-Encoder)."""

import contextlib
import json
import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxdistill.config import errors_of_stage, flat
from jaxdistill.config.options import WITHOUT_EFFECT, Config
from jaxdistill.core import InputError, plugins
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, file_names, is_remote, marked_files, refuse_foreign, replacing, write_atomic
from jaxdistill.core.paths import data_folder
from jaxdistill.core.runtime import source_digest
from jaxdistill.data.text import content_digest, files_of, is_hub_text, is_in_bucket, split_specs, tables
from jaxdistill.evals import sts
from jaxdistill.evals.papers import cited
from jaxdistill.evals.report import as_text, stage_table
from jaxdistill.models.checkpoints.model import is_hub_model, locate
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
    """Runs a training in a workdir, local or in a bucket, or several stages in `workdir/stage1` and so on. What is finished is not
    run again. An unfinished stage is refused if later ones have begun, from the student that it would replace."""

    def common_settings() -> dict[str, Any]:
        data = data_folder()
        # Each machine may have its cache elsewhere.
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
            run(stages[0], files)
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
    """Raises `InputError` for a finished stage whose text has changed since; and for one to be trained, if later stages began from the
    student that it would replace, or if its text, models or dev sets are missing, which else would end the run hours later."""
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
    """Raises `InputError` for wrong options, and for a text, a column or a model that does not exist. Models on the hub are not looked
    up; with `where`, as in `check_launch`, neither is anything in a bucket, nor text on the hub."""
    # A launched training may have other devices than this process, even where it sees this machine's files.
    checked_setup(stage, meshes.make_mesh(devices=jax.devices()[:1]) if where else None)
    text = split_specs(stage.data.text)
    inputs = {
        "--workdir": [workdir],  # only to refuse one on this machine; it need not exist
        "--config.data.text": text,
        "--config.data.exclude": split_specs(stage.data.exclude),
        "--config.evals.agreement": split_specs(stage.evals.agreement),
        "--config.evals.pairs": [stage.evals.pairs] if stage.evals.pairs else [],
        "--config.evals.entities": split_specs(stage.evals.entities),
        "--config.student.trim": split_specs(stage.student.trim),
        "--config.teacher.model": stage.teacher.models,
        "--config.student.model": [stage.student.model],
    }

    def is_looked_up(flag: str, name: str) -> bool:
        """Whether an option's value names files that are looked for here, or that the training must not expect on this machine."""
        # No model of its own: none is named, or the run's teacher, or the student of an earlier stage (`previous`, `stage1`).
        is_from_run = name in ("", "teacher") or workdirs.STAGE_NAME.fullmatch(name)
        if flag.endswith(".model") and (is_from_run or is_hub_model(name)):
            return False
        return not is_hub_text(name) and not (where and is_in_bucket(name))

    for flag, names in inputs.items():
        for name in filter(partial(is_looked_up, flag), names):
            if where == "elsewhere" and not name.startswith("package:"):
                raise InputError(
                    f"{flag}={name} is on this machine, but the training runs on others; give the address of a bucket, such as "
                    f"{flag}=gs://BUCKET/{Path(name).name}."
                )
            if flag.endswith(".model"):  # the text is read below
                locate(name)
            elif flag not in ("--workdir", "--config.data.text"):
                files_of(flag.removeprefix("--config."), [name])
    unread = [spec for spec in text if where and (is_in_bucket(spec) or is_hub_text(spec))]
    for portion in text_portions(stage.data, unread):
        spec = text[portion.source]
        if spec not in unread:
            next(tables(spec, portion.columns, cache=stage.data.cache_folder), None)  # the first table has the columns


def run_training(config: Config, files: Workdir, *, dry_run: bool, command: str, callbacks: Sequence[Callback]) -> None:
    """Runs one training from its config to an exported student. All processes call it; only the first prints and writes."""
    is_first = processes.is_first()
    workdir = files.folder
    plugins.use(config.run.plugins)
    config_before = workdirs.check_workdir(workdir, config)
    refuse_foreign(workdir / workdirs.EXPORT, advice="Move it, or give another --workdir.")
    finished_line = f"{workdir} is finished: {workdir / workdirs.EXPORT}"
    # Without checkpoints, which a sweep removes, a finished run could only be trained anew.
    if is_finished(workdir, config) and not files.checkpoints.is_dir():
        say(finished_line)
        return
    if config.run.steps == 0:
        export_untrained(config, files, dry_run=dry_run, command=command)
        return
    # Builds the run. Inputs must be the same in all processes, and the same as when the run was first started.
    with processes.agreed() as agreed:
        if config.run.paper:
            cited(config.run.paper, "run.paper")  # raises for an unknown paper
        run = build(config, workdir, progress=is_first)
        contents = {f"content of {name}": digest[:12] for name, digest in run.input_digests().items()}
        agreed.update(contents)
        # Without the student, which a resumed run reads from the workdir.
        inputs = {name: digest for name, digest in contents.items() if name != "content of student.model"}
        if not any(map(is_hub_text, split_specs(config.data.text))):
            inputs[workdirs.TEXT_FILES] = run.store.source_digest
        inputs[workdirs.LENGTH] = str(run.store.max_length)
        inputs[workdirs.DEV_SCORE] = run.dev.best or "none"
        workdirs.refuse_other_inputs(workdir, inputs)
        is_complete = agreed["finished"] = is_finished(workdir, config, ignored=["data.cache_folder"])
    if dry_run:
        overview(run)
        say("dry run: stopped before step 1")
        return
    if is_complete:
        say(finished_line)
        return
    # Only now is anything written: a dry run writes nothing, and neither does a run whose input is wrong.
    with files.held():
        restore_step = config.run.restore_step
        # If a launcher repeats the command after a kill, the run does not go back again.
        has_gone_back = config_before is not None and config_before.run.restore_step == restore_step
        if restore_step != -1 and not has_gone_back:
            Checkpoints(files).go_back(restore_step, run.program.like, run.program.shardings)
        if is_first:
            workdirs.write_config(workdir, config)
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
            workdirs.write_config(workdir, config)
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
        rows.append(dict[str, Any](
            number=number, form=getattr(stage.objective, "form", ""), student=stage.student.model, metric=metric,
            before=before.get(metric), after=after.get(metric), no_gain=results["no_gain"], sts=after.get("average"),
            paper=paper_scores.get("average"),
        ))  # fmt: skip
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
    """Groups the stages that train the same form of the same language model; returns their numbers by the group's name. That is the
    form, `bi` or `cross`; with several language models (mutual distillation) `bi-1`, `bi-2` and so on."""
    # For each stage, the model that its student, or the first of its predecessors, was made from.
    origins: list[str] = []
    groups: dict[str, dict[str, list[int]]] = {}  # numbers of stages by form and origin
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


def is_finished(folder: Path, config: Config, *, ignored: Collection[str] = WITHOUT_EFFECT) -> bool:
    """Whether the training in a folder has finished with the options in `config`, apart from those that are `ignored`."""

    def compared(options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name not in ignored}

    started = workdirs.read_config(folder)
    export_folder = folder / workdirs.EXPORT
    if started is None or not export_folder.is_dir() or marked_files(export_folder).keys() - file_names(export_folder):
        return False  # also if a file of the export is lost: `finish` writes them all again
    # After a later start with other options, the results are still those of the earlier one, until it finishes.
    finished_options = workdirs.read_note(folder / workdirs.RESULTS).get("config", {})
    return compared(flat(started)) == compared(finished_options) == compared(flat(config))
