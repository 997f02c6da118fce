"""Rounds the student's vectors as an index stores them, to one byte or one bit per number, and lets gradients through.

    int8      divides each dimension's range in the batch into 255 equal steps; a number becomes the middle of its step
    binary    1 / sqrt(width) for a number above 0, -1 / sqrt(width) otherwise
    centred   each dimension's mean in the batch, plus its mean absolute deviation for a number above the mean, minus it
              otherwise

sentence-transformers' `quantize_embeddings` rounds the same way (`int8` and `ubinary`), with ranges from a sample of
vectors. Vectors are rounded at unit length, then scaled back to their own length for objectives that compare lengths.

The gradient passes straight through the rounding (Bengio et al., Estimating or Propagating Gradients Through Stochastic
Neurons, 2013, arXiv 1308.3432). Courbariaux et al., Binarized Neural Networks, NeurIPS 2016, set it to 0 for large numbers, to
stop unbounded ones from growing. That is not done here: unit length bounds these numbers, and a large number on the wrong
side of 0 could never change its bit.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array
from jaxdistill.ops.similarity import unit
from jaxdistill.ops.small_vectors import STEPS

Rounding = Literal["float", "int8", "binary", "centred"]


def rounded(vectors: Float[Array, "b v e"], form: Rounding) -> Float[Array, "b v e"]:
    """The values that the stored vectors decode to, at the length of `vectors`; the gradient is the identity's."""
    if form == "float":
        return vectors
    lengths = jnp.sqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True))
    numbers = unit(vectors)
    numbers = ROUNDED[form](numbers)
    return vectors + jax.lax.stop_gradient(numbers * lengths - vectors)


def _signs(numbers: Float[Array, "b v e"]) -> Float[Array, "b v e"]:
    return jnp.where(numbers > 0, 1.0, -1.0) * numbers.shape[-1] ** -0.5


def _middles(numbers: Float[Array, "b v e"]) -> Float[Array, "b v e"]:
    lowest, highest = (bound(numbers, axis=(0, 1), keepdims=True) for bound in (jnp.min, jnp.max))
    last = STEPS["int8"] - 1  # of the highest number too
    steps = (highest - lowest) / (last + 1)
    codes = jnp.floor((numbers - lowest) / jnp.where(steps == 0, 1.0, steps))
    return lowest + (jnp.minimum(codes, last) + 0.5) * steps


def _around_means(numbers: Float[Array, "b v e"]) -> Float[Array, "b v e"]:
    means = jnp.mean(numbers, axis=(0, 1), keepdims=True)
    away = jnp.mean(jnp.abs(numbers - means), axis=(0, 1), keepdims=True)
    return means + jnp.where(numbers > means, away, -away)


ROUNDED = {"int8": _middles, "binary": _signs, "centred": _around_means}
