"""Labels sentence pairs with other models' scores, computed once, cached and resumable; or reads scores from the text.

A row has one pair (Trans-Encoder, CoSENT), or its sentence with each of several candidates (listwise distillation).

A labeller is a sentence encoder (cosine similarity, in [-1, 1]) or a cross-encoder (sigmoid, in (0, 1)). Where an objective
compares differences of any size, a cross-encoder gives its logit, because the sigmoids of large logits are all 1 in float32, and
a sentence encoder gives the dot product, if its checkpoint compares by it.
Several labellers of one kind are averaged, as in Trans-Encoder's mutual distillation (Liu et al., ICLR 2022, section 2.4). A
sentence encoder reads each distinct sentence once, a cross-encoder each pair once, in its own order.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import SECOND, InputError, Objective
from jaxdistill.core.bars import Advance
from jaxdistill.data import targets
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT, read, split_specs
from jaxdistill.data.tokens import TokenStore
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.inference import Embedder, refuse_mixed

ROUNDING = 1e-6
"""Fraction by which rounding may push a score above its limit."""

log = logging.getLogger(__name__)


def labels(
    labellers: Sequence[SentenceModel],
    store: TokenStore,
    folder: Path,
    *,
    columns: Sequence[str] = (TEXT, SECOND),
    logits: bool = False,
    compute_dtype: DTypeLike,
    progress: bool,
) -> Float[np.ndarray, "rows k"]:
    """The mean score of each row's pairs over the labellers, in the order of the store.

    Args:
      labellers: sentence encoders or cross-encoders, not both (InputError), because their scores differ in scale.
      store: text with these columns; its tokens are not used.
      folder: cache of scores, and of the vectors they are computed from, keyed by the digest of their inputs.
      columns: the first forms a pair with each of the others.
      logits: cross-encoders give logits instead of scores in (0, 1), and sentence encoders for dot products these.
      progress: show bars.
    """
    refuse_mixed(labellers)
    scores = [
        _scores(labeller, store, folder, columns, logits=logits, compute_dtype=compute_dtype, progress=progress)
        for labeller in labellers
    ]
    mean = np.asarray(np.mean(np.stack(scores), axis=0, dtype=np.float32))
    log.info(
        "labels: %s pairs by %s, mean %.3f, %s of them below 0",
        f"{mean.size:,}",
        ", ".join(labeller.source for labeller in labellers),
        mean.mean(),
        f"{int((mean < 0.0).sum()):,}",
    )
    return mean


def _scores(
    labeller: SentenceModel, store: TokenStore, folder: Path, columns: Sequence[str], *, logits: bool,
    compute_dtype: DTypeLike, progress: bool,
) -> Float[np.ndarray, "rows k"]:  # fmt: skip
    """One labeller's scores of each row's pairs; what the model computes is cached."""
    embedder, dtype = Embedder(labeller, compute_dtype=compute_dtype), np.dtype(compute_dtype).name

    def cached(
        what: str, columns: Sequence[str], texts: Sequence[Any], width: int, compute: Callable[..., Any]
    ) -> np.ndarray:
        # The key has everything that determines the result.
        key = f"{what} {' '.join(columns)} {labeller.digest()} {store.content_digest} {dtype}"
        return targets.cached_vectors(folder, key, compute, texts, width=width, what=what, progress=progress)

    if labeller.definition.reads_pairs:

        def score(pairs: Sequence[tuple[str, str]], advance: Advance) -> np.ndarray:
            first, second = zip(*pairs, strict=True)
            return embedder.score(first, second, logits=logits, show_progress_bar=advance)[:, None]

        what, scores = "labelling pairs with logits" if logits else "labelling pairs", []
        for other in columns[1:]:
            pairs = list(zip(store.texts(columns[0]), store.texts(other), strict=True))
            scores.append(cached(what, (columns[0], other), pairs, 1, score)[:])
        return np.concatenate(scores, axis=1)

    dot = labeller.definition.similarity == "dot"
    if dot and not logits:
        log.warning("%s: its checkpoint compares by dot product; its labels are cosines here", labeller.source)
    # Each distinct sentence is encoded once; `sides` has its row in every column of the pairs.
    index_of: dict[str, int] = {}
    texts = [store.texts(column, labeller.role_prompts) for column in columns]
    sides = [np.array([index_of.setdefault(text, len(index_of)) for text in of_column]) for of_column in texts]

    def encode(sentences: Sequence[str], advance: Advance) -> np.ndarray:
        return embedder.encode(sentences, prompt="", show_progress_bar=advance)

    vectors = cached("labelling sentences", columns, list(index_of), embedder.width, encode)
    scores = np.zeros((store.rows, len(columns) - 1), np.float32)
    for begin in range(0, store.rows, targets.BLOCK_ROWS):
        block = slice(begin, begin + targets.BLOCK_ROWS)
        left, *others = (np.asarray(vectors[side[block]], np.float64) for side in sides)
        for index, right in enumerate(others):
            lengths = 1.0 if dot and logits else np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
            scores[block, index] = np.einsum("ne,ne->n", left, right) / np.maximum(lengths, 1e-12)
    return scores


def checked_scores(
    array: Float[np.ndarray, "rows k"], named: str, store: TokenStore, objective: Objective
) -> targets.Selected:
    """The user's own scores of each row's pairs, for the rows that the store keeps.

    Args:
      array: one row per row of the files.
      named: the option that names the scores, for errors.

    Raises:
      InputError: a wrong number of scores per row, or a score that is too large.
    """
    count, largest = len(objective.scored) - 1, objective.largest_label
    if array.shape[1] != count:
        raise InputError(
            f"{named} has {array.shape[1]} numbers per row; this objective reads {count}, one score per pair: give an array of "
            f"shape [rows, {count}], or {count} columns."
        )
    selected = targets.Selected(array, store.input_row)
    scores = selected[:]
    if scores.size and float(np.abs(scores).max()) > largest * (1.0 + ROUNDING):
        row, _ = np.unravel_index(np.abs(scores).argmax(), scores.shape)
        raise InputError(
            f"{named}: row {store.input_row[row] + 1:,} of data.text has the score {scores[row].max():g}, and this objective's "
            f"labels are similarities from {-largest:g} to {largest:g}; divide scores of 0 to 5 by 5, or use a preset of cosent.py, "
            "which reads their order alone."
        )
    return selected


def scores_of_columns(names: Sequence[str], data: Data, store: TokenStore) -> Float[np.ndarray, "rows k"]:
    """The numbers in `names`' columns of the training text, for all its rows; NaN in rows left out that lack one.

    Raises:
      InputError: a row of the store has no finite number in a column.
    """
    scores = np.full((store.input_rows, len(names)), np.nan, np.float32)
    used = set(store.input_row.tolist())
    rows = read(split_specs(data.text), names, numbers=True, cache=data.cache_folder)
    for index, row in enumerate(islice(rows, len(scores))):
        for column, cell in enumerate(row):
            try:
                scores[index, column] = float(cell)
            except ValueError:
                pass
            if index in used and not np.isfinite(scores[index, column]):
                raise InputError(
                    f"data.text: row {index + 1:,} has {cell!r:.40} in the column {names[column]!r}, not a finite number such as "
                    "0.5; correct or remove the row, or choose models that score the pairs (--config=FILE.py:PRESET:teacher=labels)."
                )
    return scores
