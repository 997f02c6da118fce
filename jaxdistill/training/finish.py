"""Ends a training: the export, the final table, the plot, the report and the results."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import flat, nested
from jaxdistill.data.sources import split_specs
from jaxdistill.evals import agreement, documents, pairs, retrieval
from jaxdistill.evals.pairs import GradedPairs, ScoredPairs, scored_pairs
from jaxdistill.evals.similarity import cosines
from jaxdistill.files import write_atomic
from jaxdistill.paths import public_name, without_folders
from jaxdistill.reporting.model_card import Facts, averaged_steps, origin_of, public_command, write_facts
from jaxdistill.reporting.page import read_curves, training_plot, write_page
from jaxdistill.reporting.tables import Entry, as_text, hundredfold, score_table
from jaxdistill.training.console import say
from jaxdistill.training.export import export, weights_bytes
from jaxdistill.training.final_scores import FinalScores
from jaxdistill.training.outcome import Outcome
from jaxdistill.training.paper import Repeated
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.training.setup.objective import objective_title
from jaxdistill.versions import versions
from jaxdistill.workdir.folder import EXPORT, METRICS, RESULTS, stage_export

FEW_STEPS = 50
"""If a training of fewer steps gains nothing, it may just have been too short."""


def finish(
    run: Run,
    outcome: Outcome,
    models: Mapping[str, SentenceModel],
    teacher_scores: dict[str, float],
    final: Mapping[str, FinalScores],
    paper: Repeated | None,
    command: str,
) -> None:
    """Writes what a training ends with: the export, then the plot, the final table, the report and the results."""
    dev = {"teacher": teacher_scores, "student before": outcome.before, "student after": outcome.scores}
    scores = {name: dev[name] | one.on_sts.get("scores", {}) for name, one in final.items()}
    facts = _facts(run, outcome, scores, command)
    write_facts(run.workdir, facts)
    say("writing the export; reloading and comparing it")
    student = run.config.student.exported(outcome.student)
    folder = export(student, run.workdir / EXPORT, facts=facts, to=run.config.run.export_to)
    title = f"{objective_title(run.config)}: student {facts.student.removeprefix('package:')} ({facts.name})"
    plot = training_plot(run.workdir / METRICS, run.workdir / "training.png", title=title)
    costs = {name: _costs(run, model, folder, final[name].rate) for name, model in models.items()}
    drawn = _graded_pairs(final, seed=run.config.run.seed)
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
    page = write_page(
        run.workdir / "report.html",
        entries,
        title=title,
        warning=lost,
        teacher="teacher" if "teacher" in models else "",
        curves=read_curves(run.workdir / METRICS),
        sections={"How it was made": _made(facts) | ({"Paper": paper.line(facts.scores)} if paper else {})},
    )
    results = {
        "command": command,
        **_results(run, outcome, lost),
        "scores": scores,
        "measured": {name: _measured(run, scores[name]) | costs[name] for name in models},
        "paper": dataclasses.asdict(paper) if paper else None,
        "versions": versions(),
    }
    write_atomic(run.workdir / RESULTS, json.dumps(results, indent=2) + "\n")  # last: its presence marks a finished run
    say(f"results: {run.workdir / RESULTS}")
    say(f"report: {page}")


def _facts(run: Run, outcome: Outcome, scores: dict[str, dict[str, float]], command: str) -> Facts:
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


def _results(run: Run, outcome: Outcome, lost: str) -> dict[str, Any]:
    """What `results.json` says of the training itself."""
    return {
        "config": flat(run.config),
        "max_length": run.text.store.max_length,
        "seconds_in_this_process": outcome.seconds,
        "seconds_of_activities": outcome.spent,
        "best_metric": run.dev.best,
        "best_step": outcome.best_step,
        "averaged_steps": outcome.averaged,
        "last_step": outcome.last_step,
        "no_gain": lost,
    }


def _made(facts: Facts) -> dict[str, str]:
    """What the report says of the training."""
    chosen = f"step {facts.steps:,}" + (f", chosen by {facts.chosen_by}" if facts.chosen_by else "")
    return {
        "Command": facts.command,
        "Text": facts.data,
        "Objective": facts.objective,
        "Student": facts.student,
        "Checkpoint": f"mean of steps {facts.averaged}" if facts.averaged else chosen,
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


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


def _costs(run: Run, model: SentenceModel, exported: pathlib.Path, rate: float) -> dict[str, float]:
    is_teacher = model is run.models.teacher
    size = 4 * model.parameter_count if is_teacher else weights_bytes(exported)
    return {"parameters": model.parameter_count, "size_bytes": size, "sentences_per_s": rate}


def _measured(run: Run, scores: Mapping[str, float]) -> dict[str, float | None]:
    """The main scores under names that do not depend on the data; None: not measured."""
    is_auc = run.dev.best in (pairs.AUC_METRIC, *pairs.DEV_METRICS)
    return {
        "agreement": scores.get(agreement.METRIC),
        "teacher_recall_1": scores.get(agreement.RECALLS[1]),
        "teacher_recall_10": scores.get(agreement.RECALLS[10]),
        "pairs": scores.get(pairs.METRIC),
        "auc": scores.get(run.dev.best) if is_auc else None,
        "retrieval": scores.get(documents.METRICS[run.config.evals.retrieval_split or "dev"]),
        "recall": scores.get(retrieval.METRIC),
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
