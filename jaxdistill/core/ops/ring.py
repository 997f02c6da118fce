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
"""Added to a query's products with rows that are not keys; far below `MIN_LOGIT`, so that exp(MASKED - maximum) is 0."""
BLOCK_ROWS = 1024
"""Keys that a TPU or CPU processes at a time; bounds the memory."""
BLOCK_ROWS_OF_GPUS = 16384
"""Keys that a GPU processes at a time: with 1,024, the overhead of a block far exceeds its arithmetic (docs/performance.md)."""


class Ring(NamedTuple):
    """A first-in-first-out queue of teacher vectors, stored as a ring of blocks; a block is one batch."""

    ring: Float[Array, "c b e"]
    """`c` blocks, of which `push` overwrites the oldest. Sharded over `b`, so that a write needs no communication.
    Queries are multiplied with keys in its dtype; sums and softmax are float32."""
    pushes: Integer[Array, ""]
    """Batches written so far. The oldest block is `pushes mod c`."""


def push(ring: Ring, rows: Float[Array, "b e"]) -> Ring:
    """Overwrites the oldest block with the batch `rows`."""
    oldest = ring.pushes % ring.ring.shape[0]
    # All start indices must have the dtype of `oldest`.
    zero = jnp.zeros_like(oldest)
    written = jax.lax.dynamic_update_slice(ring.ring, rows[None].astype(ring.ring.dtype), (oldest, zero, zero))
    return Ring(written, ring.pushes + 1)


def softmax_over_ring(
    queries: Float[Array, "b q e"],
    ring: Ring,
    example_keys: Float[Array, "b e"] | None = None,
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
      example_keys: one key per example, which replaces the batch: the example's queries then see the queue without the
        batch, and this key. None: they see the queue with the batch.
      expired: range (start, stop) of rows of the oldest block that are no longer keys.
      starts_full: whether the initial blocks, before anything is written, hold keys.
    """
    block_rows = BLOCK_ROWS_OF_GPUS if platform(jax.sharding.get_abstract_mesh()) == "gpu" else BLOCK_ROWS
    on_device = partial(_softmax_on_device, expired=expired, starts_full=starts_full, block_rows=block_rows)
    sharded = jax.shard_map(
        on_device,
        in_specs=(P(BATCH_AXES), P(None, BATCH_AXES), P(), None if example_keys is None else P(BATCH_AXES)),
        out_specs=(P(BATCH_AXES), P(BATCH_AXES)),
        check_vma=False,  # the loop's first statistics are equal on all devices, later ones are not
    )
    arguments = jax.lax.stop_gradient((queries, ring.ring, ring.pushes, example_keys))
    lse, average = sharded(*arguments)
    # The added term is 0, and its gradient is the average. Differentiating the loop instead would store the logits.
    return lse + jnp.sum(average * (queries - arguments[0]), axis=-1), average


def _softmax_on_device(queries, ring, pushes, example_keys, *, expired, starts_full, block_rows):
    """One device's part of `softmax_over_ring`: its arrays are shards, in which `b` is the batch size / devices."""
    blocks, b, e = ring.shape
    q = queries.shape[1]
    queries = queries.reshape(b * q, e)
    # Queries travel, keys stay: the batch is small, the queue is not.
    all_queries = jax.lax.all_gather(queries, BATCH_AXES, tiled=True)
    is_key = _is_key(ring, pushes, expired=expired, starts_full=starts_full, with_batch=example_keys is None)
    # Before the loop, because the compiler would repeat it inside for every query.
    mask = jnp.where(is_key, 0.0, MASKED)

    def absorb_blocks(statistics, start, count):
        keys, key_mask = (jax.lax.dynamic_slice_in_dim(x, start, count, axis=0) for x in (ring, mask))
        return _absorb(statistics, all_queries, keys.reshape(count * b, e), key_mask.reshape(count * b))

    maximum = jnp.full(len(all_queries), MIN_LOGIT, jnp.float32)
    statistics = (maximum, jnp.zeros_like(maximum), jnp.zeros(all_queries.shape, jnp.float32))
    # Slices have a static size: the loop takes `span` blocks at a time; the remaining blocks, fewer than `span`, follow it.
    span = min(max(block_rows // b, 1), blocks)
    rounds = blocks // span
    statistics = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(rounds), lambda i, carry: absorb_blocks(carry, i * jnp.int32(span), span), statistics
    )
    if blocks % span:
        statistics = absorb_blocks(statistics, jnp.int32(rounds * span), blocks % span)
    maximum, total, weighted = _merged(statistics, b * q)
    if example_keys is not None:  # one more step of online softmax, with another key for each query
        keys = jnp.repeat(example_keys, q, axis=0)
        logits = jnp.sum(queries * keys, axis=-1)
        highest = jnp.maximum(maximum, logits)
        scale = jnp.exp(maximum - highest)
        weight = jnp.exp(logits - highest)
        total = total * scale + weight
        weighted = weighted * scale[:, None] + weight[:, None] * keys
        maximum = highest
    return (maximum + jnp.log(total)).reshape(b, q), (weighted / total[:, None]).reshape(b, q, e)


def _is_key(ring, pushes, *, expired, starts_full, with_batch):
    """Whether each row of the device's `ring [c, b, e]` is a key, as `[c, b]`; for the options see `softmax_over_ring`."""
    blocks, b, _ = ring.shape
    block = jnp.arange(blocks, dtype=jnp.int32)[:, None]
    # Rows are numbered over all devices, because `expired` counts rows of the whole block.
    row = (jax.lax.axis_index(BATCH_AXES) * b + jnp.arange(b))[None]
    newest = (pushes - 1) % blocks
    is_oldest = block == (newest + 1) % blocks
    is_key = ~(is_oldest & (row >= expired[0]) & (row < expired[1]))
    if not starts_full:
        is_key = is_key & (block < pushes)  # other blocks hold nothing yet
    return is_key if with_batch else is_key & (block != newest)


def _merged(statistics, count):
    """Reduces the statistics of `_absorb` over the devices; each device gets the result for its own `count` queries."""
    maximum, total, weighted = statistics
    highest = jax.lax.pmax(maximum, BATCH_AXES)
    scale = jnp.exp(maximum - highest)
    # Both sums are in one array, so that one collective suffices.
    sums = jnp.concatenate([weighted * scale[:, None], (total * scale)[:, None]], axis=1)
    sums = jax.lax.psum_scatter(sums, BATCH_AXES, scatter_dimension=0, tiled=True)
    maximum = jax.lax.dynamic_slice_in_dim(highest, jax.lax.axis_index(BATCH_AXES) * count, count)
    return maximum, sums[:, -1], sums[:, :-1]


def _absorb(statistics, queries, keys, mask):
    """One step of online softmax: rescales each query's statistics to its new maximum, and adds the keys' part.
    Statistics are the maximum logit `[q]`, and relative to it sums of exponentials `[q]` and of keys weighted by them `[q, e]`."""
    maximum, total, weighted = statistics
    # One addition masks maximum and weights alike, because the maximum is never below MIN_LOGIT.
    logits = _products("qe,ke->qk", queries, keys) + mask[None, :]
    highest = jnp.maximum(maximum, jnp.max(logits, axis=1))
    weights = jnp.exp(logits - highest[:, None])
    scale = jnp.exp(maximum - highest)
    total = total * scale + jnp.sum(weights, axis=1)
    weighted = weighted * scale[:, None] + _products("qk,ke->qe", weights, keys)
    return highest, total, weighted


def _products(equation: str, x: Float[Array, "q _"], keys: Float[Array, "k e"]) -> Float[Array, "q _"]:
    """The einsum in the dtype of the keys, with float32 sums.
    Not `dense.product`, which takes the keys transposed: a CPU's bf16 units are then slower than float32."""
    precision = jax.lax.Precision.HIGHEST if keys.dtype == jnp.float32 else None
    return jnp.einsum(equation, x.astype(keys.dtype), keys, precision=precision, preferred_element_type=jnp.float32)
