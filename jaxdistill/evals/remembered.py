"""Scores of a model that was scored before: the same teacher is not evaluated again in every run that it teaches."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.files import write_whole
from jaxdistill.versions import versions


def remembered(folder: Path, what: Sequence[str], score: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The scores that `score` gives, from `folder` where they were made before of the same things.

    Args:
      folder: holds a file for each list of scores; made when it is not there.
      what: digests of all that determines the scores: the model and the sets. Versions of the libraries are added.
      score: makes them.
    """
    key = json.dumps([*what, versions()], sort_keys=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or damaged
        scores = dict(score())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(scores))
    except OSError:
        pass  # they are only not remembered
    return scores
