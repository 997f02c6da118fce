"""Ends a training: its best student, the scores and speed of all models, the export, the table, the plot, the report."""

import dataclasses
import json
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import mesh as meshes
from jaxdistill.cluster import processes
from jaxdistill.config import WITHOUT_EFFECT, Config, flat, nested, parse_stages
from jaxdistill.config.files import load_config
from jaxdistill.core import SECOND, InputError
from jaxdistill.data.sources import split_specs
from jaxdistill.evals import agreement, auc, documents, entity, pairs, sts
from jaxdistill.evals.caches import cached_scores
from jaxdistill.evals.pairs import GradedPairs, ScoredPairs, scored_pairs
from jaxdistill.evals.similarity import cosines
from jaxdistill.files import write_atomic
from jaxdistill.paths import cache_folder, public_name, without_folders
from jaxdistill.reporting import papers
from jaxdistill.reporting.model_card import Facts, averaged_steps, origin_of, public_command, write_facts
from jaxdistill.reporting.page import write_page
from jaxdistill.reporting.papers import Cited
from jaxdistill.reporting.plots import read_curves, training_plot
from jaxdistill.reporting.tables import Entry, as_text, hundredfold, score_table
from jaxdistill.training.dev import sts_data_folder
from jaxdistill.training.export import export, weights_bytes
from jaxdistill.training.metrics import say
from jaxdistill.training.objective import objective_title
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.versions import versions
from jaxdistill.workdir.checkpoint import Checkpoints, mean_params
from jaxdistill.workdir.folder import EXPORT, METRICS, RESULTS, Workdir, stage_export

FEW_STEPS = 50
"""If a training of fewer steps gains nothing, it may just have been too short."""
READ_SENTENCES = 256
"""Sentences of the training text on which encoding speed is measured. Without STS the report reuses their vectors: encoding
others would be the most expensive part of a short run's end."""
SHOWN = 6
"""Most options differing from a paper's that a line names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a training."""

    student: SentenceModel
    """The best checkpoint's student, or the mean over `evals.average`, with the parameters used for evaluation."""
    best_step: int
    """Step of the best checkpoint."""
    averaged: Sequence[int]
    """Steps of the checkpoints that were averaged, ascending; empty if the student is the best checkpoint's."""
    last_step: int
    scores: dict[str, float]
    """The student's value of each metric, in [-1, 1]."""
    before: dict[str, float]
    """Scores of the untrained student."""
    seconds: float
    """Duration of the training loop in this process, with its evaluations."""
    spent: Mapping[str, float]
    """Seconds of each activity of the loop, see `Goodput`."""


def outcome_of(
    run: Run, workdir: Workdir, record: Mapping[str, Any], *, seconds: float, spent: Mapping[str, float]
) -> Outcome:
    """The student that a finished training ends with, and its scores.

    Args:
      record: the record of evaluations.
      seconds, spent: fields of `Outcome`.
    """
    averaged, best_step = sorted(set(run.config.evals.average)), record["best_step"]
    checkpoints = Checkpoints(workdir, read_only=True)

    def student_at(step: int) -> dict[str, np.ndarray]:
        restored = checkpoints.restore(run.layout.like, run.layout.shardings, step=step)
        assert restored is not None  # a missing step is an error
        return {path: meshes.on_host(array) for path, array in restored.state.params["student"].items()}

    params = mean_params(map(student_at, averaged or [best_step]))
    student, scores = run.config.student.evaluated(run.models.student.with_params(params)), record["scores"]
    last_step = checkpoints.steps[-1]
    checkpoints.close()
    if averaged:
        program = run.program
        embedder = sharded_embedder(student, run.config.run, mesh=program.mesh, compute_dtype=program.compute_dtype)
        scores = run.dev.scores(embedder.as_embed())
    return Outcome(
        student=student,
        best_step=best_step,
        averaged=averaged,
        last_step=last_step,
        scores=scores,
        before=record["before"],
        seconds=seconds,
        spent=spent,
    )


class FinalScores(NamedTuple):
    """Measurements of a model at the end of a run, made by all processes together."""

    rate: float
    """Sentences (for a cross-encoder: pairs) per second on all devices of the run, without compilation."""
    vectors: Mapping[str, Float[np.ndarray, " e"]]
    """Maps sentences of the training text to their vectors; empty for a cross-encoder."""
    on_sts: dict[str, Any]
    """Results of `sts.sts_values` for the seven tests; empty if the run does not score STS."""


def final_scores_of(run: Run, name: str, model: SentenceModel) -> FinalScores:
    """Measures a model; all processes call this together."""
    say(f"{name}: measuring the speed")
    bar = processes.is_first() and f"{name}, speed"
    # Truncated to what both teacher and student read.
    length = min(one.max_length for one in (*run.models.teachers, run.models.student))
    embedder = sharded_embedder(model.with_length(length), run.config.run, mesh=run.program.mesh)
    sentences = run.text.store.texts("text")[:READ_SENTENCES]
    if model.definition.reads_pairs:
        others = run.text.store.texts(SECOND)[:READ_SENTENCES]
        encode = partial(embedder.score, others, show_progress_bar=bar)
    else:
        roles = run.text.store.roles("text", range(len(sentences)))
        encode = partial(embedder.encode, role=roles, show_progress_bar=bar)
    encode(sentences)  # compiles
    begun = time.monotonic()
    values = encode(sentences)
    rate = len(sentences) / (time.monotonic() - begun)
    vectors = {} if model.definition.reads_pairs else dict(zip(sentences, values, strict=True))
    folder = sts_folder(run)
    if folder is None:
        return FinalScores(rate, vectors, {})

    def score() -> dict[str, Any]:
        say(f"{name}: {len(sts.TESTS)} STS tests")
        embedder = sharded_embedder(model, run.config.run, mesh=run.program.mesh)
        embed = embedder.as_embed(progress=processes.is_first() and f"{name}, STS")
        return sts.sts_values(embed, {test: sts.read_set(test, folder) for test in sts.TESTS}, subsets=False)

    cache = cache_folder(run.config.data.cache_folder) / "scores"
    return FinalScores(rate, vectors, cached_scores(cache, [model.digest(), sts.digest(folder)], score))


def sts_folder(run: Run) -> Path | None:
    """The data folder, if there is one and the run scores STS."""
    return sts_data_folder() if run.config.evals.sts else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repeated:
    """The row of `run.paper`, and how the run differs from it."""

    row: Cited
    preset: str
    """The closest preset that repeats the row; empty if none does."""
    changed: tuple[str, ...]
    """Options in which the run differs from that preset."""

    def beside(self, measured: Collection[str]) -> Cited:
        """The paper's row, reduced to scores that the run has measured; if it has measured none, to STS scores."""
        return self.row.only(measured if {*measured} & {*self.row.scores} else (*sts.TESTS, "average"))

    def line(self, measured: Collection[str]) -> str:
        """The tables that the row's measured scores come from, and how the run differs."""
        differences = "no preset repeats this row"
        if self.preset:
            others = [f"{len(self.changed) - SHOWN} others"] * (len(self.changed) > SHOWN)
            changed = ", ".join([*self.changed[:SHOWN], *others])
            differences = f"this run has the options of configs/{self.preset}" + f" except {changed}" * bool(changed)
        return f"{self.row.label} ({self.beside(measured).tables}); {differences}"


def repeated(config: Config) -> Repeated | None:
    """The row that a stage's `run.paper` names; None if it is empty. Raises `InputError` if there is no such row."""

    def compared(config: Config) -> dict[str, Any]:
        return {name: value for name, value in flat(config).items() if name not in WITHOUT_EFFECT}

    if not config.run.paper:
        return None
    row, options = papers.cited(config.run.paper, "run.paper"), compared(config)
    candidates = []
    for preset in papers.presets_of(row.reference):
        try:
            stages = parse_stages(load_config(preset))
        except InputError:  # not every name that a pattern gives is a preset
            continue
        for stage in map(compared, (stage for stage in stages if stage.run.paper == row.reference)):
            changed = tuple(name for name in options | stage if options.get(name) != stage.get(name))
            candidates.append((preset, changed))
    preset, changed = min(candidates, key=lambda one: len(one[1]), default=("", ()))
    return Repeated(row=row, preset=preset, changed=changed)


def finish(
    run: Run, outcome: Outcome, teacher_scores: dict[str, float], *, paper: Repeated | None, command: str
) -> None:
    """Measures all models, and writes what a training ends with: export, plot, table, report and results.

    Every process calls it, because they measure together; the first writes.
    """
    workdir, config = run.workdir, run.config
    models = {"teacher": run.models.teacher} if run.models.teacher else {}
    models |= {"student before": config.student.evaluated(run.models.student), "student after": outcome.student}
    final = {name: final_scores_of(run, name, model) for name, model in models.items()}
    if not processes.is_first():
        return
    dev = {"teacher": teacher_scores, "student before": outcome.before, "student after": outcome.scores}
    scores = {name: dev[name] | one.on_sts.get("scores", {}) for name, one in final.items()}
    facts = facts_of(run, outcome, scores, command)
    write_facts(workdir, facts)
    say("writing the export; reloading and comparing it")
    folder = export(config.student.exported(outcome.student), workdir / EXPORT, facts=facts, to=config.run.export_to)
    title = f"{objective_title(config)}: student {facts.student.removeprefix('package:')} ({facts.name})"
    plot = training_plot(workdir / METRICS, workdir / "training.png", title=title)
    costs = {
        name: {
            "parameters": model.parameter_count,
            "size_bytes": 4 * model.parameter_count if name == "teacher" else weights_bytes(folder),
            "sentences_per_s": final[name].rate,
        }
        for name, model in models.items()
    }
    drawn = _graded_pairs(final, seed=config.run.seed)
    entries = [
        Entry(name=name, scores=scores[name], costs=costs[name], scored_pairs=drawn.get(name)) for name in models
    ]
    if paper:
        entries.append(Entry(name=paper.row.label, scores=paper.beside(facts.scores).scores, is_cited=True))
    lost = _lost(run, outcome)
    say(title)
    say(as_text(score_table(entries), width=200))
    if paper:
        say(paper.line(facts.scores))
    say(_ending(run, outcome, lost))
    say(f"export (reloaded and compared): {folder}")
    say(f"plot: {plot}")
    chosen = f"step {facts.steps:,}" + (f", chosen by {facts.chosen_by}" if facts.chosen_by else "")
    made = {
        "Command": facts.command,
        "Text": facts.data,
        "Objective": facts.objective,
        "Student": facts.student,
        "Checkpoint": f"mean of steps {facts.averaged}" if facts.averaged else chosen,
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    page = write_page(
        workdir / "report.html",
        entries,
        title=title,
        warning=lost,
        teacher="teacher" if "teacher" in models else "",
        curves=read_curves(workdir / METRICS),
        sections={"How it was made": made | ({"Paper": paper.line(facts.scores)} if paper else {})},
    )
    results = {
        "command": command,
        "config": flat(config),
        "max_length": run.text.store.max_length,
        "seconds_in_this_process": outcome.seconds,
        "seconds_of_activities": outcome.spent,
        "best_metric": run.dev.best,
        "best_step": outcome.best_step,
        "averaged_steps": outcome.averaged,
        "last_step": outcome.last_step,
        "no_gain": lost,
        "scores": scores,
        "measured": {name: _measured(run, scores[name]) | costs[name] for name in models},
        "paper": dataclasses.asdict(paper) if paper else None,
        "versions": versions(),
    }
    write_atomic(workdir / RESULTS, json.dumps(results, indent=2) + "\n")  # last: its presence marks a finished run
    say(f"results: {workdir / RESULTS}")
    say(f"report: {page}")


def facts_of(run: Run, outcome: Outcome, scores: dict[str, dict[str, float]], command: str) -> Facts:
    """What the model card says of the training."""
    objective = nested(run.config)["objective"]
    del objective["kind"]
    if "queue_size" in objective:
        objective["queue_size"] = run.objective.queue_size  # a small text has a smaller one
    teachers = [model.source for model in run.models.teachers] or run.config.teacher.shown
    origins = [*teachers, stage_export(run.config.student.model, run.workdir)]
    made_from = (
        run.models.teachers if run.config.student.model == "teacher" else [*run.models.teachers, run.models.student]
    )
    readers = {"student": run.models.student} | teachers_by_name(run.models.teachers)
    role_prompts = {
        role: {reader: model.role_prompts[role] for reader, model in readers.items()}
        for role in run.text.store.prompts
        if role
    }
    return Facts(
        name=run.workdir.resolve().name,
        teacher=", ".join(map(public_name, teachers)),
        student=without_folders(run.models.student.source, origins),
        **origin_of(*made_from),
        objective=f"{objective_title(run.config)} ({', '.join(f'{key} {value}' for key, value in objective.items())})",
        data=", ".join(map(public_name, split_specs(run.config.data.text))),
        data_digest=run.text.store.content_digest,
        sentences=run.text.batches.training_rows,
        batch_size=run.text.batches.batch_size,
        seed=run.config.run.seed,
        command=public_command(command),
        steps=max(outcome.averaged, default=outcome.best_step),
        chosen_by="" if outcome.averaged or run.exports_last else run.dev.best,
        averaged=averaged_steps(outcome.averaged),
        scores=scores["student after"],
        teacher_scores=scores.get("teacher", {}),
        prompt=run.models.student.prompt,
        roles=run.config.data.roles if role_prompts else "",
        role_prompts=role_prompts,
        dims=", ".join(map(str, run.config.student.dims)),
    )


def _graded_pairs(final: Mapping[str, FinalScores], *, seed: int) -> dict[str, ScoredPairs]:
    """Graded pairs with each model's similarities: STS-B's, or near and far pairs of the training text, whose gold score is the
    teacher's similarity."""
    if on_sts := {name: one.on_sts["scored_pairs"] for name, one in final.items() if one.on_sts}:
        return {name: ScoredPairs(**pairs) for name, pairs in on_sts.items()}
    teacher = final.get("teacher")
    if teacher is None or len(teacher.vectors) < 2:
        return {}
    task = agreement.held_out_task(teacher.vectors, seed=seed)
    graded = GradedPairs(
        name="the training text, whose gold score is the teacher's similarity",
        first=task.first,
        second=task.second,
        scores=np.round(task.teacher, 4),
    )

    def embed(vectors: Mapping[str, np.ndarray], texts: Sequence[str]) -> np.ndarray:
        return np.stack([vectors[text] for text in texts])

    return {
        name: scored_pairs(graded, cosines(partial(embed, one.vectors), graded.first, graded.second))
        for name, one in final.items()
        if one.vectors and name != "teacher"
    }


def _measured(run: Run, scores: Mapping[str, float]) -> dict[str, float | None]:
    """The main scores under names that do not depend on the data; None: not measured."""
    is_auc = run.dev.best in (pairs.AUC_METRIC, *auc.DEV_METRICS)
    return {
        "agreement": scores.get(agreement.METRIC),
        "teacher_recall_1": scores.get(agreement.RECALLS[1]),
        "teacher_recall_10": scores.get(agreement.RECALLS[10]),
        "pairs": scores.get(pairs.METRIC),
        "auc": scores.get(run.dev.best) if is_auc else None,
        "retrieval": scores.get(documents.METRICS[run.config.evals.retrieval_split or "dev"]),
        "recall": scores.get(entity.METRIC),
        "sts": scores.get("average"),
    }


def _lost(run: Run, outcome: Outcome) -> str:
    """A warning if the export is no better than the untrained student; otherwise empty."""
    metric = run.dev.best
    if not metric or outcome.scores[metric] > outcome.before[metric]:
        return ""
    before, after = hundredfold(outcome.before[metric]), hundredfold(outcome.scores[metric])
    best = "" if outcome.averaged or run.exports_last else "at its best "
    exported = "the best trained checkpoint" if outcome.best_step else "the untrained student"
    exported = "the last checkpoint" if run.exports_last else exported
    if outcome.averaged:
        exported = f"the mean of the checkpoints of steps {', '.join(map(str, outcome.averaged))}"
    return f"NO GAIN: {metric} was {before} before training and is {after} {best}after it; the export is {exported}"


def _ending(run: Run, outcome: Outcome, lost: str) -> str:
    """Says which checkpoints the student comes from, how long the training took, and what to try if nothing was gained."""
    chosen = f"best checkpoint: step {outcome.best_step:,} by {run.dev.best}"
    if run.exports_last:
        chosen = f"last checkpoint: step {outcome.best_step:,}"
    if outcome.averaged:
        chosen = f"the student is the mean of the checkpoints of steps {', '.join(map(str, outcome.averaged))}"
    elif lost:
        too_short = f"{outcome.last_step} steps are too few to tell: train for more (--config.run.steps)"
        other_rate = f"try another optimizer.learning_rate than {run.config.optimizer.learning_rate:g}"
        lost += f"; {too_short if outcome.last_step < FEW_STEPS else other_rate}"
    minutes = f"trained for {outcome.seconds / 60:.1f} minutes in this process"
    return "\n".join(filter(None, [lost, f"{chosen}; {minutes}"]))
