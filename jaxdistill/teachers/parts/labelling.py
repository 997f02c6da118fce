"""Labels sentence pairs with other models' scores, computed once, cached and resumable; or reads scores from the text.

A row has one pair (Trans-Encoder, CoSENT), or its sentence with each of several candidates (listwise distillation).

A labeller is a sentence encoder (cosine similarity, in [-1, 1]) or a cross-encoder (sigmoid, in (0, 1)). Where an objective
compares differences of any size, a cross-encoder gives its logit, because the sigmoids of large logits are all 1 in float32, and
a sentence encoder gives the dot product, if its checkpoint compares by it.
Several labellers of one kind are averaged, as in Trans-Encoder's mutual distillation (Liu et al., ICLR 2022, section 2.4). A
sentence encoder reads each distinct sentence once, a cross-encoder each pair once, in its own order.
"""

import logging
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.bars import Advance
from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import Data
from jaxdistill.core import SECOND, InputError, Objective
from jaxdistill.data import targets
from jaxdistill.data.sources import split_specs
from jaxdistill.data.text import TEXT, read
from jaxdistill.data.tokens import TokenStore
from jaxdistill.inference import Embedder
from jaxdistill.inference.embed import refuse_mixed

ROUNDING = 1e-6
"""Fraction by which rounding may push a score above its limit."""
MAX_SCORE = float(np.finfo(np.float32).max)

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
    scores = []
    for labeller in labellers:
        embedder = Embedder(labeller, compute_dtype=compute_dtype)
        dot = labeller.definition.similarity == "dot"
        if dot and not logits:
            log.warning("%s: its checkpoint compares by dot product; its labels are cosines here", labeller.source)
        of_sentences = partial(_of_sentences, dot=dot and logits)
        made = partial(_of_pairs, logits=logits) if labeller.definition.reads_pairs else of_sentences
        scores.append(made(embedder, store, columns, folder, dtype=np.dtype(compute_dtype).name, progress=progress))
    mean = np.asarray(np.mean(np.stack(scores), axis=0, dtype=np.float32))
    log.info(
        "labels: %s pairs by %s, mean %.3f, %s of them below 0",
        f"{mean.size:,}",
        ", ".join(labeller.source for labeller in labellers),
        mean.mean(),
        f"{int((mean < 0.0).sum()):,}",
    )
    return mean


def _of_pairs(
    embedder: Embedder,
    store: TokenStore,
    columns: Sequence[str],
    folder: Path,
    *,
    dtype: str,
    progress: bool,
    logits: bool,
) -> Float[np.ndarray, "rows k"]:
    """A cross-encoder's scores, or its logits."""

    def score(pairs: Sequence[tuple[str, str]], advance: Advance) -> np.ndarray:
        first, second = zip(*pairs, strict=True)
        return embedder.score(first, second, logits=logits, show_progress_bar=advance)[:, None]

    what, made = "labelling pairs with logits" if logits else "labelling pairs", []
    for other in columns[1:]:
        pairs = list(zip(store.texts(columns[0]), store.texts(other), strict=True))
        of = _name(what, embedder, store, (columns[0], other), dtype=dtype)
        made.append(targets.cached_vectors(folder, of, score, pairs, width=1, what=what, progress=progress))
    return np.concatenate([scores[:] for scores in made], axis=1)


def _of_sentences(
    embedder: Embedder,
    store: TokenStore,
    columns: Sequence[str],
    folder: Path,
    *,
    dtype: str,
    progress: bool,
    dot: bool,
) -> Float[np.ndarray, "rows k"]:
    """A sentence encoder's cosine similarities or dot products."""
    # Each distinct sentence is encoded once; `sides` has its row in both columns of a pair.
    row: dict[str, int] = {}
    prompts = embedder.model.role_prompts
    texts = [store.texts(column, prompts) for column in columns]
    sides = [np.array([row.setdefault(text, len(row)) for text in of_column]) for of_column in texts]
    what = "labelling sentences"
    of = _name(what, embedder, store, columns, dtype=dtype)
    vectors = targets.cached_vectors(
        folder,
        of,
        lambda sentences, advance: embedder.encode(sentences, prompt="", show_progress_bar=advance),
        list(row),
        width=embedder.width,
        what=what,
        progress=progress,
    )
    scores = np.zeros((store.rows, len(columns) - 1), np.float32)
    for begin in range(0, store.rows, targets.BLOCK_ROWS):
        block = slice(begin, begin + targets.BLOCK_ROWS)
        left, *others = (np.asarray(vectors[side[block]], np.float64) for side in sides)
        for index, right in enumerate(others):
            lengths = 1.0 if dot else np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
            scores[block, index] = np.einsum("ne,ne->n", left, right) / np.maximum(lengths, 1e-12)
    return scores


def _name(what: str, embedder: Embedder, store: TokenStore, columns: Sequence[str], dtype: str) -> str:
    """Key of the cache: everything that determines the scores."""
    return f"{what} {' '.join(columns)} {embedder.model.digest()} {store.content_digest} {dtype}"


def checked_scores(
    array: Float[np.ndarray, "rows k"], named: str, store: TokenStore, objective: Objective
) -> targets.Selected:
    """The user's own scores of each row's pairs, for the rows that the store keeps.

    Args:
      array: one row per row of the files.
      named: the option that names the scores, for errors.

    Raises:
      InputError: a wrong number of scores per row, a score that is too large, or equal scores everywhere.
    """
    count, largest = len(objective.scored) - 1, objective.largest_label
    if array.shape[1] != count:
        raise InputError(
            f"{named} has {array.shape[1]} numbers per row; this objective reads {count}, one score per pair: give an array of "
            f"shape [rows, {count}], or {count} columns."
        )
    kept = targets.Selected(array, store.input_row)
    scores = kept[:]
    beyond = np.argwhere(np.abs(scores) > largest * (1.0 + ROUNDING))
    if len(beyond):
        index = tuple(beyond[0])
        raise InputError(
            f"{named}: row {store.input_row[index[0]] + 1:,} of data.text has the score {scores[index]:g}, and this objective's "
            f"labels are similarities from {-largest:g} to {largest:g}; divide scores of 0 to 5 by 5, or use a preset of cosent.py, "
            "which reads their order alone."
        )
    if scores.size > 1 and np.ptp(scores) == 0.0:
        raise InputError(
            f"{named}: all scores are {scores[0, 0]:g}, which no objective can learn from; name columns or a file in which they "
            "differ, or a model that scores the pairs (--config=FILE.py:PRESET:teacher=labels)."
        )
    return kept


def scores_of_columns(names: Sequence[str], data: Data, store: TokenStore) -> Float[np.ndarray, "rows k"]:
    """The numbers in `names`' columns of the training text, for all its rows; NaN in rows left out that lack one.

    Raises:
      InputError: a row of the store has no finite number in a column.
    """
    scores = np.full((store.input_rows, len(names)), np.nan, np.float32)
    kept, strange = np.isin(np.arange(store.input_rows), store.input_row), dict[tuple[int, int], str]()
    rows = read(split_specs(data.text), names, numbers=True, cache=data.cache_folder)
    for index, row in enumerate(islice(rows, len(scores))):
        for column, cell in enumerate(row):
            scores[index, column] = _score(cell)
            if kept[index] and cell.strip() and np.isnan(scores[index, column]):
                strange.setdefault((index, column), cell)
    lacking = np.argwhere(np.isnan(scores) & kept[:, None])
    if len(lacking):
        row, column = map(int, lacking[0])
        cell = strange.get((row, column))
        what = f"{cell!r:.40}, not a finite number such as 0.5," if cell else "no score"
        raise InputError(
            f"data.text: row {row + 1:,} has {what} in the column {names[column]!r}; correct or remove the row, or leave out "
            f"--config.teacher.names={','.join(names)} and choose --config=FILE.py:PRESET:teacher=labels, with a model that scores the candidates."
        )
    return scores


def _score(cell: str) -> float:
    """The number in a cell; NaN if it has none, or one beyond float32."""
    # Python also reads 1_5, as 15.
    try:
        number = float(cell.replace("_", "?"))
    except ValueError:
        return np.nan
    return number if abs(number) <= MAX_SCORE else np.nan
