"""Ends a training: takes its best student, measures all models, and writes export, table, plot and report."""

import dataclasses
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.config import flat
from jaxdistill.config.options import Config
from jaxdistill.core import SECOND
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import write_atomic
from jaxdistill.core.paths import cache_folder, public_name
from jaxdistill.core.runtime import versions
from jaxdistill.data.text import TEXT, split_specs
from jaxdistill.evals import sts
from jaxdistill.evals.model_card import Facts, averaged_steps, origin_of, public_command, write_facts
from jaxdistill.evals.papers import cited
from jaxdistill.evals.report import Entry, as_text, hundredfold, score_table, training_plot, write_page
from jaxdistill.evals.suite import cached_scores
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.training.build import Run, objective_title
from jaxdistill.training.dev import LAST, sts_data_folder
from jaxdistill.training.export import export, weights_bytes
from jaxdistill.training.metrics import say
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.training.workdir.checkpoint import Checkpoints, mean_params
from jaxdistill.training.workdir.folder import EXPORT, METRICS, RESULTS, Workdir, stage_export

SPEED_SENTENCES = 256
"""Sentences of the training text on which encoding speed is measured."""


def trained_student(run: Run, files: Workdir, record: dict[str, Any]) -> SentenceModel:
    """The student to export: that of `record`'s `best_step`, or the mean of the steps `evals.average`, whose scores replace `record`'s."""
    averaged = sorted({*run.config.evals.average})
    checkpoints = Checkpoints(files, read_only=True)

    def params_at(step: int) -> dict[str, np.ndarray]:
        restored = checkpoints.restore(run.program.like, run.program.shardings, step=step)
        assert restored is not None  # `restore` raises for a step that is not kept
        return {path: meshes.on_host(array) for path, array in restored[0].evaluated_params.items()}

    params = mean_params(map(params_at, averaged or [record["best_step"]]))
    checkpoints.close()
    student = run.config.student.evaluated(run.student.with_params(params))
    if averaged:
        embedder = sharded_embedder(student, run.config.run, mesh=run.mesh, compute_dtype=run.compute_dtype)
        record["scores"] = run.dev.scores(embedder.as_embed())
    return student


def sentences_per_s(run: Run, name: str, model: SentenceModel) -> float:
    """Sentences, or for a cross-encoder pairs, that a model reads per second on all devices of the run, without the time to compile.
    All models get the same sentences, truncated to the smallest maximum length. All processes call this together."""
    say(f"{name}: measuring the speed")
    length = min(encoder.max_length for encoder in (*run.teachers.values(), run.student))
    embedder = sharded_embedder(model.with_length(length), run.config.run, mesh=run.mesh)
    sentences = run.store.texts(TEXT)[:SPEED_SENTENCES]
    if model.definition.reads_pairs:
        encode = partial(embedder.score, second=run.store.texts(SECOND)[:SPEED_SENTENCES])
    else:
        encode = partial(embedder.encode, role=run.store.roles(TEXT, range(len(sentences))))
    bar = f"{name}, speed" if processes.is_first() else False
    encode(sentences, show_progress_bar=bar)  # compiles
    begun = time.monotonic()
    encode(sentences, show_progress_bar=bar)
    return len(sentences) / (time.monotonic() - begun)


def sts_results(run: Run, name: str, model: SentenceModel) -> dict[str, Any]:
    """Cached results of `sts.sts_values` for the seven tests; empty if the run does not score STS. All processes call it together."""
    if not run.config.evals.sts or (folder := sts_data_folder()) is None:
        return {}

    def score() -> dict[str, Any]:
        say(f"{name}: {len(sts.TESTS)} STS tests")
        embedder = sharded_embedder(model, run.config.run, mesh=run.mesh)
        embed = embedder.as_embed(progress=f"{name}, STS" if processes.is_first() else False)
        return sts.sts_values(embed, {test: sts.read_set(test, folder) for test in sts.TESTS}, subsets=False)._asdict()

    cache = cache_folder(run.config.data.cache_folder) / "scores"
    return cached_scores(cache, [model.digest(), sts.digest(folder)], score)


def finish(run: Run, files: Workdir, record: dict[str, Any], teacher_scores: dict[str, float], *, command: str) -> None:
    """Measures all models, and writes export, plot, table, report and results. `record` is the result of `train`. All processes call
    this and measure together; the first one writes."""
    workdir, config = run.workdir, run.config
    metric = run.dev.best
    student = trained_student(run, files, record)
    averaged = sorted({*config.evals.average})
    models = {"teacher": run.teacher} if run.teacher else {}
    models |= {"student before": config.student.evaluated(run.student), "student after": student}
    speeds = {name: sentences_per_s(run, name, model) for name, model in models.items()}
    sts_by_model = {name: sts_results(run, name, model) for name, model in models.items()}
    if not processes.is_first():
        return
    before, after = record["before"], record["scores"]
    best_step = record["best_step"]
    dev_scores = {"teacher": teacher_scores, "student before": before, "student after": after}
    scores = {name: dev_scores[name] | sts_by_model[name].get("scores", {}) for name in models}
    # What is exported, in words, and a warning if it is no better than the student before training.
    if averaged:
        checkpoint = f"the mean of the checkpoints of steps {', '.join(map(str, averaged))}"
    elif config.evals.best == LAST:
        checkpoint = f"the last checkpoint, step {best_step:,}"
    else:
        checkpoint = f"the best checkpoint, step {best_step:,} by {metric}" if best_step else "the untrained student"
    warning = ""
    if metric and not after[metric] > before[metric]:
        change = f"was {hundredfold(before[metric])} before training and is {hundredfold(after[metric])} after it"
        warning = f"NO GAIN: {metric} {change}; the export is {checkpoint}"
    facts = facts_of(run, averaged or [best_step], scores, command)
    write_facts(workdir, facts)
    say("writing the export; reloading and comparing it")
    folder = export(config.student.exported(student), workdir / EXPORT, facts=facts, to=config.run.export_to)
    title = f"{objective_title(config)}: student {facts.student.removeprefix('package:')} ({facts.name})"
    plot = training_plot(workdir / METRICS, workdir / "training.png", title=title)
    entries = []  # the rows of the report
    for name, model in models.items():
        size = 4 * model.parameter_count if name == "teacher" else weights_bytes(folder)  # a teacher's in float32
        costs = {"parameters": model.parameter_count, "size_bytes": size, "sentences_per_s": speeds[name]}
        pairs = sts_by_model[name].get("scored_pairs")
        entries.append(Entry(name=name, scores=scores[name], costs=costs, scored_pairs=pairs))
    origin = {
        "Command": facts.command,
        "Text": facts.data,
        "Objective": facts.objective,
        "Student": facts.student,
        "Checkpoint": checkpoint,
        "Versions": ", ".join(f"{package} {version}" for package, version in versions().items()),
    }
    paper = cited(config.run.paper, "run.paper") if config.run.paper else None
    if paper:  # show only scores that the run has measured; if there are none, those on STS
        shown = ({*paper.scores} & {*facts.scores}) or {*sts.TESTS, "average"}
        paper = paper.only([name for name in paper.scores if name in shown])
        entries.append(Entry(name=paper.label, scores=paper.scores, is_cited=True))
        origin["Paper"] = f"{paper.label}: {paper.tables}"
    say(title)
    say(as_text(score_table(entries), width=200))
    if paper:
        say(origin["Paper"])
    if warning:
        rate = f"{config.optimizer.learning_rate:g}"
        say(f"{warning}; train for more steps (--config.run.steps), or try another optimizer.learning_rate than {rate}")
    say(f"trained for {record['seconds'] / 60:.1f} minutes in this process; the export is {checkpoint}")
    say(f"export (reloaded and compared): {folder}")
    say(f"plot: {plot}")
    page = workdir / "report.html"
    teacher = "teacher" if "teacher" in models else ""
    sections = {"How it was made": origin}
    write_page(page, entries, title=title, warning=warning, teacher=teacher, plot=plot, sections=sections)
    results = {
        "command": command,
        "config": flat(config),
        "max_length": run.store.max_length,
        "seconds_in_this_process": record["seconds"],
        "seconds_of_activities": record["spent"],
        "best_metric": metric,
        "best_step": best_step,
        "averaged_steps": averaged,
        "last_step": record["evaluated"],
        "no_gain": warning,
        "scores": scores,
        "costs": {entry.name: entry.costs for entry in entries if not entry.is_cited},
        "paper": dataclasses.asdict(paper) if paper else None,
        "versions": versions(),
    }
    write_atomic(workdir / RESULTS, json.dumps(results, indent=2) + "\n")  # last: its presence marks a finished run
    say(f"results: {workdir / RESULTS}")
    say(f"report: {page}")


def student_facts(
    config: Config, workdir: Path, student: SentenceModel, teachers: Sequence[SentenceModel], command: str
) -> Facts:
    """What the model card says of an untrained student: its teachers, its origin, and the command."""
    names = [model.source for model in teachers] or config.teacher.target_sources
    # A student made from the teacher adds neither base models nor languages.
    origin = origin_of(*(teachers if config.student.model == "teacher" else [*teachers, student]))
    source = student.source  # describes how the student was made from these models
    specs = [*names, stage_export(config.student.model, workdir)]
    for spec in sorted(filter(None, specs), key=len, reverse=True):  # longest first: a spec may be part of another
        source = source.replace(spec, public_name(spec))  # without the folders of local paths
    return Facts(
        name=workdir.resolve().name,
        teacher=", ".join(map(public_name, names)),
        student=source,
        base_models=origin["base_models"],
        languages=origin["languages"],
        seed=config.run.seed,
        command=public_command(command),
        prompt=student.prompt,
    )


def facts_of(run: Run, steps: Sequence[int], scores: dict[str, dict[str, float]], command: str) -> Facts:
    """What the model card says of a trained student; `steps` are those of the exported checkpoints, `scores` are by model."""
    config, student = run.config, run.student
    # The options of the objective (`objective.alpha`), or of several by name (`objectives.NAME.alpha`).
    options = {name.partition(".")[2]: value for name, value in flat(config).items() if name.startswith("objective")}
    options.pop("kind", None)
    if "queue_size" in options:
        options["queue_size"] = run.objective.queue_size  # a small text has a smaller one
    models = {"student": student, **run.teachers}
    role_prompts = {
        role: {name: model.role_prompts[role] for name, model in models.items()} for role in run.store.prompts if role
    }
    return dataclasses.replace(
        student_facts(config, run.workdir, student, list(run.teachers.values()), command),
        objective=f"{objective_title(config)} ({', '.join(f'{key} {value}' for key, value in options.items())})",
        data=", ".join(map(public_name, split_specs(config.data.text))),
        data_digest=run.store.content_digest,
        sentences=len(run.batches.trained),
        batch_size=run.batches.batch_size,
        steps=max(steps),
        chosen_by="" if config.evals.average or config.evals.best == LAST else run.dev.best,
        averaged=averaged_steps(steps),
        scores=scores["student after"],
        teacher_scores=scores.get("teacher", {}),
        roles=config.data.roles if role_prompts else "",
        role_prompts=role_prompts,
        dims=", ".join(map(str, config.student.dims)),
    )
