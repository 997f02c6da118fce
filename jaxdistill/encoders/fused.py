"""Attention of long packed rows on TPUs by JAX's splash attention, which keeps scores on the chip and skips those outside windows."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import BATCH_AXES, Array, platform

MIN_SLOTS = 256
"""Shorter rows are left to `attention.py`: their scores cost little memory traffic (docs/performance.md)."""
LANES = 128
"""The kernel's block sizes are multiples of this many tokens."""


def should_fuse(slots: int, compute_dtype: DTypeLike) -> bool:
    """Whether to use the kernel for rows of this many token slots: on TPUs, in bfloat16, for rows that are long enough.

    Not for float32, which the kernel would round to bfloat16. Not without a mesh, because the compiler cannot split the kernel
    over devices.
    """
    on_tpu = platform(jax.sharding.get_abstract_mesh()) == "tpu"
    return on_tpu and slots >= MIN_SLOTS and jnp.dtype(compute_dtype) == jnp.bfloat16


def fused(
    query: Float[Array, "g r l h *each f"],
    key: Float[Array, "g r l h f"],
    value: Float[Array, "g r l h f"],
    owner: Integer[Array, "g r l"],
    *,
    window: int,
    causal: bool,
    interpret: bool = False,
) -> Float[Array, "g r l heads f"]:
    """Softmax attention inside each sentence of a row.

    The context's mesh splits `g` over the batch axes, and heads over the axis `model` if its size divides the number of key heads.

    Args:
      query: already scaled; with grouped keys, its axis `each` has the query heads of one key head.
      owner: index of each token's sentence; -1 for padding.
      window: distance in tokens, on either side, up to which a token attends; 0: unlimited.
      interpret: emulate the kernel on any device, for tests.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    model_devices = jax.sharding.get_abstract_mesh().shape["model"]
    splits_heads = key.shape[3] % model_devices == 0
    query = query.reshape(*query.shape[:3], -1, query.shape[-1])  # [g r l heads f]
    heads = query.shape[3] // (model_devices if splits_heads else 1)  # of one device
    padding = -query.shape[2] % LANES
    slots = query.shape[2] + padding
    kernel = _kernel(heads, slots, window, causal, interpret=interpret)

    def head_major(x: Array) -> Array:
        """From `[g r l heads f]` to `[g * r, heads, slots, f]`."""
        x = jnp.pad(x, ((0, 0), (0, 0), (0, padding), (0, 0), (0, 0)))
        return x.reshape(-1, *x.shape[2:]).swapaxes(1, 2)

    def attend_on_device(query: Array, key: Array, value: Array, owner: Array) -> Array:
        # Added slots must not share a segment with anything, not even with the row's own padding (-1).
        segments = jnp.pad(owner, ((0, 0), (0, 0), (0, padding)), constant_values=-2).reshape(-1, slots)
        output = jax.vmap(kernel)(*map(head_major, (query, key, value)), SegmentIds(segments, segments))
        token_major = output.swapaxes(1, 2)[:, : owner.shape[2]]  # [g * r, l, heads, f]
        return token_major.reshape(*owner.shape, *token_major.shape[2:])

    by_head = P(BATCH_AXES, None, None, "model" if splits_heads else None)
    specs = (by_head, by_head, by_head, P(BATCH_AXES))
    sharded = jax.shard_map(attend_on_device, in_specs=specs, out_specs=by_head, check_vma=False)
    return sharded(query.astype(value.dtype), key.astype(value.dtype), value, owner)  # queries and keys may be float32


@lru_cache(maxsize=64)
def _kernel(heads: int, slots: int, window: int, causal: bool, interpret: bool) -> Any:
    """Splash attention for one row of `slots` tokens: a function of queries, keys and values `[h, l, f]` and segment ids."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # takes half a second, only where it is used

    block = max(size for size in range(LANES, 4 * LANES + 1, LANES) if slots % size == 0)
    mask: Any = splash.FullMask((slots, slots))
    if window or causal:
        visible_before = window or None  # number of earlier slots that a token sees; None: all
        visible_after = 0 if causal else window
        mask = splash.LocalMask((slots, slots), (visible_before, visible_after), offset=0)
    blocks = splash.BlockSizes(
        block_q=block, block_kv=block, block_q_dkv=block, block_kv_dkv=block, block_q_dq=block, block_kv_dq=block
    )
    masks = splash.MultiHeadMask([mask] * heads)
    with jax.ensure_compile_time_eval():  # constants, because the cache outlives the trace that makes them
        return splash.make_splash_mha_single_device(masks, block_sizes=blocks, interpret=interpret)
