"""Measures the models that a run ends with: the STS tests, speed, and the geometry of their vectors."""

import logging
import pathlib
from typing import Any, NamedTuple

from jaxdistill.core import InputError
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.evals import evaluation, sts, suite
from jaxdistill.evals.score_cache import cached_scores
from jaxdistill.paths import cache_folder
from jaxdistill.training import report as run_report
from jaxdistill.training.dev import sts_data_folder
from jaxdistill.training.outcome import Outcome
from jaxdistill.training.run import Run
from jaxdistill.training.sharding import sharded_embedder
from jaxdistill.training.student import as_evaluated, widths_of

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """What the devices of all processes measured of a model at the end."""

    on_sts: dict[str, Any]
    """What `sts.sts_values` gives of the seven tests; empty where the run does not want them."""
    reading: run_report.Reading
    geometry: dict[str, float]
    """Alignment, uniformity and the like, as `evaluate` has them; empty where the run scores no STS."""


def found_of(run: Run, model: SentenceModel) -> Found:
    return Found(_on_sts(run, model), run_report.reading(run, model), _geometry(run, model))


def final_models(run: Run, outcome: Outcome) -> dict[str, SentenceModel]:
    """The models that the run ends with, by name; without a teacher model two."""
    before = as_evaluated(run.config.student, run.student, widths_of(run.teachers))
    students = {"student before": before, "student after": outcome.student}
    return ({"teacher": run.teacher} if run.teacher else {}) | students


def _sts_folder(run: Run) -> pathlib.Path | None:
    """The data folder, where there is one and the run scores STS."""
    return sts_data_folder() if run.config.evals.sts else None


def _on_sts(run: Run, model: SentenceModel) -> dict[str, Any]:
    folder = _sts_folder(run)
    if folder is None:
        return {}
    return cached_scores(
        cache_folder(run.config.data.cache_folder) / "scores",
        [model.digest(), sts.digest(folder)],
        lambda: sts.sts_values(
            sharded_embedder(model, run.config.run, mesh=run.mesh).as_embed(), folder, sts.TESTS, subsets=False
        ),
    )


def _geometry(run: Run, model: SentenceModel) -> dict[str, float]:
    folder = _sts_folder(run)
    if folder is None or model.definition.reads_pairs:
        return {}
    known = evaluation.Model(
        embed=sharded_embedder(model, run.config.run, mesh=run.mesh).as_embed(),
        embed_in_batches=lambda size: sharded_embedder(model, run.config.run, batch_size=size).as_embed(),
        parameters=model.parameter_count,
        size_bytes=0,  # geometry does not depend on it
    )
    scores: dict[str, float] = {}
    for unit in suite.planned(["geometry"], evaluation.Sources(data=str(folder))).units:
        try:
            scores |= suite.unit_values(unit, known, [model.digest()], cache_folder(run.config.data.cache_folder))[
                "scores"
            ]
        except InputError as error:  # the report is there without it
            log.warning("%s: not in the report (%s)", unit.name, error)
    return scores
