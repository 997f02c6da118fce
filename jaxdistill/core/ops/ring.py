"""Computes softmax statistics over a long queue of keys without storing the logits.

For queries `q` and keys `x_j`, losses need the log-sum-exp of `q . x`, and the average of the keys under
`softmax(q . x)`. The second is the gradient of the first:

    d lse(q) / d q = sum_j softmax(q . x)_j x_j

One pass over blocks of keys with running maxima (the recurrence of online softmax) gives both. `[b, k]` is never stored,
and the backward pass is free: it uses the average from the forward pass. Losses follow by plain arithmetic:

    InfoNCE with the positive t, temperature 1/c                lse(c s) - c s . t
    cross-entropy to p = softmax(t . x / teacher_temperature)   lse(s / tau) - s . (sum_j p_j x_j) / tau

The queue is a ring of batches `[c, b, e]`, sharded over `b`, and already holds the batch: writing before reading avoids
a copy of the ring. Each device scans its own keys for all sentences of the batch, and one reduce-scatter merges the
partial results. The traffic between devices depends on the batch size, not on the queue.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Integer

from jaxdistill.core import BATCH_AXES, Array, platform

MIN_LOGIT = -1e15
"""Start of the running maximum: below every product, and finite, so that subtracting it never gives NaN."""
MASKED = -1e30
"""Added to products with rows that are not keys. So far below `MIN_LOGIT` that their weight, exp(MASKED - maximum), is 0."""
BLOCK_ROWS = 1024
"""Keys that a TPU or CPU processes at a time; bounds the memory."""
BLOCK_ROWS_OF_GPUS = 16384
"""Keys that a GPU processes at a time: with 1,024, the overhead of a block far exceeds its arithmetic (docs/performance.md)."""


class Ring(NamedTuple):
    """A first-in-first-out queue of teacher vectors, stored as a ring of batches; a block is one batch."""

    ring: Float[Array, "c b e"]
    """`c` batches; `dynamic_update_slice` replaces the oldest. Sharded over `b`, so that a write needs no
    communication. Queries are multiplied with keys in its dtype; sums and softmax are float32."""
    pushes: Integer[Array, ""]
    """Batches written so far. The oldest block is `pushes mod c`."""


def push(ring: Ring, rows: Float[Array, "b e"]) -> Ring:
    """Overwrites the oldest batch with `rows`."""
    oldest = ring.pushes % ring.ring.shape[0]
    # All start indices must have the dtype of `oldest`.
    zero = jnp.zeros_like(oldest)
    written = jax.lax.dynamic_update_slice(ring.ring, rows[None].astype(ring.ring.dtype), (oldest, zero, zero))
    return Ring(written, ring.pushes + 1)


def softmax_over_ring(
    queries: Float[Array, "b q e"],
    ring: Ring,
    own_keys: Float[Array, "b e"] | None = None,
    *,
    expired: tuple[int, int],
    starts_full: bool,
) -> tuple[Float[Array, "b q"], Float[Array, "b q e"]]:
    """Log-sum-exp of each query's products with the keys, and the average of the keys under their softmax.

    Only the log-sum-exp has a gradient, and only with respect to the queries: this gradient is the average. The
    context's mesh splits the batch over its axes `slice` and `data`.

    Args:
      queries: vectors already divided by their temperatures.
      ring: the queue after the batch is written; the block after the newest one is the oldest.
      own_keys: one key per example. If given, the keys of an example are the queue without the batch, and its own; None: the
        queue with the batch.
      expired: range (start, stop) of rows of the oldest block that are no longer keys.
      starts_full: whether the initial blocks, before anything is written, hold keys.
    """
    block_rows = BLOCK_ROWS_OF_GPUS if platform(jax.sharding.get_abstract_mesh()) == "gpu" else BLOCK_ROWS
    local = partial(_local, expired=expired, starts_full=starts_full, block_rows=block_rows)
    sharded = jax.shard_map(
        local,
        in_specs=(P(BATCH_AXES), P(None, BATCH_AXES), P(), None if own_keys is None else P(BATCH_AXES)),
        out_specs=(P(BATCH_AXES), P(BATCH_AXES)),
        check_vma=False,
    )
    return _with_gradient(sharded, queries, ring.ring, ring.pushes, own_keys)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(local, queries, rows, pushes, own_keys):
    return local(queries, rows, pushes, own_keys)


def _forward(local, queries, rows, pushes, own_keys):
    lse, average = local(queries, rows, pushes, own_keys)
    return (lse, average), average


def _backward(local, average, cotangents):
    # d lse / d q is the average itself. The average has no gradient, so its cotangent is ignored.
    return average * cotangents[0][..., None], None, None, None


_with_gradient.defvjp(_forward, _backward)


def _local(queries, ring, pushes, own_keys, *, expired, starts_full, block_rows):
    """Computation of one device on `queries [b/devices, q, e]`, `ring [c, b/devices, e]`, `own_keys [b/devices, e]`."""
    blocks, b, e = ring.shape
    q = queries.shape[1]
    flat = queries.reshape(b * q, e)
    # Queries travel, keys stay: the batch is small, the queue is not.
    all_queries = jax.lax.all_gather(flat, BATCH_AXES, tiled=True)
    newest = (pushes - 1) % blocks
    # Rows are numbered over all devices, because `expired` counts rows of the whole block.
    row = jax.lax.axis_index(BATCH_AXES) * b + jnp.arange(b)
    block = jnp.arange(blocks, dtype=jnp.int32)
    is_masked = (block == (newest + 1) % blocks)[:, None] & ((row >= expired[0]) & (row < expired[1]))[None, :]
    # Blocks that hold nothing yet.
    is_masked = is_masked | (block >= (blocks if starts_full else pushes))[:, None]
    if own_keys is not None:
        is_masked = is_masked | (block == newest)[:, None]
    # Before the loop, because the compiler would repeat it inside for every query.
    mask = jnp.where(is_masked, MASKED, 0.0)

    def absorb_blocks(carry, start, count):
        keys, key_mask = (jax.lax.dynamic_slice_in_dim(x, start, count, axis=0) for x in (ring, mask))
        return _absorb(carry, all_queries, keys.reshape(count * b, e), key_mask.reshape(count * b))

    maximum = jnp.full(all_queries.shape[0], MIN_LOGIT, jnp.float32)
    total = jnp.zeros(all_queries.shape[0], jnp.float32)
    carry = (maximum, total, jnp.zeros(all_queries.shape, jnp.float32))
    # Slices have a static size: the loop takes `span` blocks at a time, and the rest is absorbed after it.
    span = min(max(block_rows // b, 1), blocks)
    rounds = blocks // span
    carry = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(rounds), lambda i, carry: absorb_blocks(carry, i * jnp.int32(span), span), carry
    )
    if blocks % span:
        carry = absorb_blocks(carry, jnp.int32(rounds * span), blocks % span)
    # Merges the devices' partial results; each device receives those of its own sentences. Both sums are in one array, so that one
    # collective suffices.
    maximum, total, weighted = carry
    highest = jax.lax.pmax(maximum, BATCH_AXES)
    scale = jnp.exp(maximum - highest)
    sums = jnp.concatenate([weighted * scale[:, None], (total * scale)[:, None]], axis=1)
    sums = jax.lax.psum_scatter(sums, BATCH_AXES, scatter_dimension=0, tiled=True)
    maximum = jax.lax.dynamic_slice_in_dim(highest, jax.lax.axis_index(BATCH_AXES) * b * q, b * q)
    total, weighted = sums[:, -1], sums[:, :-1]
    if own_keys is not None:  # each device adds its own sentences' keys
        own = jnp.repeat(own_keys, q, axis=0)
        logits = jnp.sum(flat * own, axis=-1)
        highest = jnp.maximum(maximum, logits)
        scale, weight = jnp.exp(maximum - highest), jnp.exp(logits - highest)
        maximum, total = highest, total * scale + weight
        weighted = weighted * scale[:, None] + weight[:, None] * own
    return (maximum + jnp.log(total)).reshape(b, q), (weighted / total[:, None]).reshape(b, q, e)


def _absorb(carry, queries, keys, mask):
    """Online softmax: rescales the `carry` of maximum [q], sum of exponentials [q] and weighted sum of keys [q, e] to the new maximum,
    and adds the keys' part."""
    maximum, total, weighted = carry
    # One addition masks maximum and weights alike, because the maximum is never below MIN_LOGIT.
    logits = _products("qe,ke->qk", queries, keys) + mask[None, :]
    new = jnp.maximum(maximum, jnp.max(logits, axis=1))
    weights = jnp.exp(logits - new[:, None])
    scale = jnp.exp(maximum - new)
    keys_sum = _products("qk,ke->qe", weights, keys)
    return new, total * scale + jnp.sum(weights, axis=1), weighted * scale[:, None] + keys_sum


def _products(equation: str, x: Float[Array, "q _"], keys: Float[Array, "k e"]) -> Float[Array, "q _"]:
    """The einsum in the dtype of the keys, with float32 sums.

    Not `dense.product`, which takes the keys transposed: a CPU's bf16 units are then slower than float32.
    """
    exact = jax.lax.Precision.HIGHEST if keys.dtype == jnp.float32 else None
    return jnp.einsum(equation, x.astype(keys.dtype), keys, precision=exact, preferred_element_type=jnp.float32)
