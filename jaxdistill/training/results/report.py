"""Writes the report of a training: its evaluations, curves and data, and the geometry of its vectors."""

import pathlib
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import SECOND, Embed
from jaxdistill.evals import neighbours
from jaxdistill.evals.agreement import held_out_task
from jaxdistill.evals.pairs import GradedPairs, ScoredPairs, scored_pairs
from jaxdistill.evals.similarity import cosines
from jaxdistill.reporting import page as report
from jaxdistill.reporting.figures import Entry, Examples
from jaxdistill.reporting.model_card import Facts
from jaxdistill.reporting.plots import read_curves
from jaxdistill.reporting.tables import Measured
from jaxdistill.training.results.paper import Repeated
from jaxdistill.training.run import Run
from jaxdistill.training.setup.sharding import sharded_embedder
from jaxdistill.versions import versions

PAGE = "report.html"
READ_SENTENCES = 256
"""Sentences of the training text on which encoding speed is measured. Without STS the report reuses their vectors: encoding
others would be the most expensive part of a short run's end."""


class Reading(NamedTuple):
    """Speed and vectors of a model on some training text."""

    rate: float
    """Sentences (for a cross-encoder: pairs) per second on all devices of the run, without compilation."""
    characters_per_s: float
    vectors: Mapping[str, Float[np.ndarray, " e"]]
    """Maps each sentence to its vector; empty for a cross-encoder."""


def reading(run: Run, model: SentenceModel, *, progress: bool | str = False) -> Reading:
    """Reads `READ_SENTENCES` of the training text, twice, truncated to what both teacher and student read; all processes call
    this together.

    Args:
      progress: as `Embedder.encode` takes it.
    """
    length = min(one.max_length for one in (*run.models.teachers, run.models.student))
    embedder = sharded_embedder(model.with_length(length), run.config.run, mesh=run.program.mesh)
    sentences = run.text.store.texts("text")[:READ_SENTENCES]
    others = run.text.store.texts(SECOND)[:READ_SENTENCES] if model.definition.reads_pairs else []
    if model.definition.reads_pairs:
        timed = partial(embedder.score, others, show_progress_bar=progress)
    else:
        timed = partial(
            embedder.encode, role=run.text.store.roles("text", range(len(sentences))), show_progress_bar=progress
        )
    timed(sentences)
    begun = time.monotonic()
    values = timed(sentences)
    seconds = time.monotonic() - begun
    vectors = {} if model.definition.reads_pairs else dict(zip(sentences, values, strict=True))
    characters = sum(map(len, [*sentences, *others]))
    return Reading(rate=len(sentences) / seconds, characters_per_s=characters / seconds, vectors=vectors)


def write_report(
    run: Run,
    *,
    title: str,
    facts: Facts,
    warning: str,
    scores: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, Measured],
    readings: Mapping[str, Reading],
    on_sts: Mapping[str, ScoredPairs],
    geometry: Mapping[str, Mapping[str, float]],
    paper: Repeated | None,
    forms: Sequence[Mapping[str, str]] = (),
) -> pathlib.Path:
    """Writes the report of a finished run, which compares `teacher`, `student before` and `student after`; returns its path.

    Args:
      warning: a line at the top; empty for none.
      on_sts: each model's scores of STS-B's pairs; empty if the run scored no STS.
      geometry: each model's alignment, uniformity and so on; likewise.
      paper: the row of a paper that the run repeats.
      forms: rows of the table of forms for other runtimes.
    """
    drawn = on_sts or _beside_teacher(readings, seed=run.config.run.seed)
    entries = [
        Entry(
            name=name,
            scores={**scores[name], **geometry[name]},
            costs=measured[name].costs,
            examples=Examples(
                scored_pairs=drawn.get(name),
                neighbours=_neighbours(readings[name].vectors),
                curves=read_curves(run.workdir / "metrics.jsonl") if name == "student after" else None,
            ),
        )
        for name in scores
    ]
    if paper:
        cited = paper.beside(scores["student after"])
        entries.append(Entry(name=cited.label, scores=cited.scores, is_cited=True))
    made, checkpoint = facts.training, facts.checkpoint
    said = {"Command": made.command, "Text": made.data, "Objective": made.objective, "Student": facts.origin.student}
    chosen = f"step {checkpoint.steps:,}" + (f", chosen by {checkpoint.chosen_by}" if checkpoint.chosen_by else "")
    said["Checkpoint"] = f"mean of steps {checkpoint.averaged}" if checkpoint.averaged else chosen
    said |= {"Paper": paper.line(scores["student after"])} if paper else {}
    return report.write_page(
        report.Report(
            title=title,
            warning=warning,
            entries=entries,
            teacher="teacher" if "teacher" in scores else "",
            facts=said | {"Versions": ", ".join(f"{name} {version}" for name, version in versions().items())},
            forms=forms,
        ),
        run.workdir / PAGE,
    )


def _neighbours(vectors: Mapping[str, Float[np.ndarray, " e"]]) -> Mapping[str, neighbours.Examples]:
    if len(vectors) <= neighbours.RANKS[-1]:
        return {}
    _, examples = neighbours.neighbours(list(vectors), _lookup(vectors), queries=neighbours.SHOWN)
    return {f"among {len(vectors)} sentences of the training text": examples}


def _beside_teacher(readings: Mapping[str, Reading], *, seed: int) -> dict[str, ScoredPairs]:
    """Near and far pairs of the sentences read for speed, with the teacher's similarity as the gold score."""
    teacher = readings.get("teacher")
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
        name: scored_pairs(pairs, cosines(_lookup(reading.vectors), pairs.first, pairs.second))
        for name, reading in readings.items()
        if reading.vectors
    }


def _lookup(vectors: Mapping[str, Float[np.ndarray, " e"]]) -> Embed:
    return lambda texts: np.stack([vectors[text] for text in texts])
