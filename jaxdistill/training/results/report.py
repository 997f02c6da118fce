"""Writes the report of a training, which compares the teacher and the student before and after."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxdistill.evals.agreement import held_out_task
from jaxdistill.evals.pairs import GradedPairs, ScoredPairs, scored_pairs
from jaxdistill.evals.similarity import cosines
from jaxdistill.reporting.model_card import Facts
from jaxdistill.reporting.page import write_page
from jaxdistill.reporting.plots import read_curves
from jaxdistill.reporting.tables import Entry
from jaxdistill.training.results.final_scores import FinalScores
from jaxdistill.training.results.paper import Repeated
from jaxdistill.training.run import Run
from jaxdistill.versions import versions
from jaxdistill.workdir.folder import METRICS

PAGE = "report.html"


def write_report(
    run: Run, entries: Sequence[Entry], *, title: str, facts: Facts, warning: str, paper: Repeated | None
) -> pathlib.Path:
    """Writes the report of a finished run; returns its path.

    Args:
      warning: a line at the top; empty for none.
      paper: the row of a paper that the run repeats.
    """
    chosen = f"step {facts.steps:,}" + (f", chosen by {facts.chosen_by}" if facts.chosen_by else "")
    said = {
        "Command": facts.command,
        "Text": facts.data,
        "Objective": facts.objective,
        "Student": facts.student,
        "Checkpoint": f"mean of steps {facts.averaged}" if facts.averaged else chosen,
        "Paper": paper.line(facts.scores) if paper else "",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    return write_page(
        run.workdir / PAGE,
        entries,
        title=title,
        warning=warning,
        teacher=next((entry.name for entry in entries if entry.name == "teacher"), ""),
        curves=read_curves(run.workdir / METRICS),
        sections={"How it was made": said},
    )


def graded_pairs_of(final: Mapping[str, FinalScores], *, seed: int) -> dict[str, ScoredPairs]:
    """Graded pairs with each model's similarities: STS-B's, or near and far pairs of the training text, whose gold score is the
    teacher's similarity."""
    if on_sts := {name: one.on_sts["scored_pairs"] for name, one in final.items() if one.on_sts}:
        return {name: ScoredPairs(**pairs) for name, pairs in on_sts.items()}
    teacher = final.get("teacher")
    if teacher is None or len(teacher.vectors) < 2:
        return {}
    task = held_out_task(teacher.vectors, seed=seed)
    pairs = GradedPairs(
        name="the training text, whose gold score is the teacher's similarity",
        first=task.first,
        second=task.second,
        scores=np.round(task.teacher, 4),
    )
    return {
        name: scored_pairs(
            pairs,
            cosines(lambda texts, one=one: np.stack([one.vectors[text] for text in texts]), pairs.first, pairs.second),
        )
        for name, one in final.items()
        if one.vectors and name != "teacher"
    }
