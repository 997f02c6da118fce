"""Vectors of texts and scores of pairs, computed once and kept in the cache folder."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdistill.bars import Advance
from jaxdistill.data.questions import Pairs, Questions
from jaxdistill.data.targets import Parts, cached_vectors
from jaxdistill.inference import Embedder
from jaxdistill.paths import cache_folder


def stored_vectors(embedder: Embedder, texts: Sequence[str], prefix: str, what: str, *, progress: bool) -> Parts:
    """The vectors of texts with the prompt `prefix`; cached."""

    def embed(block: Sequence[str], advance: Advance) -> np.ndarray:
        return embedder.encode([prefix + text for text in block], prompt="", show_progress_bar=advance)

    of = digest_of([embedder.model.digest(), embedder.compute_dtype.name, prefix, embedder.model.max_length, *texts])
    return cached_vectors(_folder(), of, embed, texts, width=embedder.width, what=what, progress=progress)


def pair_scores(
    scorer: Embedder, known: Questions, queries: np.ndarray, documents: np.ndarray, *, logits: bool, progress: bool
) -> np.ndarray:
    """A cross-encoder's scores of pairs; cached."""

    def score(block: Sequence[tuple[str, str]], advance: Advance) -> np.ndarray:
        return scorer.score(*zip(*block, strict=True), logits=logits, show_progress_bar=advance)[:, None]

    pairs = Pairs(known, queries, documents)
    places = [hashlib.sha256(rows.tobytes()).hexdigest() for rows in (queries, documents)]
    of = digest_of([scorer.model.digest(), scorer.compute_dtype.name, json.dumps(known), *places, *["logits"] * logits])
    what = "scoring pairs"
    return cached_vectors(_folder(), of, score, pairs, width=1, what=what, progress=progress)[:][:, 0]  # pyright: ignore


def digest_of(parts: Sequence[object]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part}\0".encode())
    return digest.hexdigest()[:32]


def _folder() -> Path:
    return cache_folder() / "mined"
