"""Computes vectors of sentences, similarities of pairs, and the rank correlation of two lists of scores.

All evaluations use it. Useless vectors (NaN, zero, or all the same) are an error, never a NaN score.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Integer, Real

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer
from jaxdistill.data.text import read

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


def finite_vectors(embed: Embed, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
    """Vectors of the sentences, not normalised; raises `InputError` for a wrong number of vectors, NaN or infinity."""
    vectors = np.asarray(embed(sentences))
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise InputError(f"{len(sentences)} sentences gave vectors of shape {vectors.shape}; one row each is needed.")
    _refuse(~np.all(np.isfinite(vectors), axis=1), "NaN or infinity", sentences)
    return vectors


def unit_or_zero_vectors(embed: Embed, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
    """Vectors of unit length, in float64; zero vectors, which static models give for texts of unknown words, stay zero.

    Raises `InputError` as `finite_vectors`.
    """
    return unit_rows(finite_vectors(embed, sentences))


def unit_vectors(embed: Embed, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
    """Vectors of unit length, in float64; raises `InputError` as `finite_vectors`, or for a zero vector."""
    vectors = unit_or_zero_vectors(embed, sentences)
    _refuse(~np.any(vectors, axis=1), "a zero vector", sentences)
    return vectors


def unit_rows(vectors: Real[np.ndarray, "n e"]) -> Float[np.ndarray, "n e"]:
    """Normalises vectors to unit length, in float64; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return vectors / np.where(lengths == 0.0, 1.0, lengths)[:, None]


def all_similarities(first: Any, second: Any, similarity: str = "cosine") -> Float[np.ndarray, "n k"]:
    """`cosine` or `dot` of each vector of `first` with each of `second`, float32; a single vector counts as one row."""
    sides = [np.atleast_2d(np.asarray(side)) for side in (first, second)]
    if any(side.dtype.kind not in "fiu" for side in sides) or sides[0].shape[1:] != sides[1].shape[1:]:
        shapes = " and ".join(f"{side.dtype} {side.shape}" for side in sides)
        raise InputError(f"similarity takes vectors of one width, not {shapes}; encode sentences first, by one model.")
    if similarity == "dot":
        return (sides[0].astype(np.float64) @ sides[1].astype(np.float64).T).astype(np.float32)
    return np.clip(unit_rows(sides[0]) @ unit_rows(sides[1]).T, -1.0, 1.0).astype(np.float32)


def cosines(embed: Embed, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Cosine similarity of each pair, in [-1, 1]. Each distinct sentence is embedded once, all in one call."""
    vectors, left, right = vectors_of_pairs(embed, first, second)
    return np.einsum("ne,ne->n", vectors[left], vectors[right])


def vectors_of_pairs(
    embed: Embed, first: Sequence[str], second: Sequence[str], *, roles: Sequence[str] = ()
) -> tuple[Float[np.ndarray, "rows e"], Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Unit vectors of the distinct sentences in order of appearance, first sentences first, and the two rows of each pair.

    Args:
      roles: roles of all first sentences, then of all second ones, for which `embed` must be a `RoleEmbed`; a sentence in two
        roles is embedded twice. Empty: sentences have no roles.
    """
    texts = list(zip([*first, *second], roles or [""] * (len(first) + len(second)), strict=True))
    row = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    read = partial(cast(RoleEmbed, embed), role=[role for _, role in row]) if roles else embed
    vectors = unit_vectors(read, [sentence for sentence, _ in row])
    left, right = np.split(np.array([row[text] for text in texts], np.int64), [len(first)])
    return vectors, left, right


def similarities(model: Embed | Scorer, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Similarity of each pair: a cross-encoder's score, or otherwise the cosine; raises `InputError` for NaN or infinity."""
    if not isinstance(model, Scorer):
        return cosines(model, first, second)
    scores = np.asarray(model.score(first, second), np.float64)
    _refuse(~np.isfinite(scores), "NaN or infinity", first)
    return scores


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


def _refuse(bad: np.ndarray, what: str, sentences: Sequence[str]) -> None:
    if bad.any():
        example = sentences[int(np.argmax(bad))][:60]
        raise InputError(
            f"the model gives {what} for {int(bad.sum())} of {len(sentences)} sentences, the first: {example!r}. "
            "A static model has no vector for a text of unknown words; otherwise the weights or the pooling are wrong."
        )
