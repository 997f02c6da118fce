"""Caches of what evaluations share.

On disk, the scores of a model, so that a teacher is not evaluated again in every run. In memory, vectors of sentences: SST2 has
two thirds of MR's sentences, SICK-E most of SICK-R's.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.cluster import processes
from jaxdistill.core import Embed
from jaxdistill.files import write_atomic
from jaxdistill.runtime import source_digest, versions

SCORING = ("encoders", "evals", "inference", "ops")
"""The code that determines scores; cache entries by another state of this code are ignored."""


def cached_scores(folder: Path, digests: Sequence[str], score: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """The result of `score`, read from `folder` if it was computed before from the same inputs.

    All processes of a run call this together; the first one's cache decides whether all compute.

    Args:
      digests: digests of the result's inputs: the model and the sets. Code and library versions are added here.
    """
    key = json.dumps([source_digest(*SCORING), *digests, versions()], sort_keys=True)
    path, cached = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json", None
    with contextlib.suppress(OSError, ValueError):  # absent or damaged
        cached = json.loads(path.read_text(encoding="utf-8"))
    if (cached := processes.gathered(cached)[0]) is not None:
        return cached
    scores = dict(score())
    if processes.is_first():
        with contextlib.suppress(OSError):  # the scores are valid, only not cached
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(scores))
    return scores


class EmbeddingCache:
    """An `Embed` that computes each distinct sentence once and keeps its vector in memory.

    A cached vector may differ from a new one by rounding, which depends on the other sentences of a batch. All tasks of
    `evaluate` together keep 300,000 vectors: 0.5 GB for MiniLM, 1.3 GB for vectors of 1,024 numbers.
    """

    def __init__(self, embed: Embed):
        self._embed, self._vectors = embed, {}

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            self._vectors.update(zip(new, np.asarray(self._embed(new)), strict=True))
        vectors = [self._vectors[sentence] for sentence in sentences]
        return np.stack(vectors) if vectors else np.asarray(self._embed([]))
