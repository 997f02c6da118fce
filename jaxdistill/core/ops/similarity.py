"""Normalises vectors, compares them by cosine, and scales cosines by 1 / temperature, which is fixed or learned."""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Objective, Params, Positive, Sizes

HIDDEN = -1e9
"""Logit of a candidate that a softmax leaves out. It is finite, because -inf could give NaN gradients."""
MAX_SCALE = 100.0
"""Bound of a learned scale, as in CLIP."""


def unit(x: Float[Array, "... e"]) -> Float[Array, "... e"]:
    """Normalises `x` to unit length; a zero vector stays zero and has a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


def products(x: Float[Array, "n e"], y: Float[Array, "k e"]) -> Float[Array, "n k"]:
    """Dot product of each row of `x` with each row of `y`: their cosine, if both have unit length."""
    return jnp.einsum("ne,ke->nk", x, y, precision=jax.lax.Precision.HIGHEST)


def without_diagonal(logits: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Replaces the diagonal, each sentence's similarity to itself, by `HIDDEN`."""
    return jnp.where(jnp.eye(logits.shape[0], dtype=bool), jnp.float32(HIDDEN), logits)


def spread_out(vectors: Float[Array, "b v e"]) -> Float[Array, ""]:
    """The spread-out regulariser of unit vectors, `M1^2 + max(0, M2 - 1/e)`; mean over the views.
    `M1` is the mean of the cosines of different examples in the same view, `M2` the mean of their squares. Vectors that are
    spread evenly over the sphere have `M1 = 0` and `M2 = 1/e`.
    Source: Zhang et al., Learning Spread-out Local Feature Descriptors, ICCV 2017 (arXiv 1708.06320)."""
    count, views, width = vectors.shape
    pairs = float(max(count * (count - 1), 1))  # a batch of one has none
    off_diagonal = 1.0 - jnp.eye(count, dtype=jnp.float32)
    total = jnp.float32(0.0)
    for view in range(views):
        cosines = off_diagonal * products(vectors[:, view], vectors[:, view])
        mean = jnp.sum(cosines) / pairs
        mean_square = jnp.sum(jnp.square(cosines)) / pairs
        total = total + jnp.square(mean) + jax.nn.relu(mean_square - 1.0 / width)
    return total / views


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithTemperature(Objective):
    """Base class of objectives that divide cosine similarities by a temperature, which is fixed or learned with the student."""

    temperature: Positive = 0.05
    """Divides the cosine similarities. If learned, its initial value. SimCSE: 0.05, Mirror-BERT: 0.04, CKD's code: 0.368 (e^-1)."""
    learned_scale: Literal["none", "log", "linear"] = "none"
    """How 1 / temperature is learned: not at all (`none`), by its logarithm (`log`, as in CKD's code) or directly
    (`linear`, DistilCSE's second stage)."""

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Any]:
        """The initial parameter of a learned scale; none for a fixed one."""
        if self.learned_scale == "log":
            return {"log_scale": jnp.float32(-math.log(self.temperature))}, ()
        if self.learned_scale == "linear":
            return {"scale": jnp.float32(1.0 / self.temperature)}, ()
        return {}, ()

    def scale(self, params: Params) -> Float[Array, ""]:
        """1 / temperature; a learned scale is at most `MAX_SCALE`."""
        if self.learned_scale == "none":
            return jnp.float32(1.0 / self.temperature)
        learned = jnp.exp(params["log_scale"]) if self.learned_scale == "log" else params["scale"]
        return jnp.minimum(learned, MAX_SCALE)
