"""Vectors of sentences and similarities of pairs, in NumPy, with errors for vectors that no score can use."""

from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
from jaxtyping import Bool, Float, Integer, Real

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer


def finite_vectors(embed: Embed, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
    """Vectors of the sentences, not normalised; raises `InputError` for NaN or infinity."""
    vectors = np.asarray(embed(sentences))
    _refuse(~np.all(np.isfinite(vectors), axis=1), "NaN or infinity", sentences)
    return vectors


def unit_vectors(embed: Embed, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
    """Vectors of unit length, in float64; raises `InputError` for NaN, infinity or a zero vector."""
    vectors = unit_rows(finite_vectors(embed, sentences))
    _refuse(~np.any(vectors, axis=1), "a zero vector", sentences)
    return vectors


def unit_rows(vectors: Real[np.ndarray, "n e"]) -> Float[np.ndarray, "n e"]:
    """Vectors scaled to unit length, in float64. Zero vectors, which static models have for unknown words, stay zero."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return vectors / np.where(lengths == 0.0, 1.0, lengths)[:, None]


def vectors_of_pairs(
    embed: Embed, first: Sequence[str], second: Sequence[str], *, roles: Sequence[str] = ()
) -> tuple[Float[np.ndarray, "rows e"], Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Unit vectors of the distinct sentences, and for each pair the rows of its first and of its second sentence. `roles` lists the
    roles of all first, then of all second sentences; a sentence with two roles is embedded once for each."""
    inputs = list(zip([*first, *second], roles or [""] * (len(first) + len(second)), strict=True))  # (sentence, role)
    row_of_input = {distinct: row for row, distinct in enumerate(dict.fromkeys(inputs))}
    if roles:
        embed = partial(cast(RoleEmbed, embed), role=[role for _, role in row_of_input])
    vectors = unit_vectors(embed, [sentence for sentence, _ in row_of_input])
    rows = np.array([row_of_input[key] for key in inputs], np.int64)
    return vectors, rows[: len(first)], rows[len(first) :]


def similarities(model: Embed | Scorer, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Similarity of each pair, a cross-encoder's score or a cosine; raises `InputError` for NaN, infinity or a zero vector."""
    if not isinstance(model, Scorer):
        vectors, left, right = vectors_of_pairs(model, first, second)
        return np.einsum("ne,ne->n", vectors[left], vectors[right])
    scores = np.asarray(model.score(first, second), np.float64)
    _refuse(~np.isfinite(scores), "NaN or infinity", first)
    return scores


def sigmoid(logits: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The sigmoid in float64, without overflow: scores of large logits still rank."""
    return np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))


def _refuse(is_bad: Bool[np.ndarray, " n"], fault: str, sentences: Sequence[str]) -> None:
    """Raises `InputError` if `is_bad` is true for any sentence; the message has the `fault` and the first of them."""
    if is_bad.any():
        raise InputError(
            f"the model gives {fault} for {int(is_bad.sum())} of {len(sentences)} sentences, the first: "
            f"{sentences[int(np.argmax(is_bad))]!r:.62}. A static model has no vector for unknown words; otherwise check weights and pooling."
        )
