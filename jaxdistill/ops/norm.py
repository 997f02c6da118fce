"""Normalises vectors to unit length."""

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array


def unit(x: Float[Array, "... e"]) -> Float[Array, "... e"]:
    """Normalises `x` to unit length; a zero vector stays zero and has a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))
