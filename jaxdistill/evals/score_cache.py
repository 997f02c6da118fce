"""Caches the scores of a model, so that a teacher is not evaluated again in every run that it teaches."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill import processes
from jaxdistill.files import write_atomic
from jaxdistill.versions import versions

FORM = 3
"""Bump when results gain or rename a field; older entries are then ignored."""


def cached_scores(
    folder: Path, digests: Sequence[str], score: Callable[[], Mapping[str, Any]], *, together: bool = False
) -> dict[str, Any]:
    """The result of `score`, read from `folder` if it was computed before from the same inputs.

    Args:
      folder: holds one file for each result; created if it does not exist.
      digests: of everything that determines the result: the model and the sets. Library versions are added.
      score: computes the result.
      together: all processes of the run call this, and `score` computes on the devices of all: the cache of the first one
        decides.
    """
    key = json.dumps([FORM, *digests, versions()], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    found = _read(path)
    if together:
        found = processes.gathered(found)[0]
    if found is not None:
        return found
    scores = dict(score())
    if together and not processes.is_first():
        return scores
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(scores))
    except OSError:
        pass  # the scores are valid, only the cache lacks them
    return scores


def _read(path: Path) -> dict[str, Any] | None:
    """None if the entry is absent or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
