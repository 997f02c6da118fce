"""Gathers what a model card says of a training."""

import dataclasses

from jaxdistill.data import sources
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
)
from jaxdistill.training.results.outcome import Outcome
from jaxdistill.training.run import Run, teachers_by_name
from jaxdistill.workdir.folder import stage_export


def facts_of(run: Run, outcome: Outcome, scores: dict[str, dict[str, float]], command: str) -> Facts:
    objective = dict(run.config.objective)
    name = objective.pop("name")
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
        licence=run.config.run.license or inherited.licence,
    )
    training = Training(
        objective=f"{public_name(name)} ({', '.join(f'{key} {value}' for key, value in objective.items())})",
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
