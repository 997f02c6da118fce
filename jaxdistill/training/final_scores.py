"""Measures the models that a run ends with: their speed, and the STS tests."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import processes
from jaxdistill.core import SECOND
from jaxdistill.evals import sts
from jaxdistill.evals.suite import cached_scores
from jaxdistill.paths import cache_folder
from jaxdistill.training.console import say
from jaxdistill.training.outcome import Outcome
from jaxdistill.training.run import Run
from jaxdistill.training.setup.dev import sts_data_folder
from jaxdistill.training.setup.sharding import sharded_embedder

READ_SENTENCES = 256
"""Sentences of the training text on which encoding speed is measured. Without STS the report reuses their vectors: encoding
others would be the most expensive part of a short run's end."""


class FinalScores(NamedTuple):
    """Measurements of a model at the end of a run, made by all processes together."""

    rate: float
    """Sentences (for a cross-encoder: pairs) per second on all devices of the run, without compilation."""
    vectors: Mapping[str, Float[np.ndarray, " e"]]
    """Maps sentences of the training text to their vectors; empty for a cross-encoder."""
    on_sts: dict[str, Any]
    """Results of `sts.sts_values` for the seven tests; empty if the run does not score STS."""


def planned(run: Run) -> str:
    """A line that says what follows the last step."""
    tests = f"{len(sts.TESTS)} STS tests, " if _sts_folder(run) else ""
    return f"after the last step: {tests}speed, export, plot and report"


def final_models(run: Run, outcome: Outcome) -> dict[str, SentenceModel]:
    """The models to measure, by name: teachers, and the student before and after training."""
    before = run.config.student.evaluated(run.models.student)
    teachers = {"teacher": run.models.teacher} if run.models.teacher else {}
    return teachers | {"student before": before, "student after": outcome.student}


def final_scores_of(run: Run, name: str, model: SentenceModel) -> FinalScores:
    """Measures a model; all processes call this together."""
    say(f"{name}: measuring the speed")
    return FinalScores(
        *reading(run, model, progress=processes.is_first() and f"{name}, speed"), _on_sts(run, name, model)
    )


def reading(
    run: Run, model: SentenceModel, *, progress: bool | str = False
) -> tuple[float, Mapping[str, Float[np.ndarray, " e"]]]:
    """The rate and vectors of `READ_SENTENCES` of the training text, truncated to what both teacher and student read; all
    processes call this together.

    Args:
      progress: as `Embedder.encode` takes it.
    """
    length = min(one.max_length for one in (*run.models.teachers, run.models.student))
    embedder = sharded_embedder(model.with_length(length), run.config.run, mesh=run.program.mesh)
    sentences = run.text.store.texts("text")[:READ_SENTENCES]
    if model.definition.reads_pairs:
        others = run.text.store.texts(SECOND)[:READ_SENTENCES]
        timed = partial(embedder.score, others, show_progress_bar=progress)
    else:
        roles = run.text.store.roles("text", range(len(sentences)))
        timed = partial(embedder.encode, role=roles, show_progress_bar=progress)
    timed(sentences)  # compiles
    begun = time.monotonic()
    values = timed(sentences)
    rate = len(sentences) / (time.monotonic() - begun)
    return rate, {} if model.definition.reads_pairs else dict(zip(sentences, values, strict=True))


def _sts_folder(run: Run) -> Path | None:
    """The data folder, if there is one and the run scores STS."""
    return sts_data_folder() if run.config.evals.sts else None


def _on_sts(run: Run, name: str, model: SentenceModel) -> dict[str, Any]:
    folder = _sts_folder(run)
    if folder is None:
        return {}

    def score() -> dict[str, Any]:
        say(f"{name}: {len(sts.TESTS)} STS tests")
        embedder = sharded_embedder(model, run.config.run, mesh=run.program.mesh)
        embed = embedder.as_embed(progress=processes.is_first() and f"{name}, STS")
        return sts.sts_values(embed, {test: sts.read_set(test, folder) for test in sts.TESTS}, subsets=False)

    cache = cache_folder(run.config.data.cache_folder) / "scores"
    return cached_scores(cache, [model.digest(), sts.digest(folder)], score)
