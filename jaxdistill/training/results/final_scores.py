"""Measures the models that a run ends with: speed, STS tests, and the geometry of their vectors.

Announces each part; for the tests, also the time they will take at the speed just measured.
"""

import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxdistill.bars import duration
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.cluster import processes
from jaxdistill.core import Embed, InputError
from jaxdistill.evals import geometry, sts
from jaxdistill.evals.caches import cached_scores, is_cached
from jaxdistill.paths import cache_folder
from jaxdistill.students.parts.student import widths_of
from jaxdistill.training.results import report as run_report
from jaxdistill.training.results.outcome import Outcome
from jaxdistill.training.run import Run
from jaxdistill.training.said import say
from jaxdistill.training.setup.dev import sts_data_folder
from jaxdistill.training.setup.sharding import sharded_embedder

log = logging.getLogger(__name__)


class FinalScores(NamedTuple):
    """Measurements of a model at the end of a run, made by all processes together."""

    on_sts: dict[str, Any]
    """Results of `sts.sts_values` for the seven tests; empty if the run does not score STS."""
    reading: run_report.Reading
    geometry: dict[str, float]
    """Alignment, uniformity and so on, as in `evaluate --tasks=geometry`; empty if the run does not score STS."""


def planned(run: Run) -> str:
    """A line that says what follows the last step, and how long the tests will take at the speed measured here. All
    processes call this together."""
    folder, rest = _sts_folder(run), "speed, export, plot and report"
    if folder is None:
        return f"after the last step: {rest}"
    before = _student_before(run)
    known = {"teacher": run.models.teacher, "student before": before}
    models = {name: model for name, model in known.items() if model and not is_cached(*_sts_cache(run, model, folder))}
    models["student after"] = before  # as fast
    seconds: dict[int, float] = {}
    for model in models.values():
        if id(model) not in seconds:
            seconds[id(model)] = _Work.of(model, folder).seconds(run_report.reading(run, model))
    total = sum(seconds[id(model)] for model in models.values())
    return (
        f"after the last step: {len(sts.TESTS)} STS tests of {_listed(list(models))}, {_Work.of(before, folder).words} "
        f"each, about {duration(total)}; geometry, {rest}"
    )


def final_models(run: Run, outcome: Outcome) -> dict[str, SentenceModel]:
    """The models to measure, by name: teachers, and the student before and after training."""
    students = {"student before": _student_before(run), "student after": outcome.student}
    return ({"teacher": run.models.teacher} if run.models.teacher else {}) | students


def final_scores_of(run: Run, name: str, model: SentenceModel) -> FinalScores:
    """Measures a model; all processes call this together."""
    say(f"{name}: measuring the speed")
    reading = run_report.reading(run, model, progress=processes.is_first() and f"{name}, speed")
    return FinalScores(_on_sts(run, name, model, reading), reading, _geometry(run, name, model))


class _Work(NamedTuple):
    """The number of sentences that a model reads for the STS tests."""

    words: str
    characters: int

    @classmethod
    def of(cls, model: SentenceModel, folder: pathlib.Path) -> "_Work":
        sets = [sts.read_set(name, folder) for name in sts.TESTS]
        texts = [text for pairs in sets for text in (*pairs.first, *pairs.second)]
        if model.definition.reads_pairs:
            return cls(f"{len(texts) // 2:,} pairs", sum(map(len, texts)))
        distinct = dict.fromkeys(texts)
        return cls(f"{len(distinct):,} sentences", sum(map(len, distinct)))

    def seconds(self, reading: run_report.Reading) -> float:
        return self.characters / reading.characters_per_s


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _student_before(run: Run) -> SentenceModel:
    return run.config.student.evaluated(run.models.student, widths_of(run.models.teachers))


def _sts_folder(run: Run) -> pathlib.Path | None:
    """The data folder, if there is one and the run scores STS."""
    return sts_data_folder() if run.config.evals.sts else None


def _sts_cache(run: Run, model: SentenceModel, folder: pathlib.Path) -> tuple[pathlib.Path, list[str]]:
    """The file that caches the model's STS scores, and the digests of their inputs."""
    return cache_folder(run.config.data.cache_folder) / "scores", [model.digest(), sts.digest(folder)]


def _embed(run: Run, model: SentenceModel, title: str, **options: Any) -> Embed:
    return sharded_embedder(model, run.config.run, **options).as_embed(progress=processes.is_first() and title)


def _on_sts(run: Run, name: str, model: SentenceModel, reading: run_report.Reading) -> dict[str, Any]:
    folder = _sts_folder(run)
    if folder is None:
        return {}

    def score() -> dict[str, Any]:
        work = _Work.of(model, folder)
        say(f"{name}: {len(sts.TESTS)} STS tests, {work.words}, about {duration(work.seconds(reading))}")
        graded = {test: sts.read_set(test, folder) for test in sts.TESTS}
        return sts.sts_values(_embed(run, model, f"{name}, STS", mesh=run.program.mesh), graded, subsets=False)

    return cached_scores(*_sts_cache(run, model, folder), score)


def _geometry(run: Run, name: str, model: SentenceModel) -> dict[str, float]:
    folder = _sts_folder(run)
    if folder is None or model.definition.reads_pairs:
        return {}
    say(f"{name}: geometry of the vectors")
    title = f"{name}, geometry"
    cache, digests = _sts_cache(run, model, folder)

    def measure() -> Mapping[str, float]:
        return geometry.measures(sts.read_set("sts-b-dev", folder), _embed(run, model, title, mesh=run.program.mesh))

    try:
        return cached_scores(cache, [*digests, geometry.PROTOCOL], measure)
    except InputError as error:
        log.warning("geometry: not in the report (%s)", error)
        return {}
