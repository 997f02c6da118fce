"""Caches the scores of a model, so that a teacher is not evaluated again in every run."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.cluster import processes
from jaxdistill.files import write_atomic
from jaxdistill.versions import source_digest, versions

SCORING = ("encoders", "evals", "inference", "ops")
"""The code that determines scores; cache entries by another state of this code are ignored."""


def cached_scores(folder: Path, digests: Sequence[str], score: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The result of `score`, read from `folder` if it was computed before from the same inputs.

    All processes of a run call this together; the first one's cache decides whether all compute.

    Args:
      folder: holds one file per result; created if it does not exist.
      digests: digests of the result's inputs: the model and the sets. Code and library versions are added here.
      score: computes the result.
    """
    path = _entry(folder, digests)
    cached = processes.gathered(_read(path))[0]
    if cached is not None:
        return cached
    scores = dict(score())
    if not processes.is_first():
        return scores
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(scores))
    except OSError:
        pass  # the scores are valid, only not cached
    return scores


def is_cached(folder: Path, digests: Sequence[str]) -> bool:
    """Whether `cached_scores` already has the result; all processes call this together."""
    return processes.gathered(_read(_entry(folder, digests)) is not None)[0]


def _entry(folder: Path, digests: Sequence[str]) -> Path:
    key = json.dumps([source_digest(*SCORING), *digests, versions()], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def _read(path: Path) -> dict[str, Any] | None:
    """None if the entry is absent or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
