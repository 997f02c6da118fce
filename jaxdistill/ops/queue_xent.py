"""How is the cross-entropy between two similarity distributions over a long queue computed without its logits?

For a student sentence `s`, its teacher sentence `t` and keys `x_j`, all of unit length,

    p = softmax(t . x / teacher_temperature)        q = softmax(s . x / student_temperature)
    loss = - sum_j p_j log q_j = lse(s . x / student_temperature) - s . (sum_j p_j x_j) / student_temperature
    d loss / d s = (sum_j q_j x_j - sum_j p_j x_j) / student_temperature

so that value and gradient need only the log-sum-exp of each row and two averages of the keys, which one pass over
blocks of keys with running maxima gives (the recurrence of online softmax). `[b, k]` is never built, and the backward
pass costs nothing: the gradient is kept from the forward one.

The queue is a ring of batches `[c, b, e]`, split over `b` among the devices, and already holds the batch: what is
written before it is read needs no second copy. Each device scans its own keys for all
sentences of the batch; the partial results are merged by one reduce-scatter. What crosses devices depends on the batch
and not on the queue.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

MASKED = -1e30  # finite, so that a block with no valid key gives no NaN; the merge weighs it with exp(-1e30) = 0
BLOCK_ROWS = 1024


def queue_cross_entropy(
    student: Float[Array, "b v e"],
    teacher: Float[Array, "b e"],
    ring: Float[Array, "c b e"],
    *,
    newest: Int[Array, ""],
    skip: int,
    own: bool,
    student_temperature: float,
    teacher_temperature: float,
    mesh: Mesh,
    block_rows: int = BLOCK_ROWS,
) -> tuple[Float[Array, "b v"], Float[Array, " b"]]:
    """Cross-entropy of each student view against its teacher's similarity distribution, and that distribution's entropy.

    The difference of the two is KL(teacher || student).

    Args:
      student: student sentences, unit length.
      teacher: teacher sentences, unit length; no gradient.
      ring: the queue after the batch was written, unit length; no gradient. Sharded `P(None, "data", None)`.
      newest: the ring's block that the batch was written to; the next one is the oldest.
      skip: how many leading rows of the oldest block are no keys any more.
      own: compare over the queue without the batch, and the sentence's own teacher.
      student_temperature: divides the student's cosine similarities; > 0.
      teacher_temperature: the same for the teacher.
      mesh: devices; the batch lies on its `data` axis.
      block_rows: keys a device looks at together; bounds the memory.

    Returns:
      Both in nats, one value per sentence.
    """
    teacher, ring = jax.lax.stop_gradient((teacher, ring))
    loss = partial(
        _local_loss,
        skip=skip,
        own=own,
        temperatures=(student_temperature, teacher_temperature),
        block_rows=block_rows,
    )
    sharded = jax.shard_map(
        loss,
        mesh=mesh,
        in_specs=(P("data"), P("data"), P(None, "data"), P()),
        out_specs=(P("data"), P("data"), P("data")),
        check_vma=False,
    )
    return _with_gradient(sharded, student, teacher, ring, newest)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_gradient(loss, student, teacher, ring, newest):
    value, entropy, _ = loss(student, teacher, ring, newest)
    return value, entropy


def _forward(loss, student, teacher, ring, newest):
    value, entropy, gradient = loss(student, teacher, ring, newest)
    return (value, entropy), gradient


def _backward(loss, gradient, cotangents):
    return gradient * cotangents[0][..., None], None, None, None


_with_gradient.defvjp(_forward, _backward)


def _local_loss(student, teacher, ring, newest, *, skip, own, temperatures, block_rows):
    """One device's part: `student [b/devices, v, e]`, `teacher [b/devices, e]`, `ring [c, b/devices, e]`."""
    b, v, e = student.shape
    queries = jnp.concatenate([student / temperatures[0], teacher[:, None] / temperatures[1]], axis=1)
    everyone = jax.lax.all_gather(queries.reshape(b * (v + 1), e), "data", tiled=True)
    maximum, total, average = _merge(_scan_ring(everyone, ring, newest, skip=skip, own=own, block_rows=block_rows))
    if own:
        positive = jnp.repeat(teacher, v + 1, axis=0)
        maximum, total, average = _absorb_own((maximum, total, average), queries.reshape(b * (v + 1), e), positive)
    lse = (maximum + jnp.log(total)).reshape(b, v + 1)
    average = (average / total[:, None]).reshape(b, v + 1, e)
    target = average[:, -1:]
    value = lse[:, :v] - jnp.sum(queries[:, :v] * target, axis=-1)
    entropy = lse[:, v] - jnp.sum(queries[:, v] * target[:, 0], axis=-1)
    return value, entropy, (average[:, :v] - target) / temperatures[0]


def _scan_ring(queries, ring, newest, *, skip, own, block_rows):
    """Running (maximum, sum of exponentials, weighted sum of keys) of each query over this device's part of the ring."""
    blocks, b, e = ring.shape
    together = min(max(block_rows // b, 1), blocks)
    row = jax.lax.axis_index("data") * b + jnp.arange(b)

    def absorb(carry, start, count):
        block = jax.lax.dynamic_slice_in_dim(ring, start, count, axis=0)
        index = start + jnp.arange(count, dtype=jnp.int32)
        hidden = (index == (newest + 1) % blocks)[:, None] & (row < skip)[None, :]
        if own:
            hidden = hidden | (index == newest)[:, None]
        return _absorb(carry, queries, block.reshape(count * b, e), ~hidden.reshape(count * b))

    carry = (
        jnp.full(queries.shape[0], MASKED, jnp.float32),
        jnp.zeros(queries.shape[0], jnp.float32),
        jnp.zeros(queries.shape, jnp.float32),
    )
    full = blocks // together
    carry = jax.lax.fori_loop(
        jnp.int32(0), jnp.int32(full), lambda i, carry: absorb(carry, i * jnp.int32(together), together), carry
    )
    if blocks % together:
        carry = absorb(carry, jnp.int32(full * together), blocks % together)
    return carry


def _absorb(carry, queries, keys, valid):
    maximum, total, weighted = carry
    keys = keys.astype(jnp.float32)
    logits = jnp.einsum("qe,ke->qk", queries, keys, precision=jax.lax.Precision.HIGHEST)
    logits = jnp.where(valid[None, :], logits, MASKED)
    new = jnp.maximum(maximum, jnp.max(logits, axis=1))
    weights = jnp.where(valid[None, :], jnp.exp(logits - new[:, None]), 0.0)
    scale = jnp.exp(maximum - new)
    keys_sum = jnp.einsum("qk,ke->qe", weights, keys, precision=jax.lax.Precision.HIGHEST)
    return new, total * scale + jnp.sum(weights, axis=1), weighted * scale[:, None] + keys_sum


def _absorb_own(carry, queries, positive):
    """As `_absorb`, with one key for each query."""
    maximum, total, weighted = carry
    logits = jnp.sum(queries * positive, axis=-1)
    new = jnp.maximum(maximum, logits)
    scale, weight = jnp.exp(maximum - new), jnp.exp(logits - new)
    return new, total * scale + weight, weighted * scale[:, None] + weight[:, None] * positive


def _merge(carry):
    """Merges the devices' partial results and hands each device its own sentences."""
    maximum, total, weighted = carry
    highest = jax.lax.pmax(maximum, "data")
    scale = jnp.exp(maximum - highest)
    sums = jnp.concatenate([weighted * scale[:, None], (total * scale)[:, None]], axis=1)
    sums = jax.lax.psum_scatter(sums, "data", scatter_dimension=0, tiled=True)
    mine = sums.shape[0]
    start = jax.lax.axis_index("data") * mine
    return jax.lax.dynamic_slice_in_dim(highest, start, mine), sums[:, -1], sums[:, :-1]
