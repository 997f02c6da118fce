"""What was found of a model that was evaluated before: the same teacher is not evaluated again in every run that it teaches."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.files import write_atomic
from jaxdistill.versions import versions

FORM = 2
"""Raised when what evaluations give has more in it than before, so that nothing is read that lacks it."""


def remembered(folder: Path, what: Sequence[str], score: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What `score` gives, from `folder` where it was made before of the same things.

    Args:
      folder: holds a file for each list of scores; made when it is not there.
      what: digests of all that determines the scores: the model and the sets. Versions of the libraries are added.
      score: makes them.
    """
    key = json.dumps([FORM, *what, versions()], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        scores = dict(score())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(scores))
    except OSError:
        pass  # they are only not remembered
    return scores
