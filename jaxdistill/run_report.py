"""What does the report of a training show? What the run has evaluated anyway, and little that is read once more."""

import pathlib
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from jaxdistill import build, report
from jaxdistill.card import Facts
from jaxdistill.core import SECOND, Embed, Scorer, Task
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.evals import neighbours
from jaxdistill.evals.agreement import AgreementTask
from jaxdistill.evals.pairs import GradedPairs, Judged, PairsTask, judged
from jaxdistill.evals.similarity import similarities
from jaxdistill.evals.sts import StsDevTask
from jaxdistill.figures import Entry
from jaxdistill.inference import Embedder
from jaxdistill.plots import read_curves
from jaxdistill.summary import Measured
from jaxdistill.versions import versions

PAGE = "report.html"
READ_SENTENCES = 256
"""Sentences of the training text that the speed of encoding is measured on, and nearest ones are looked for among."""
DRAWN_PAIRS = 400
"""Pairs of the dev evaluation, at the most, that are read once more to be drawn, in a run without STS."""


class Reading(NamedTuple):
    """What came of a model's reading of some training text and dev pairs."""

    rate: float
    """Sentences (a cross-encoder: pairs) in a second, compilation not counted."""
    neighbours: Mapping[str, neighbours.Examples]
    judged: Judged | None


def reading(run: build.Run, model: SentenceModel, *, judges: bool) -> Reading:
    """Reads `READ_SENTENCES` of the training text and, if it `judges`, pairs of the run's dev evaluation."""
    read: Embed | Scorer = Embedder(model).in_use()
    sentences = run.store.texts("text")[:READ_SENTENCES]
    timed = partial(read.score, run.store.texts(SECOND)[:READ_SENTENCES]) if isinstance(read, Scorer) else read
    timed(sentences)
    begun = time.monotonic()
    values = timed(sentences)
    rate = len(sentences) / (time.monotonic() - begun)
    return Reading(
        rate=rate,
        neighbours={} if isinstance(read, Scorer) else _neighbours(sentences, values),
        judged=_judged(run.tasks, read) if judges else None,
    )


def write(
    run: build.Run,
    *,
    title: str,
    facts: Facts,
    scores: Mapping[str, Mapping[str, float]],
    measured: Mapping[str, Measured],
    readings: Mapping[str, Reading],
    on_sts: Mapping[str, Judged],
) -> pathlib.Path:
    """The report of a finished run in its workdir: `teacher`, `student before` and `student after`."""
    entries = [
        Entry(
            name=name,
            scores=scores[name],
            parameters=measured[name].parameters,
            size_bytes=measured[name].size_bytes,
            sentences_per_s=measured[name].sentences_per_s,
            judged=on_sts.get(name, readings[name].judged),
            neighbours=readings[name].neighbours,
            curves=read_curves(run.workdir / "metrics.jsonl") if name == "student after" else None,
        )
        for name in scores
    ]
    said = {"Command": facts.command, "Text": facts.data, "Objective": facts.objective, "Student": facts.student}
    return report.write(
        report.Report(
            title=title,
            entries=entries,
            teacher="teacher" if "teacher" in scores else "",
            facts=said | {"Versions": ", ".join(f"{name} {version}" for name, version in versions().items())},
        ),
        run.workdir / PAGE,
    )


def _neighbours(sentences: list[str], vectors: np.ndarray) -> Mapping[str, neighbours.Examples]:
    if len(sentences) <= neighbours.RANKS[-1]:
        return {}
    study = neighbours.NeighboursStudy(captions=tuple(sentences), queries=neighbours.SHOWN)
    _, examples = study(lambda texts: vectors)
    return {f"among {len(sentences)} sentences of the training text": examples}


def _judged(tasks: Mapping[str, Task], read: Embed | Scorer) -> Judged | None:
    """Pairs of the first dev evaluation that has any, evenly spaced through it, as the model finds them."""
    pairs = next(filter(None, map(_pairs_of, tasks.values())), None)
    if pairs is None:
        return None
    rows = np.unique(np.linspace(0, len(pairs.scores) - 1, DRAWN_PAIRS).astype(int))
    chosen = GradedPairs(
        name=pairs.name,
        first=tuple(pairs.first[row] for row in rows),
        second=tuple(pairs.second[row] for row in rows),
        scores=pairs.scores[rows],
    )
    return judged(chosen, similarities(read, chosen.first, chosen.second))


def _pairs_of(task: Task) -> GradedPairs | None:
    match task:
        case PairsTask(pairs=pairs) | StsDevTask(pairs=pairs):
            return pairs
        case AgreementTask(first=first, second=second, teacher=teacher):
            name = "held-out sentences, whose gold score is the teacher's similarity"
            return GradedPairs(name=name, first=first, second=second, scores=teacher)
    return None
