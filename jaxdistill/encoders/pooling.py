"""Pools token vectors of packed rows into sentence vectors.

Every function works within groups, so devices that hold whole groups need not communicate. A sentence without tokens
becomes zeros.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.encoders.architecture import Pooling


def counted(tokens: Tokens, dropped: int) -> Tokens:
    """Removes tokens with the id `dropped` from their sentences; -1: keeps all."""
    return tokens if dropped < 0 else tokens._replace(owner=jnp.where(tokens.ids == dropped, -1, tokens.owner))


def pooled(pooling: Pooling, states: list[Float[Array, "g r l d"]], tokens: Tokens) -> Float[Array, "g n p"]:
    """Sentence vectors from the hidden states of all layers; for `pooler`, the first token, as for `cls`."""
    x = combined(pooling, states)
    g, r, l, width = x.shape
    flat = x.reshape(g, r * l, width)
    owner = tokens.owner.reshape(g, r * l)
    if pooling.tokens == "max":
        return max_of_tokens(flat, owner, tokens.first, l)
    if pooling.tokens in ("cls", "pooler"):
        return tokens_at(flat, owner, tokens.first)
    # Membership as 0 and 1: sums over sentences become matrix products, without a scatter, forward or backward.
    member = (owner[:, None, :] == jnp.arange(tokens.first.shape[-1])[None, :, None]).astype(jnp.float32)
    if pooling.tokens == "last":
        return tokens_at(flat, owner, tokens.first + jnp.sum(member, axis=-1).astype(tokens.first.dtype) - 1)
    if pooling.tokens == "weightedmean":
        member = member * (tokens.position.reshape(g, 1, r * l) + 1).astype(jnp.float32)
    return sum_of_tokens(flat, member, root=pooling.tokens == "mean_sqrt_len")


def combined(pooling: Pooling, states: list[Float[Array, "g r l d"]]) -> Float[Array, "g r l p"]:
    """The chosen layers combined into one, token by token."""
    chosen = [states[index] for index in pooling.indices(len(states) - 1)]
    if len(chosen) == 1:
        return chosen[0]
    if pooling.combine == "concat":
        return jnp.concatenate(chosen, axis=-1)
    if pooling.combine == "max":
        return jnp.max(jnp.stack(chosen), axis=0)
    return sum(chosen[1:], chosen[0]) / len(chosen)


def sum_of_tokens(x: Float[Array, "g t d"], weights: Float[Array, "g n t"], *, root: bool) -> Float[Array, "g n d"]:
    """The weighted sum of each sentence's tokens, divided by the sum of the weights or by its square root."""
    count = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)
    # Highest precision: products with 0 and 1 must keep every bit of x.
    total = jnp.einsum("gnt,gtd->gnd", weights, x, precision=jax.lax.Precision.HIGHEST)
    return total / (jnp.sqrt(count) if root else count)


def tokens_at(
    x: Float[Array, "g t d"], owner: Integer[Array, "g t"], slots: Integer[Array, "g n"]
) -> Float[Array, "g n d"]:
    """The vector at one slot per sentence; zeros if another sentence owns the slot."""
    slots = jnp.maximum(slots, 0)
    present = jnp.take_along_axis(owner, slots, axis=1) == jnp.arange(slots.shape[-1])[None, :]
    return jnp.where(present[..., None], jnp.take_along_axis(x, slots[..., None], axis=1), 0.0)


def max_of_tokens(
    x: Float[Array, "g t d"], owner: Integer[Array, "g t"], first: Integer[Array, "g n"], longest: int
) -> Float[Array, "g n d"]:
    """Elementwise maximum over each sentence's tokens: those among the `longest` slots from its first one."""
    g, n = first.shape
    slots = jnp.minimum(first[..., None] + jnp.arange(longest)[None, None, :], x.shape[1] - 1).reshape(g, n * longest)
    in_sentence = jnp.take_along_axis(owner, slots, axis=1).reshape(g, n, longest) == jnp.arange(n)[None, :, None]
    gathered = jnp.take_along_axis(x, slots[..., None], axis=1).reshape(g, n, longest, -1)
    largest = jnp.max(jnp.where(in_sentence[..., None], gathered, -jnp.inf), axis=2)
    return jnp.where(jnp.any(in_sentence, axis=2)[..., None], largest, 0.0)
