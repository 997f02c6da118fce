"""Runs a training, or several stages in a row, where each passes its best student on (two-stage DistilCSE, Trans-Encoder)."""

import contextlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from jaxdistill.config import flat, of_stage
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
from jaxdistill.training.build import (
    Run,
    build,
    checked_setup,
    context_of,
    make_student,
    objective_title,
    write_student,
)  # fmt: skip
from jaxdistill.training.dev import agreement_pairs, dev_tasks, retrieval_files
from jaxdistill.training.export import export
from jaxdistill.training.finish import finish, student_facts
from jaxdistill.training.loop import train
from jaxdistill.training.metrics import Callback, logged, say
from jaxdistill.training.plan import overview
from jaxdistill.training.workdir import folder as workdirs
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir


def run_stages(
    stages: Sequence[Config],
    workdir: str | pathlib.Path,
    *,
    dry_run: bool,
    command: str,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Runs a training in a workdir, local or in a bucket, or each of several stages in `workdir/stage1` and so on.

    A stage whose `student.model` is `previous` starts from the previous stage's export. A finished stage is not run again, and
    an unfinished one is refused if later stages have begun.
    """

    def facts() -> dict[str, Any]:
        """What must be the same in all processes at the start, by name."""
        data = data_folder()
        options = {name: value for name, value in flat(*stages).items() if not name.endswith("data.cache_folder")}
        return options | {
            "jaxdistill": source_digest()[:12],
            "jax": jax.__version__,
            "--dry_run": dry_run,
            "JAXDISTILL_DATA": sts.digest(data)[:12] if data else None,
            "--workdir": str(workdir if is_remote(workdir) else pathlib.Path(workdir).absolute()),
        }

    with processes.connected(facts), workdirs.opened(workdir, dry_run=dry_run) as files:
        if not processes.is_first():
            logging.getLogger("jaxdistill").setLevel(logging.WARNING)
        run = partial(run_training, dry_run=dry_run, command=command, callbacks=callbacks)
        folder, count = files.folder, len(stages)
        if count == 1:
            if files.checkpoints.is_dir() or not is_finished(folder, stages[0]):
                run(stages[0], files)
            else:
                reason = "; a sweep removed its checkpoints" if stages[0].run.steps else ""
                say(f"{folder} is finished: {folder / workdirs.EXPORT}{reason}")
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


def check_stages(stages: Sequence[Config], folders: Sequence[pathlib.Path], finished: Sequence[bool]) -> None:
    """Raises `InputError` if a finished stage was trained on another text, if an unfinished one would replace a student from which
    later ones began, or if it cannot be trained.

    All stages are checked before the first one runs: otherwise a later one that lacks a column or a dev set would end the run hours
    after its start.
    """
    for number, (stage, folder, is_done) in enumerate(zip(stages, folders, finished, strict=True), start=1):
        with of_stage(number, stages):
            if is_done:
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
            checked_setup(stage)
            check_inputs(stage)
            dev_tasks(stage)
            agreement_pairs(stage)


def check_launch(stages: Sequence[Config], workdir: str, where: str) -> None:
    """Raises `InputError` for options, files and columns with which the training would fail at its start; loads no model, and
    nothing from the hub or a bucket.

    Args:
      where: `here`, if the training will see this machine's files, or `elsewhere`, if it sees only buckets and hubs.
    """
    if is_remote(workdir):
        workdirs.address_of(workdir)
    elif where == "elsewhere":
        refuse_local("--workdir", [workdir])
    mesh = meshes.make_mesh(devices=jax.devices()[:1])  # the training's own devices are not known here
    for number, stage in enumerate(stages, start=1):
        with of_stage(number, stages):
            checked_setup(stage, mesh)
            check_inputs(stage, local_only=True)
            if where == "elsewhere":
                refuse_local("--config.data.text", split_specs(stage.data.text))
                refuse_local("--config.data.exclude", split_specs(stage.data.exclude))
                refuse_local("--config.evals.agreement", split_specs(stage.evals.agreement))
                refuse_local("--config.teacher.model", models_off_hub(stage.teacher.models))
                refuse_local("--config.student.model", models_off_hub([stage.student.model]))


def refuse_local(option: str, paths: Iterable[str]) -> None:
    """Raises `InputError` for a file of this machine, which a training on other machines does not see."""
    for path in paths:
        if not (is_remote(path) or is_hub(path) or path.startswith("package:")):
            raise InputError(
                f"{option}={path} is on this machine, but the training runs on others; give the address of a bucket, such as "
                f"{option}=gs://BUCKET/{pathlib.Path(path).name}."
            )


def check_inputs(stage: Config, *, local_only: bool = False) -> None:
    """Raises `InputError` if a text, a column of it or a model does not exist; opens the first file of each source of the text, and
    leaves out models on the hub.

    Args:
      local_only: leave out texts on the hub, and everything in a bucket.
    """

    def is_checked(spec: str) -> bool:
        return not (local_only and (is_remote(spec) or is_hub(spec)))

    specs = split_specs(stage.data.text)
    for portion in text_portions(stage.data):
        if is_checked(specs[portion.source]):
            next(tables(specs[portion.source], portion.columns, cache=stage.data.cache_folder), None)
    for option, others in {"data.exclude": stage.data.exclude, "evals.agreement": stage.evals.agreement}.items():
        files_of(option, [spec for spec in split_specs(others) if is_checked(spec) and not is_hub(spec)])
    for name in models_off_hub([*stage.teacher.models, stage.student.model]):
        if is_checked(name):
            locate(name)


def models_off_hub(names: Sequence[str]) -> list[str]:
    """The models in folders, packages and buckets; leaves out those on the hub, and names of the teacher or an earlier stage."""
    return [
        name
        for name in names
        if name not in ("", "teacher") and not workdirs.STAGE_NAME.fullmatch(name) and not is_on_hub(name)
    ]


def run_training(
    config: Config, files: Workdir, *, dry_run: bool, command: str, callbacks: Sequence[Callback] = ()
) -> None:
    """Runs one training from its config to an exported student: build, train, export, report.

    Every process of a multi-host run calls it, and only the first prints and writes.
    """
    is_first, workdir = processes.is_first(), files.folder
    if config.run.steps == 0:
        export_untrained(config, files, dry_run=dry_run, command=command)
        return
    with processes.agreed() as facts:
        plugins.use(config.run.plugins)
        before = workdirs.claim_workdir(workdir, config, write=False)
        refuse_foreign(workdir / workdirs.EXPORT, advice="Move it, or give another --workdir.")
        paper = cited(config.run.paper, "run.paper") if config.run.paper else None
        run = build(config, workdir, progress=is_first)
        contents = digests(run)
        # The student is left out: a resumed run reads it from the workdir.
        inputs = {name: digest for name, digest in contents.items() if name != "content of student.model"}
        if not any(map(is_hub, split_specs(config.data.text))):
            inputs[workdirs.TEXT_FILES] = run.store.source_digest
        inputs[workdirs.LENGTH] = str(run.store.max_length)
        inputs[workdirs.DEV_SCORE] = run.dev.best or "none"
        workdirs.refuse_other_inputs(workdir, inputs)
        facts.update(contents)
    if dry_run:
        overview(run)
        say("dry run: stopped before step 1")
        return
    # Only now is anything written: a dry run writes nothing, and neither does a run whose input is wrong.
    with files.held():
        # If a launcher repeats the command after a kill, the run does not go back again.
        has_gone_back = before is not None and before.run.restore_step == config.run.restore_step
        if config.run.restore_step != -1 and not has_gone_back:
            Checkpoints(files).go_back(config.run.restore_step, run.program.like, run.program.shardings)
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
            outcome = train(run, files, progress=is_first, callbacks=callbacks)
            finish(run, outcome, teacher_scores, paper=paper, command=command)
            processes.wait("finished")


def export_untrained(config: Config, files: Workdir, *, dry_run: bool, command: str) -> None:
    """Exports the untrained student (`run.steps=0`), such as some layers of a model or a table of its tokens. Reads text only if
    making the student does."""
    workdir = files.folder
    plugins.use(config.run.plugins)
    workdirs.claim_workdir(workdir, config, write=False)
    refuse_foreign(workdir / workdirs.EXPORT, advice="Move it, or give another --workdir.")
    if files.checkpoints.is_dir():
        raise InputError(
            f"run.steps=0 exports an untrained student, but {workdir} has checkpoints; give another --workdir."
        )
    config.student.check(config.teacher)
    teachers = config.teacher.load(context_of(config, workdir))
    student = config.student.evaluated(make_student(config, teachers, workdir))
    say(
        f"student: {student.source}: {student.parameter_count:,} parameters, width {student.definition.embedding_width}"
    )
    if not dry_run and processes.is_first():
        with files.held():
            workdirs.claim_workdir(workdir, config, write=True)
            with logged(workdir, command):
                facts = student_facts(config, workdir, student, teachers, command)
                exported = config.student.exported(student)
                folder = export(exported, workdir / workdirs.EXPORT, facts=facts, to=config.run.export_to)
                results = {
                    "command": command,
                    "config": flat(config),
                    "best_metric": "",
                    "scores": {"student before": {}, "student after": {}},
                    "no_gain": "",
                    "paper": None,
                }
                write_atomic(workdir / workdirs.RESULTS, json.dumps(results, indent=2) + "\n")
                say(f"export (reloaded and compared): {folder}")
    processes.wait("the untrained student is exported")


def digests(run: Run) -> dict[str, str]:
    """Short digests, by name, of inputs that must be the same in all processes of a run, and when it is resumed."""
    config, evals = run.config, run.config.evals
    files: dict[str, Sequence[str]] = {
        "evals.pairs": split_specs(evals.pairs),
        "evals.agreement": split_specs(evals.agreement),
        "evals.entities": split_specs(evals.entities),
        "evals.retrieval": [str(path) for set_files in retrieval_files(evals) for path in set_files.paths],
        **config.teacher.files,
    }
    contents = {name: content_digest(specs) for name, specs in files.items() if specs}
    contents |= {f"{name}.model": model.digest() for name, model in run.named_teachers.items()}
    contents |= {f"labeller {number}": digest for number, digest in enumerate(run.labeller_digests, start=1)}
    if teacher_digest := config.teacher.digest():
        contents["teacher"] = teacher_digest
    contents |= {"student.model": run.student.digest(), "data.text": run.store.content_digest}
    kind_files = [kind.rpartition(":")[0] for kind in config.kinds.values() if plugins.is_outside(kind)]
    contents |= plugins.source_digests([*kind_files, *split_specs(config.run.plugins)])
    return {f"content of {name}": digest[:12] for name, digest in contents.items()}


def summarise(stages: Sequence[Config], workdir: pathlib.Path) -> None:
    """Prints a table of all stages, and copies the best export of each group of `rivals` to `best-GROUP` in the workdir; of stages
    without a dev score, the last."""
    rows = []
    for number, stage in enumerate(stages, start=1):
        results = workdirs.read_note(workdirs.stage_folder(workdir, number) / workdirs.RESULTS)
        metric, scores = results["best_metric"], results["scores"]
        before, after = scores["student before"], scores["student after"]
        row = dict[str, Any](
            number=number, form=getattr(stage.objective, "form", ""), student=stage.student.model, metric=metric,
            before=before.get(metric), after=after.get(metric), no_gain=results["no_gain"], sts=after.get("average"),
            paper=(results["paper"] or {}).get("scores", {}).get("average"),
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
    """Groups the stages that train the same form of the same language model; the best of each group is copied.

    A group's name is the form, `bi` or `cross`; with several language models (mutual distillation) `bi-1`, `bi-2` and so on,
    in the order of their first stages. Stages whose objective has no form are in no group.
    """

    def origin(number: int) -> str:
        """The checkpoint that a stage's student ultimately starts from, traced back through earlier stages."""
        model = stages[number - 1].student.model
        before = workdirs.stage_named(model, number)
        return origin(before) if 0 < before < number else model

    numbers: dict[str, dict[str, list[int]]] = {}  # by form and origin
    for number, stage in enumerate(stages, start=1):
        if form := getattr(stage.objective, "form", ""):
            numbers.setdefault(form, {}).setdefault(origin(number), []).append(number)
    groups: dict[str, list[int]] = {}
    for form, by_origin in sorted(numbers.items()):
        for index, stage_numbers in enumerate(by_origin.values(), start=1):
            groups[form if len(by_origin) == 1 else f"{form}-{index}"] = stage_numbers
    return groups


def is_finished(folder: pathlib.Path, config: Config) -> bool:
    """Whether the stage is finished and was run with these options; options that do not affect its results may differ."""
    before = workdirs.read_config(folder)
    if before is None or not (folder / workdirs.EXPORT).is_dir():
        return False

    def effective(options: Mapping[str, Any]) -> dict[str, Any]:
        return {option: value for option, value in options.items() if option not in WITHOUT_EFFECT}

    results = workdirs.read_note(folder / workdirs.RESULTS)
    begun, ended = effective(flat(before)), effective(results.get("config", {}))
    return begun == ended == effective(flat(config))
