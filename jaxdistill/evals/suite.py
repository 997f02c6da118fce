"""Finds evaluations by the names in `--tasks`, and runs their units.

Evaluations are the `EVALUATION` of each file in this folder, and the `EVALUATIONS` of each module in `--parts`. A name such as
`transfer` stands for a list of units, each with its own files, protocol and scores: a set that is missing or cannot be read
only loses its own unit.
"""

import importlib
import math
import pkgutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jaxdistill.evals
from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.data.spread import together
from jaxdistill.evals.caches import cached_scores
from jaxdistill.evals.evaluation import PLAIN, SPEARMAN, Absent, Evaluation, Model, Sources, Unit
from jaxdistill.files import parts

ORDER = ("sts", "multilingual", "transfer", "nli", "pairs", "retrieval", "documents", "agreement", "geometry", "speed")
"""Order in which groups run and are printed; other groups follow, sorted by name."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Units that will run, and missing sets."""

    units: tuple[Unit, ...]
    absent: tuple[Absent, ...]
    """Requested sets that are missing."""


def evaluations() -> list[Evaluation]:
    """All evaluations, in the package and from outside, in the order of their groups."""
    return [evaluation for evaluation, _ in _with_sources()]


def groups() -> list[str]:
    """Names for `--tasks` that stand for whole evaluations."""
    return list(dict.fromkeys(evaluation.group for evaluation in evaluations() if evaluation.group))


def tasks() -> list[str]:
    """All names for `--tasks`: groups, and parts of them."""
    return [*groups(), *(name for evaluation in evaluations() for name in evaluation.names)]


def tasks_from_outside() -> set[str]:
    """Names for `--tasks` that modules of `--parts` define."""
    outside = [evaluation for evaluation, source in _with_sources() if source]
    return {name for evaluation in outside for name in (evaluation.group, *evaluation.names)}


def planned(names: Sequence[str], sources: Sources) -> Suite:
    """The units of task names.

    Raises:
      InputError: an unknown name, a data folder that does not exist, or two units of one name.
    """
    known = tasks()
    for name in names:
        if name not in known:
            raise InputError(f"task {name!r} is unknown; there are {', '.join(known)}.{did_you_mean(name, known)}")
    if sources.data and not Path(sources.data).is_dir():
        raise InputError(f"{sources.data}: not a data folder; give one with sts/, transfer/ and so on.")
    wanted = list(_wanted(names, replace(sources, tasks=tuple(names))))
    units = tuple(item for item in wanted if isinstance(item, Unit))
    taken: set[str] = set()
    for unit in units:
        if unit.name in taken:
            raise InputError(f"two evaluations have a unit {unit.name!r}; rename the unit of --parts.")
        taken.add(unit.name)
    return Suite(units=units, absent=tuple(item for item in wanted if isinstance(item, Absent)))


def _wanted(names: Sequence[str], sources: Sources) -> Iterator[Unit | Absent]:
    for evaluation, source in _with_sources():
        if {evaluation.group, *evaluation.names} & set(names):
            for item in evaluation.units(sources):
                yield item if isinstance(item, Absent) else replace(item, content=source + item.content)


def unit_values(unit: Unit, model: Model, digests: Sequence[str], cache_folder: Path) -> dict[str, Any]:
    """The result of a unit for a model, from the cache if it was computed before. All processes of a run call this together.

    Args:
      digests: digests of the models that the unit uses.

    Raises:
      InputError: in every process, if the set cannot be read in one.
    """
    run = partial(together, partial(_finite, unit, model))
    return cached_scores(cache_folder / "scores", [unit.digest(), *digests], run) if unit.is_repeatable else run()


def _finite(unit: Unit, model: Model) -> dict[str, Any]:
    """The unit's result with its scores as plain numbers; raises `InputError` for a score that is not finite."""
    values = unit.run(model)
    scores = {}
    for name, value in values.get("scores", {}).items():
        try:
            scores[name] = float(value)
        except (TypeError, ValueError):
            scores[name] = math.nan
        if not math.isfinite(scores[name]):
            raise InputError(f"{unit.name}: the score {name!r} is {value!r:.60}, no finite number.")
    return {**values, "scores": scores} if "scores" in values else values


def measure(score: str) -> str:
    """The heading of the table in which a score is printed."""
    return next((evaluation.shown.measure for evaluation in evaluations() if evaluation.owns(score)), SPEARMAN)


def is_plain(score: str) -> bool:
    """Whether a score has its own unit and is not printed × 100."""
    return measure(score) == PLAIN


def with_averages(
    scores: Mapping[str, float], failed: Iterable[str] = (), apart: Collection[str] = ()
) -> dict[str, float]:
    """The scores by evaluation, each followed by its averages.

    Args:
      failed: names of failed units; averages that need them are left out.
      apart: scores and units that no average includes.
    """
    averaged: dict[str, float] = {}
    for evaluation in evaluations():
        own = {name: score for name, score in scores.items() if evaluation.owns(name)}
        lacking = {name: math.nan for name in failed if evaluation.owns(name)}
        averages = evaluation.averages({name: score for name, score in (own | lacking).items() if name not in apart})
        averaged |= own | {name: average for name, average in averages.items() if not math.isnan(average)}
    return averaged | dict(scores)


def headings(measured: Sequence[str]) -> dict[str, str]:
    """Columns of a report's first table: maps scores to headings; scores that choose checkpoints come last."""
    shown: dict[str, str] = {}
    for evaluation in evaluations():
        own = [name for name in measured if evaluation.owns(name) and name not in evaluation.shown.dev_headings]
        # The function may name a score that no model has.
        shown |= {name: heading for name, heading in evaluation.shown.headings(own).items() if name in own}
    for evaluation in evaluations():
        shown |= {name: heading for name, heading in evaluation.shown.dev_headings.items() if name in measured}
    return shown


def drawn_units() -> list[str]:
    """Units whose pairs a report may plot, in order of preference."""
    return [name for evaluation in evaluations() for name in evaluation.shown.drawn]


def _with_sources() -> list[tuple[Evaluation, str]]:
    """Evaluations, each with the digest of its source code if it comes from outside."""
    every = [(evaluation, "") for evaluation in _of_package()]
    for source, outside in parts.evaluations.items():
        every += [(_checked(evaluation), source) for evaluation in outside]
    return sorted(every, key=lambda pair: _place(pair[0]))


@cache
def _of_package() -> tuple[Evaluation, ...]:
    names = sorted(module.name for module in pkgutil.iter_modules(jaxdistill.evals.__path__))
    modules = [importlib.import_module(f"{jaxdistill.evals.__name__}.{name}") for name in names]
    return tuple(module.EVALUATION for module in modules if hasattr(module, "EVALUATION"))


def _checked(evaluation: object) -> Evaluation:
    if not isinstance(evaluation, Evaluation):
        raise InputError(
            f"EVALUATIONS of --parts has a {type(evaluation).__name__}; each is a jaxdistill.evals.evaluation.Evaluation."
        )
    return evaluation


def _place(evaluation: Evaluation) -> tuple[int, str]:
    """Sort key by group; the stable sort keeps files in order within a group."""
    known = ORDER.index(evaluation.group) if evaluation.group in ORDER else len(ORDER)
    return known, "" if known < len(ORDER) else evaluation.group
