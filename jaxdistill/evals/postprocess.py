"""Whitens a model's vectors after encoding.

Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, arXiv 2103.15316, equations 5 to 8:
`(x - mean) U S^(-1/2)`, where the covariance of a text's vectors is `U S U^T`. Difference from its code: directions without variance
are dropped. The mean of a BERT's tokens has such a direction because of the last LayerNorm; the code divides a rounding error by
itself there.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError
from jaxdistill.data.text import read
from jaxdistill.evals.similarity import finite_vectors

MAX_SENTENCES = 100_000
"""Most sentences on which the transform is fitted: 0.3 GB of vectors of 768 numbers."""
MIN_VARIANCE = 1e-9
"""Directions with less than this fraction of the largest variance count as having none: they are float32 rounding errors."""


def whitening(vectors: Float[np.ndarray, "n e"]) -> Callable[[Float[np.ndarray, "m e"]], Float[np.ndarray, "m o"]]:
    """A map of these vectors to zero mean and identity covariance; raises `InputError` if they are too few."""
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
    """The whitening of a model's vectors of a text, of `MAX_SENTENCES` random distinct sentences if it has more."""
    sentences = list(dict.fromkeys(sentence for (sentence,) in read(specs)))
    if len(sentences) > MAX_SENTENCES:
        rows = np.random.default_rng(0).choice(len(sentences), MAX_SENTENCES, replace=False)
        sentences = [sentences[row] for row in rows]
    return whitening(finite_vectors(embed, sentences))
