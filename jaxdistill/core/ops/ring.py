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
BLOCK_ROWS, BLOCK_ROWS_OF_GPUS = 1024, 16384
"""Keys that a device processes at a time, elsewhere and on GPUs; bounds the memory. GPUs take larger blocks, because at 1,024 keys
the overhead of a block far exceeds its arithmetic (docs/performance.md)."""


class Ring(NamedTuple):
    """A first-in-first-out queue of teacher vectors, stored as a ring of batches."""

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
      own_keys: None: the keys are the queue with the batch; else the queue without it, and each example's row of these.
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


def _local(queries, rows, pushes, own_keys, *, expired, starts_full, block_rows):
    """Computation of one device on `queries [b/devices, q, e]`, `rows [c, b/devices, e]`, `own_keys [b/devices, e]`."""
    b, q, e = queries.shape
    flat = queries.reshape(b * q, e)
    # Queries travel, keys stay: the batch is small, the queue is not.
    all_queries = jax.lax.all_gather(flat, BATCH_AXES, tiled=True)
    filled = rows.shape[0] if starts_full else pushes
    scanned = _scan_ring(
        all_queries, rows, (pushes - 1) % rows.shape[0], filled,
        expired=expired, without_newest=own_keys is not None, block_rows=block_rows,
    )  # fmt: skip
    carry = _merge(scanned)
    # After the merge each device has its own sentences again, and adds their own keys locally.
    if own_keys is not None:
        carry = _absorb_own(carry, flat, jnp.repeat(own_keys, q, axis=0))
    maximum, total, average = carry
    return (maximum + jnp.log(total)).reshape(b, q), (average / total[:, None]).reshape(b, q, e)


def _scan_ring(queries, ring, newest, filled, *, expired, without_newest, block_rows):
    """Maximum [q], sum of exponentials [q] and weighted sum of keys [q, e] of `queries [q, e]` over this device's part of the ring.

    Left out are the rows `expired` of the oldest block; the blocks from `filled` on, which hold nothing yet; and the newest block if
    `without_newest`.
    """
    blocks, b, e = ring.shape
    span = min(max(block_rows // b, 1), blocks)  # blocks of a slice
    # Rows are numbered over all devices, because `expired` counts rows of the whole block.
    row = jax.lax.axis_index(BATCH_AXES) * b + jnp.arange(b)

    index = jnp.arange(blocks, dtype=jnp.int32)
    hidden = (index == (newest + 1) % blocks)[:, None] & ((row >= expired[0]) & (row < expired[1]))[None, :]
    hidden = hidden | (index >= filled)[:, None]
    if without_newest:
        hidden = hidden | (index == newest)[:, None]
    # Before the loop: computed inside, the compiler would repeat it for every query.
    mask = jnp.where(hidden, MASKED, 0.0)

    def absorb(carry, start, count):
        keys, masked = (jax.lax.dynamic_slice_in_dim(x, start, count, axis=0) for x in (ring, mask))
        return _absorb(carry, queries, keys.reshape(count * b, e), masked.reshape(count * b))

    maximum, total = jnp.full(queries.shape[0], MIN_LOGIT, jnp.float32), jnp.zeros(queries.shape[0], jnp.float32)
    carry = (maximum, total, jnp.zeros(queries.shape, jnp.float32))
    # Slices have a static size: the loop takes full ones, and the rest is absorbed after it.
    full, rest = divmod(blocks, span)
    carry = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(full), lambda i, carry: absorb(carry, i * jnp.int32(span), span), carry
    )
    if rest:
        carry = absorb(carry, jnp.int32(full * span), rest)
    return carry


def _absorb(carry, queries, keys, mask):
    """Online softmax: rescales the sums to the new maximum, then adds `keys [k, e]`; `mask [k]` is added to their products."""
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


def _absorb_own(carry, queries, own_keys):
    """Like `_absorb`, with one key per query."""
    maximum, total, weighted = carry
    logits = jnp.sum(queries * own_keys, axis=-1)
    new = jnp.maximum(maximum, logits)
    scale, weight = jnp.exp(maximum - new), jnp.exp(logits - new)
    return new, total * scale + weight, weighted * scale[:, None] + weight[:, None] * own_keys


def _merge(carry):
    """Merges the devices' partial results; each device receives the results of its own sentences."""
    maximum, total, weighted = carry
    highest = jax.lax.pmax(maximum, BATCH_AXES)
    scale = jnp.exp(maximum - highest)
    # Both sums in one array, so that one collective suffices.
    sums = jnp.concatenate([weighted * scale[:, None], (total * scale)[:, None]], axis=1)
    sums = jax.lax.psum_scatter(sums, BATCH_AXES, scatter_dimension=0, tiled=True)
    local = sums.shape[0]
    start = jax.lax.axis_index(BATCH_AXES) * local
    return jax.lax.dynamic_slice_in_dim(highest, start, local), sums[:, -1], sums[:, :-1]
