"""Vectors of unit length."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def unit(x: Float[Array, "... e"]) -> Float[Array, "... e"]:
    """`x` at unit length; a zero vector stays zero, with a finite gradient."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))
