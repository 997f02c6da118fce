"""Ends a training: the export, the final table, the plot, the report and the results."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import flat
from jaxdistill.data import sources
from jaxdistill.evals import agreement, auc, documents, entity, pairs, sts
from jaxdistill.files import write_atomic
from jaxdistill.files.folders import MARK
from jaxdistill.paths import public_name, without_folders
from jaxdistill.reporting.model_card import (
    Checkpoint,
    Facts,
    Index,
    Prompts,
    Training,
    averaged_steps,
    origin_of,
    public_command,
    write_facts,
)
from jaxdistill.reporting.plots import training_plot
from jaxdistill.reporting.tables import Costs, Measured, as_text, comparison_table, no_gain
from jaxdistill.training.export import export, weights_bytes
from jaxdistill.training.results import report as run_report
from jaxdistill.training.results.final_scores import FinalScores
from jaxdistill.training.results.outcome import Outcome
from jaxdistill.training.results.paper import Repeated
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.training.said import say
from jaxdistill.training.setup.objective import objective_title
from jaxdistill.versions import versions
from jaxdistill.workdir.folder import EXPORT, METRICS, RESULTS, read_note, stage_export

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
    folder = _exported(run, outcome, facts)
    title = _title(run, facts)
    plot = training_plot(run.workdir / METRICS, run.workdir / "training.png", title=title)
    measured = {
        name: _measured(run, model, scores[name], folder, rate=final[name].reading.rate)
        for name, model in models.items()
    }
    lost = _lost(run, outcome)
    say(_scored(measured, scores, paper, title))
    say(_ending(run, outcome, lost))
    say(f"export (reloaded and compared): {folder}")
    say(f"plot: {plot}")
    page = run_report.write_report(
        run,
        title=title,
        facts=facts,
        warning=lost,
        scores=scores,
        measured=measured,
        readings={name: one.reading for name, one in final.items()},
        on_sts={name: pairs.ScoredPairs(**one.on_sts["scored_pairs"]) for name, one in final.items() if one.on_sts},
        geometry={name: one.geometry for name, one in final.items()},
        paper=paper,
        forms=read_note(folder / MARK).get("forms", []),
    )
    results = {
        "command": command,
        **_results(run, outcome, lost),
        "scores": scores,
        "measured": {name: value.as_plain() for name, value in measured.items()},
        "paper": dataclasses.asdict(paper) if paper else None,
        "versions": versions(),
    }
    write_atomic(run.workdir / RESULTS, json.dumps(results, indent=2) + "\n")  # last: its presence marks a finished run
    say(f"results: {run.workdir / RESULTS}")
    say(f"report: {page}")


def _facts(run: Run, outcome: Outcome, scores: dict[str, dict[str, float]], command: str) -> Facts:
    """What the model card says of the training."""
    objective = dict(run.config.objective)
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
    inherited = origin_of(*made_from)
    origin = dataclasses.replace(
        inherited,
        teacher=", ".join(map(public_name, teachers)),
        student=without_folders(run.models.student.source, origins),
    )
    training = Training(
        objective=f"{objective_title(run.config)} ({', '.join(f'{key} {value}' for key, value in objective.items())})",
        data=", ".join(map(public_name, sources.split_specs(run.config.data.text))),
        data_digest=run.text.store.content_digest,
        sentences=run.text.batches.training_rows,
        batch_size=run.text.batches.batch_size,
        seed=run.config.run.seed,
        command=public_command(command),
    )
    checkpoint = Checkpoint(
        steps=max(outcome.averaged, default=outcome.best_step),
        chosen_by="" if outcome.averaged or run.exports_last else run.dev.best,
        averaged=averaged_steps(outcome.averaged),
        scores=scores["student after"],
        teacher_scores=scores.get("teacher", {}),
    )
    return Facts(
        name=run.workdir.resolve().name,
        origin=origin,
        training=training,
        checkpoint=checkpoint,
        prompts=Prompts(
            prompt=run.models.student.prompt,
            roles=run.config.data.roles if role_prompts else "",
            role_prompts=role_prompts,
        ),
        index=Index(dims=", ".join(map(str, run.config.student.dims)), vectors=run.config.student.vectors),
    )


def _exported(run: Run, outcome: Outcome, facts: Facts) -> pathlib.Path:
    """Exports the student; returns the folder."""
    write_facts(run.workdir, facts)
    say("writing the export; reloading and comparing it")
    student = run.config.student.exported(outcome.student)
    return export(student, run.workdir / EXPORT, facts=facts, to=run.config.run.export_to)


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


def _scored(
    measured: Mapping[str, Measured], scores: Mapping[str, Mapping[str, float]], paper: Repeated | None, title: str
) -> str:
    """The final table, with each model's STS tests and the row of a paper that the run repeats."""
    cited = {"paper": Measured(sts=paper.row.scores.get("average"))} if paper else {}
    lines = [as_text(comparison_table({**measured, **cited}, title=title))]
    for name, named in scores.items():
        if "average" in named:
            lines.append(f"{name}: " + ", ".join(f"{key} {100 * named[key]:.2f}" for key in (*sts.TESTS, "average")))
    return "\n".join([*lines, *([paper.line(scores["student after"])] if paper else [])])


def _lost(run: Run, outcome: Outcome) -> str:
    if not run.dev.best:
        return ""
    return no_gain(
        run.dev.best,
        outcome.before[run.dev.best],
        outcome.scores[run.dev.best],
        step=outcome.best_step,
        averaged=outcome.averaged,
        last=run.exports_last,
    )


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


def _measured(
    run: Run, model: SentenceModel, scores: dict[str, float], exported: pathlib.Path, rate: float
) -> Measured:
    same_size = model is not run.models.teacher
    return Measured(
        agreement=scores.get(agreement.METRIC),
        teacher_recall_1=scores.get(agreement.RECALLS[1]),
        teacher_recall_10=scores.get(agreement.RECALLS[10]),
        pairs=scores.get(pairs.METRIC),
        retrieval=scores.get(documents.METRICS[run.config.evals.retrieval_split or "dev"]),
        recall=scores.get(entity.METRIC),
        auc=scores.get(run.dev.best) if run.dev.best in (pairs.AUC_METRIC, *auc.DEV_METRICS) else None,
        sts=scores.get("average"),
        costs=Costs(
            parameters=model.parameter_count,
            size_bytes=weights_bytes(exported) if same_size else 4 * model.parameter_count,
            sentences_per_s=rate,
        ),
    )


def _title(run: Run, facts: Facts) -> str:
    """The title of the report: method, student, and the name of the user's folder."""
    student = facts.origin.student.removeprefix("package:")
    return f"{objective_title(run.config)}: student {student} ({facts.name})"
