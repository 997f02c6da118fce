"""The student's vectors as an index stores them, in one byte or one bit a number, with a gradient.

    int8      the range of each dimension in the batch, in 255 equal steps: the middle of a number's step
    binary    one over the root of the width, above 0, and minus that otherwise

Both are the rounding of `quantize_embeddings` of sentence-transformers (its `int8` and `ubinary`), which takes the ranges from a
sample of vectors. Vectors are rounded at unit length, and get their own length back for objectives that compare it.

The gradient goes straight through the rounding, as if it were not there (Bengio et al., Estimating or Propagating Gradients
Through Stochastic Neurons, 2013, arXiv 1308.3432). It is not clipped where a number is large, as in Courbariaux et al.,
Binarized Neural Networks, NeurIPS 2016, so that numbers which nothing bounds stop growing: the unit length bounds these, and a
number that is clipped on the wrong side of 0 would never change its bit.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array
from jaxdistill.ops.norm import unit
from jaxdistill.ops.small_vectors import STEPS

Rounding = Literal["float", "int8", "binary"]


def rounded(vectors: Float[Array, "b v e"], form: Rounding) -> Float[Array, "b v e"]:
    """What the stored vectors stand for, at the length of `vectors`; its gradient is taken for the gradient of `vectors`."""
    if form == "float":
        return vectors
    lengths = jnp.sqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True))
    numbers = unit(vectors)
    numbers = _signs(numbers) if form == "binary" else _middles(numbers)
    return vectors + jax.lax.stop_gradient(numbers * lengths - vectors)


def _signs(numbers: Float[Array, "b v e"]) -> Float[Array, "b v e"]:
    return jnp.where(numbers > 0, 1.0, -1.0) * numbers.shape[-1] ** -0.5


def _middles(numbers: Float[Array, "b v e"]) -> Float[Array, "b v e"]:
    lowest, highest = (bound(numbers, axis=(0, 1), keepdims=True) for bound in (jnp.min, jnp.max))
    steps = (highest - lowest) / STEPS
    codes = jnp.floor((numbers - lowest) / jnp.where(steps == 0, 1.0, steps))
    return lowest + (jnp.minimum(codes, STEPS - 1) + 0.5) * steps  # the highest number is in the last step
