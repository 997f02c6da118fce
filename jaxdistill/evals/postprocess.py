"""Transforms a model's vectors after encoding, by whitening or a normalizing flow fitted on a text.

Whitening: Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, arXiv 2103.15316,
equations 5 to 8: `(x - mean) U S^(-1/2)`, where the covariance of the text's vectors is `U S U^T`. Difference from its
code: directions without variance are dropped. The mean of a BERT's tokens has such a direction because of the last LayerNorm;
the code divides a rounding error by itself there. The flow is in `evals/flow.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.data.sources import content_digest, read
from jaxdistill.evals.flow import fitted_flow
from jaxdistill.evals.similarity import finite_vectors

Transform = Callable[[Float[np.ndarray, "n e"]], Float[np.ndarray, "n o"]]

FITTING_SENTENCES = 100_000
"""Most sentences on which a transform is fitted: 0.3 GB of vectors of 768 numbers."""
LEAST_VARIANCE = 1e-9
"""Directions with less than this fraction of the largest variance count as having none: they are float32 rounding errors."""


def fitted_whitening(vectors: Float[np.ndarray, "n e"]) -> Transform:
    """A map of these vectors to zero mean and identity covariance; drops directions without variance."""
    vectors = np.asarray(vectors, np.float64)
    variances, directions = np.linalg.eigh(np.cov(vectors, rowvar=False))
    varies = variances > LEAST_VARIANCE * variances[-1]
    mean, kernel = vectors.mean(axis=0), directions[:, varies] / np.sqrt(variances[varies])
    return lambda vectors: ((vectors - mean) @ kernel).astype(np.float32)


METHODS: Mapping[str, Callable[[Float[np.ndarray, "n e"]], Transform]] = {
    "whiten": fitted_whitening,
    "flow": fitted_flow,
}


class Postprocessing(NamedTuple):
    """A transform of vectors and the text on which to fit it; the default is no transform."""

    method: str = ""
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method}, fitted on {', '.join(self.sources)}" if self.method else "none"

    def digests(self) -> list[str]:
        """Digests of what determines scores: the method and the text."""
        return [self.method, content_digest(self.sources)] if self.method else []

    def of(self, embed: Embed) -> Callable[[Embed], Embed]:
        """A function that appends the transform, fitted on this model's vectors, to an `embed` of the model."""
        if not self.method:
            return lambda embed: embed
        if isinstance(embed, Scorer):
            raise InputError(
                f"--postprocess={self.method} transforms vectors; cross-encoders and ensembles have none, so leave it out."
            )
        transform = cache(partial(self._fitted, embed))  # fitted on first use
        return lambda embed: lambda sentences: transform()(np.asarray(embed(sentences)))

    def _fitted(self, embed: Embed) -> Transform:
        """Fits the transform; raises `InputError` if the text is too short or a vector is not finite."""
        vectors = finite_vectors(embed, fitting_text(self.sources, content_digest(self.sources)))
        if len(vectors) <= vectors.shape[1]:
            raise InputError(
                f"--postprocess={self.method} needs more distinct sentences than the {vectors.shape[1]} numbers of a vector; "
                f"--postprocess_text has {len(vectors)}."
            )
        return METHODS[self.method](vectors)


@cache
def fitting_text(specs: Sequence[str], digest: str) -> list[str]:
    """Distinct sentences of a text; `FITTING_SENTENCES` random ones if there are more.

    Args:
      digest: digest of the text's content; part of the cache key, so that a changed text is read again.
    """
    sentences = list(dict.fromkeys(sentence for (sentence,) in read(specs)))
    if len(sentences) <= FITTING_SENTENCES:
        return sentences
    drawn = np.random.default_rng(0).choice(len(sentences), FITTING_SENTENCES, replace=False)
    return [sentences[row] for row in drawn]
