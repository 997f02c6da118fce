"""Lists all evaluations, finds the sets of the chosen ones, scores a model on a set, and averages scores."""

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.core import InputError, did_you_mean, plugins
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import write_atomic
from jaxdistill.core.runtime import source_digest, versions
from jaxdistill.evals import agreement, benchmark, documents, geometry, pairs, retrieval, sts, transfer
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Result, Sources, TestSet

EVALUATIONS = (
    sts.EVALUATION,
    sts.MULTILINGUAL,
    transfer.EVALUATION,
    transfer.ENTAILMENT,
    pairs.EVALUATION,
    retrieval.BITEXT,
    retrieval.ENTITIES,
    documents.EVALUATION,
    benchmark.EVALUATION,
    agreement.EVALUATION,
    geometry.EVALUATION,
    geometry.SPEED,
)
"""The package's evaluations, in the order in which they run and are printed."""
SCORING = ("core/ops", "data/text.py", "encoders", "evals", "models/inference.py", "models/vectors.py")
"""The code that determines scores; cached scores of other versions of this code are ignored."""


class Suite(NamedTuple):
    """Sets that will be scored, each with its evaluation."""

    sets: list[tuple[Evaluation, TestSet]]
    absent: list[str]
    """A line for each missing set."""


def evaluations() -> list[Evaluation]:
    """The package's evaluations, and then those of plugins."""
    return [*EVALUATIONS, *chain.from_iterable(plugins.evaluations.values())]


def planned(tasks: Sequence[str], sources: Sources) -> Suite:
    """The sets of the evaluations that `tasks` names; raises `InputError` for an unknown task, or two sets of one name."""
    available = dict.fromkeys(name for evaluation in evaluations() for name in (evaluation.task, *evaluation.names))
    if unknown := [task for task in tasks if task not in available]:
        hint = did_you_mean(unknown[0], list(available))
        raise InputError(f"task {unknown[0]!r} is unknown; there are {', '.join(available)}.{hint}")
    sources = replace(sources, tasks=tuple(tasks))
    sets: dict[str, tuple[Evaluation, TestSet]] = {}
    absent: list[str] = []
    for evaluation in evaluations():
        if not {evaluation.task, *evaluation.names} & {*tasks}:
            continue
        try:
            for test_set in evaluation.sets(sources):
                if missing := [path for path in test_set.paths if not path.is_file()]:
                    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
                    absent.append(f"{test_set.name}: {missing[0]} is not there{more}.")
                elif test_set.name in sets:
                    raise InputError(f"two sets are called {test_set.name!r}; rename one of them.")
                else:
                    sets[test_set.name] = evaluation, test_set
        except MissingSet as error:
            absent.append(f"task {evaluation.task} {error}")
    return Suite(list(sets.values()), absent)


def measured(evaluation: Evaluation, test_set: TestSet, model: Model, cache_folder: Path) -> Result:
    """A model's result on a set, from the cache if it was computed before. All processes of a run call this together. Raises
    `InputError` in every process if one process cannot read the set or use the model, or if a score is not finite."""

    def score() -> dict[str, Any]:
        result = evaluation.run(model, test_set)
        result = result if isinstance(result, Result) else Result(scores=result)
        scores = {name: float(value) for name, value in result.scores.items()}
        if wrong := [name for name, value in scores.items() if not math.isfinite(value)]:
            raise InputError(f"{test_set.name}: the score {wrong[0]!r} is {scores[wrong[0]]}, no finite number.")
        return result._replace(scores=scores, details=dict(result.details))._asdict()

    if not test_set.is_repeatable:
        return Result(**processes.run_in_all(score))
    digests = [model.digest, test_set.digest(), *(getattr(model, name).digest for name in test_set.references)]
    digests += [digest for digest, added in plugins.evaluations.items() if evaluation in added]  # of the plug-in's file
    return Result(**cached_scores(cache_folder / "scores", digests, lambda: processes.run_in_all(score)))


def cached_scores(folder: Path, digests: Sequence[str], score: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The result of `score`, from a file in `folder` if the same code and versions computed it before. `digests` identify the model, the
    set, and all else that determines the result. All processes of a run call this together."""
    key = json.dumps([source_digest(*SCORING), *digests, versions()], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    cached = None
    with contextlib.suppress(OSError, ValueError):  # absent or damaged
        cached = json.loads(path.read_text(encoding="utf-8"))
    cached = processes.gathered(cached)[0]  # the first process's, so that either all compute or none does
    if cached is not None:
        return cached
    scores = dict(score())
    if processes.is_first():
        with contextlib.suppress(OSError):  # the scores are valid, only not cached
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(scores))
    return scores


def with_averages(scores: Mapping[str, float], failed: Collection[str] = ()) -> dict[str, float]:
    """Sorts scores by evaluation, and adds the averages of each evaluation, unless `failed` names one of its sets."""
    sorted_scores: dict[str, float] = {}
    for evaluation in evaluations():
        sorted_scores |= {name: score for name, score in scores.items() if evaluation.owns(name)}
        if not any(evaluation.owns(name) for name in failed):
            sorted_scores |= evaluation.averages(scores)
    return sorted_scores | dict(scores)  # adds the scores that no evaluation owns
