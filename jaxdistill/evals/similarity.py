"""Rank correlation, area under ROC and whitening: what several evaluations share. Vectors that are all the same are an error."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from jaxdistill.core import Embed, InputError
from jaxdistill.data.text import read
from jaxdistill.models.vectors import finite_vectors, unit_rows

CONSTANT = 1e-7
"""If similarities span less than this fraction of the largest, only float32 rounding separates them: they are no ranking."""
WHITENING_SENTENCES = 100_000
"""Most sentences on which whitening is fitted: 0.3 GB of vectors of 768 numbers."""
MIN_VARIANCE = 1e-9
"""Directions with less than this fraction of the largest variance count as having none: they are float32 rounding errors."""


class EmbeddingCache:
    """An `Embed` that computes each distinct sentence once and keeps its vector in memory.

    Sets share sentences: SST2 has two thirds of MR's, SICK-E most of SICK-R's. A cached vector may differ from a new one by
    rounding, which depends on the other sentences of a batch. All tasks of `evaluate` together keep 300,000 vectors: 0.5 GB for
    MiniLM, 1.3 GB for vectors of 1,024 numbers.
    """

    def __init__(self, embed: Embed):
        self._embed, self._vectors = embed, {}

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            self._vectors.update(zip(new, np.asarray(self._embed(new)), strict=True))
        vectors = [self._vectors[sentence] for sentence in sentences]
        return np.stack(vectors) if vectors else np.asarray(self._embed([]))


def whitening(vectors: Float[np.ndarray, "n e"]) -> Callable[[Float[np.ndarray, "m e"]], Float[np.ndarray, "m o"]]:
    """A map of these vectors to zero mean and identity covariance; raises `InputError` if they are too few.

    Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, arXiv 2103.15316, equations 5 to 8:
    `(x - mean) U S^(-1/2)`, where the covariance of a text's vectors is `U S U^T`. Difference from its code: directions without
    variance are dropped. The mean of a BERT's tokens has such a direction because of the last LayerNorm; the code divides a
    rounding error by itself there.
    """
    if len(vectors) <= vectors.shape[1]:
        raise InputError(
            f"postprocess=whiten needs more distinct sentences than the {vectors.shape[1]} numbers of a vector; "
            f"postprocess_text has {len(vectors)}."
        )
    vectors = np.asarray(vectors, np.float64)
    variances, directions = np.linalg.eigh(np.cov(vectors, rowvar=False))
    varies = variances > MIN_VARIANCE * variances[-1]
    mean, kernel = vectors.mean(axis=0), directions[:, varies] / np.sqrt(variances[varies])
    return lambda others: ((others - mean) @ kernel).astype(np.float32)


def whitening_on(embed: Embed, specs: Sequence[str]) -> Callable[[np.ndarray], np.ndarray]:
    """The whitening of a model's vectors of a text, of `WHITENING_SENTENCES` random distinct sentences if it has more."""
    sentences = list(dict.fromkeys(sentence for (sentence,) in read(specs)))
    if len(sentences) > WHITENING_SENTENCES:
        rows = np.random.default_rng(0).choice(len(sentences), WHITENING_SENTENCES, replace=False)
        sentences = [sentences[row] for row in rows]
    return whitening(finite_vectors(embed, sentences))


def spearman(reference: Real[np.ndarray, " n"], similarities: Float[np.ndarray, " n"], *, what: str) -> float:
    """Spearman's rank correlation, in [-1, 1]; ties get their mean rank.

    Args:
      what: name of the pairs, for the error if one side is constant, so that the correlation is undefined.
    """
    if _is_constant(reference):
        raise InputError(f"{what}: all {len(reference)} pairs have the same reference score, so they have no ranking.")
    refuse_collapsed(similarities, f"{what}: the model finds all {len(similarities)} pairs")
    from scipy import stats  # imported here: it takes over a second

    correlation: Any = stats.spearmanr(reference, similarities)
    return float(correlation.statistic)


def area_under_roc(labels: Real[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Probability, in [0, 1], that a pair of label 1 scores above a pair of label 0; ties count half."""
    positives, negatives = scores[labels == 1], scores[labels == 0]
    if not len(positives) or not len(negatives):
        raise InputError(f"{len(positives)} pairs of label 1 and {len(negatives)} of label 0; the area needs both.")
    from scipy import stats  # imported here: it takes over a second

    test: Any = stats.mannwhitneyu(positives, negatives, method="asymptotic")
    return float(test.statistic / (len(positives) * len(negatives)))


def refuse_collapsed(similarities: Float[np.ndarray, " n"], begin: str) -> None:
    """Raises `InputError` if all similarities are the same; `begin` is the start of the message."""
    if _is_constant(similarities):
        what = f"equally similar ({similarities[0]:.4g}): it has collapsed to one vector or one score for everything"
        raise InputError(f"{begin} {what}.")


def refuse_same_vectors(vectors: Float[np.ndarray, "n e"], texts: Sequence[str], begin: str) -> None:
    """Raises `InputError` if all vectors point the same way although texts differ; `begin` is the start of the message."""
    if len(set(texts)) > 1:
        unit = unit_rows(vectors)
        refuse_collapsed(np.einsum("ne,e->n", unit, unit[np.argmax(np.any(vectors, axis=1))]), begin)


def _is_constant(scores: Real[np.ndarray, " n"]) -> bool:
    return bool(np.ptp(scores) <= CONSTANT * np.abs(scores).max())
