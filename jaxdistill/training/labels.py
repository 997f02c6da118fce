"""Labels pairs of sentences with the scores of other models; made once, stored and resumed.

A labeller is a sentence encoder (cosine similarity, in [-1, 1]) or a cross-encoder (sigmoid, in (0, 1)); several of one
kind are averaged, as in Trans-Encoder's mutual distillation (Liu et al., ICLR 2022, section 2.4). A sentence encoder reads
every distinct sentence once, however many pairs it is in; a cross-encoder reads each pair once, in its own order.
"""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import SECOND
from jaxdistill.data import targets
from jaxdistill.data.tokenize import TokenStore
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.inference import Embedder, refuse_mixed

log = logging.getLogger(__name__)


def labels(
    labellers: Sequence[SentenceModel],
    store: TokenStore,
    folder: Path,
    *,
    compute_dtype: DTypeLike,
    progress: bool,
) -> Float[np.ndarray, "rows 1"]:
    """The mean score of each row's pair over the labellers, in the order of the store.

    Args:
      labellers: sentence encoders, or cross-encoders; InputError for both, whose scores have other scales.
      store: text with the columns `text` and `second`; its tokens are not used.
      folder: keeps the scores, and the vectors that they are made of, by the digest of what made them.
      progress: show bars.
    """
    refuse_mixed(labellers)
    scores = []
    for labeller in labellers:
        embedder = Embedder(labeller, compute_dtype=compute_dtype)
        made = _of_pairs if labeller.definition.reads_pairs else _of_sentences
        scores.append(made(embedder, store, folder, np.dtype(compute_dtype).name, progress))
    mean = np.asarray(np.mean(np.stack(scores), axis=0, dtype=np.float32))
    log.info(
        "labels: %s pairs by %s, mean %.3f, %s of them below 0",
        f"{len(mean):,}",
        ", ".join(labeller.source for labeller in labellers),
        mean.mean(),
        f"{int((mean < 0.0).sum()):,}",
    )
    return mean[:, None]


def _of_pairs(embedder: Embedder, store: TokenStore, folder: Path, dtype: str, progress: bool) -> np.ndarray:
    """A cross-encoder's scores."""

    def score(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        first, second = zip(*pairs, strict=True)
        return embedder.score(first, second)[:, None]

    pairs = list(zip(store.texts("text"), store.texts(SECOND), strict=True))
    what = "labelling pairs"
    of = _name(what, embedder, store, dtype)
    return targets.cached_vectors(folder, of, score, pairs, 1, what=what, progress=progress)[:, 0]


def _of_sentences(embedder: Embedder, store: TokenStore, folder: Path, dtype: str, progress: bool) -> np.ndarray:
    """Cosine similarities of a sentence encoder's vectors."""
    row: dict[str, int] = {}
    prompts = embedder.model.role_prompts
    columns = [store.texts(column, prompts) for column in ("text", SECOND)]
    sides = [[row.setdefault(text, len(row)) for text in texts] for texts in columns]
    what = "labelling sentences"
    of = _name(what, embedder, store, dtype)
    vectors = targets.cached_vectors(
        folder,
        of,
        partial(embedder.encode, prompt=""),
        list(row),
        embedder.width,
        what=what,
        progress=progress,
    )
    scores = np.zeros(store.rows, np.float32)
    for begin in range(0, store.rows, targets.BLOCK_ROWS):
        block = slice(begin, begin + targets.BLOCK_ROWS)
        left, right = (np.asarray(vectors[side[block]], np.float64) for side in sides)
        lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
        scores[block] = np.einsum("ne,ne->n", left, right) / np.maximum(lengths, 1e-12)
    return scores


def _name(what: str, embedder: Embedder, store: TokenStore, dtype: str) -> str:
    """Everything that determines the rows."""
    return f"{what} {embedder.model.digest()} {store.content_digest} {dtype}"
