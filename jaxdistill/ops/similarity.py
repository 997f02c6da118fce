"""Similarities of sentences inside a batch."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array

HIDDEN = -1e9
"""Logit of a candidate that a softmax leaves out; finite, so that gradients are."""


def products(x: Float[Array, "n e"], y: Float[Array, "k e"]) -> Float[Array, "n k"]:
    """Dot product of each row of `x` with each row of `y`: their cosine, if both have unit length."""
    return jnp.einsum("ne,ke->nk", x, y, precision=jax.lax.Precision.HIGHEST)


def without_own(logits: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Hides each sentence from its own candidates: the diagonal is `HIDDEN`."""
    return jnp.where(jnp.eye(logits.shape[0], dtype=bool), jnp.float32(HIDDEN), logits)


def spread_out(vectors: Float[Array, "b v e"]) -> Float[Array, ""]:
    """Penalty on cosines between different examples in the same view; mean over the views.

    With `M1` the mean of these cosines and `M2` the mean of their squares, `M1^2 + max(0, M2 - 1/e)`: vectors that are
    spread evenly over the sphere have `M1 = 0` and `M2 = 1/e`.

    Args:
      vectors: of unit length.

    Source: Zhang et al., Learning Spread-out Local Feature Descriptors, ICCV 2017 (arXiv 1708.06320).
    """
    count, views, width = vectors.shape
    pairs = float(max(count * (count - 1), 1))
    other = 1.0 - jnp.eye(count, dtype=jnp.float32)
    terms = jnp.float32(0.0)
    for view in range(views):
        cosines = other * products(vectors[:, view], vectors[:, view])
        first, second = jnp.sum(cosines) / pairs, jnp.sum(jnp.square(cosines)) / pairs
        terms = terms + jnp.square(first) + jax.nn.relu(second - 1.0 / width)
    return terms / views
