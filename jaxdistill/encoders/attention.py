"""Self-attention over packed rows, with every family's variations: heads, norms, rotary positions, windows.

A row holds several sentences. A token attends only to tokens of its own sentence. Padding attends to padding, because a
softmax over nothing would be NaN.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.core.ops.dense import product
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.fused import fused, should_fuse
from jaxdistill.encoders.layers import Linear, Norm, Table, contraction, dropout, expanded

MAX_WHOLE_ROW = 512
"""Rows of more token slots are computed in blocks of queries, so that no array has the size row x row."""
BLOCK_QUERIES = 256
BUCKETS = 32
"""Number of buckets of relative positions; as in transformers, a table's further rows are not read."""
MAX_DISTANCE = 128
"""Distance in tokens from which on all relative positions share a bucket."""


class RowBlock(NamedTuple):
    """Consecutive rows of every group, split into pieces of equal length; a piece attends only to itself."""

    owner: Integer[Array, "g pieces l"]
    bias: Float[Array, "g pieces #h l l"] | None
    """Added to the scores: the mask, and MPNet's relative positions. None: `attend_in_blocks` computes the mask."""


class AttentionInputs(NamedTuple):
    """Inputs of attention besides hidden states, shared by all layers of one `LayerKind`."""

    row_blocks: tuple[RowBlock, ...]
    """Blocks that together hold all rows, in order."""
    rotation: tuple[Float[Array, "g r l f//2"], Float[Array, "g r l f//2"]] | None
    """Cosines and sines of half a head's width; None: no rotary positions."""


class Attention(nnx.Module):
    """Multi-head self-attention; its `norm` is applied by `Layer`.

    `sliced`: a loop over layers slices the weights, so queries, keys and values are separate products.
    """

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, normed: bool = True, sliced: bool = False):
        self.architecture = a
        self.sliced = sliced
        # Grouped keys lie beside their queries and values, so that devices that each hold some heads
        # (`run.sharding=tensor`) move no weights. One block without groups, because the copy costs a tenth of the time
        # for a short sentence.
        self.head_blocks = a.key_head_count if a.key_head_count != a.heads else 1
        query_width = a.heads * a.head_width
        key_width = a.key_head_count * a.head_width
        self.query = Linear(a.hidden_size, query_width, rngs=rngs, bias=a.attention_bias)
        self.key = Linear(a.hidden_size, key_width, rngs=rngs, bias=a.attention_bias)
        self.value = Linear(a.hidden_size, key_width, rngs=rngs, bias=a.attention_bias)
        self.output = Linear(query_width, a.hidden_size, rngs=rngs, bias=a.attention_bias and a.attention_output_bias)
        self.query_norm = Norm(a.head_width, a.layer_norm_eps, a.norm) if a.query_key_norm else None
        self.key_norm = Norm(a.head_width, a.layer_norm_eps, a.norm) if a.query_key_norm else None
        self.norm = Norm(a.hidden_size, a.layer_norm_eps, a.norm) if normed else None
        self.norm_after = Norm(a.hidden_size, a.layer_norm_eps, a.norm) if a.norm_place == "both" else None

    def __call__(
        self,
        x: Float[Array, "g r l d"],
        inputs: AttentionInputs,
        head_scale: Float[Array, "g r l h"] | None,
        *,
        kind: LayerKind,
        seeds: Array | None,
        compute_dtype: DTypeLike,
    ) -> Float[Array, "g r l d"]:
        a = self.architecture
        linears = (self.query, self.key, self.value)
        if self.sliced:
            # Joining slices would copy these weights in every round of the loop.
            parts = [linear(x, compute_dtype) for linear in linears]
        else:
            # One wide product for the three, and one gradient with respect to x instead of a sum of three.
            kernel = self.concat_qkv([linear.kernel[...] for linear in linears])
            joined = product(x, kernel, compute_dtype=compute_dtype)
            biases = [linear.bias[...] for linear in linears if linear.bias is not None]
            if biases:
                joined = joined + expanded(self.concat_qkv(biases).astype(joined.dtype), joined)
            joined = joined.astype(x.dtype).reshape(*x.shape[:-1], self.head_blocks, -1)
            query_width = a.heads // self.head_blocks * a.head_width
            key_width = a.key_head_count // self.head_blocks * a.head_width
            parts = jnp.split(joined, (query_width, query_width + key_width), axis=-1)
        query, key, value = (part.reshape(*x.shape[:-1], -1, a.head_width) for part in parts)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if inputs.rotation is not None:
            query, key = rotated(query, *inputs.rotation), rotated(key, *inputs.rotation)
        # The scale goes on the queries, which are fewer than the scores.
        query = query.astype(jnp.float32) * (a.attention_scale or 1.0 / math.sqrt(a.head_width))
        if a.key_head_count != a.heads:
            query = query.reshape(*x.shape[:-1], a.key_head_count, -1, a.head_width)  # [g r l h u f]

        def attend(query, key, value, bias, seeds):
            u = ""
            if query.ndim == key.ndim + 1:  # grouped keys: axis `u` has the queries of one key head
                u, bias = "u", bias[:, :, :, :, None]
            scores = contraction(f"grqh{u}f,grkhf->grhq{u}k", query, key, compute_dtype)
            weights = dropout(jax.nn.softmax(scores + bias, axis=-1), a.attention_dropout, seeds, 0)
            return contraction(f"grhq{u}k,grkhf->grqh{u}f", weights, value, compute_dtype)

        # The TPU kernel has neither relative positions nor dropout.
        is_fusible = not a.relative_buckets and (seeds is None or a.attention_dropout == 0.0)
        outputs, first_row = [], 0
        for index, block in enumerate(inputs.row_blocks):
            pieces, length = block.owner.shape[1:]
            rows = slice(first_row, first_row + pieces * length // x.shape[2])
            qkv = [array[:, rows].reshape(-1, pieces, length, *array.shape[3:]) for array in (query, key, value)]
            # Seeds of row blocks are 2^16 apart, because `attend_in_blocks` adds the index of a block, which is smaller.
            block_seeds = None if seeds is None else seeds + jnp.uint32(index << 16)
            if is_fusible and should_fuse(length, compute_dtype):
                output = fused(*qkv, block.owner, window=kind.window, causal=a.causal)
            elif block.bias is None:
                output = attend_in_blocks(attend, *qkv, block.owner, kind.window, causal=a.causal, seeds=block_seeds)
            else:
                output = attend(*qkv, block.bias, block_seeds)
            outputs.append(output.reshape(x.shape[0], -1, x.shape[2], a.heads, a.head_width))
            first_row = rows.stop
        output = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)
        if head_scale is not None:
            output = output * head_scale[..., None]
        return self.output(output.reshape(*x.shape[:-1], -1).astype(x.dtype), compute_dtype)

    def concat_qkv(self, arrays: Sequence[Float[Array, "... _"]]) -> Float[Array, "... qkv"]:
        """Concatenates weights of queries, keys and values within each block of heads."""
        parts = [array.reshape(*array.shape[:-1], self.head_blocks, -1) for array in arrays]
        return jnp.concatenate(parts, axis=-1).reshape(*arrays[0].shape[:-1], -1)


def make_attention_inputs(
    tokens: Tokens, kind: LayerKind, a: Architecture, relative_bias: Table | None
) -> AttentionInputs:
    """Masks, relative positions and rotations for layers of one kind."""
    rotation = None
    if kind.theta:  # Su et al., RoFormer, 2021, https://arxiv.org/abs/2104.09864; rotated pairs lie half a head apart
        undivided = kind.theta ** (-np.arange(0, a.head_width, 2) / a.head_width)
        frequencies = undivided / kind.divisor
        if kind.divided_above:
            # Between the frequencies of the two wavelengths, the share that is not divided rises linearly from 0 to 1.
            borders = 2 * np.pi / np.array([kind.divided_above, kind.kept_below])
            frequencies += np.interp(undivided, borders, [0.0, 1.0]) * (undivided - frequencies)
        angles = tokens.position[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None, None]
        rotation = (jnp.cos(angles), jnp.sin(angles))
    owners = [tokens.owner]
    if tokens.parts is not None:
        groups, divided, parts = tokens.parts.shape
        rows, length = tokens.owner.shape[1:]
        whole = tokens.owner[:, : rows - divided]
        pieces = tokens.owner[:, rows - divided :].reshape(groups, divided * parts, length // parts)
        owners = [owner for owner in (whole, pieces) if owner.shape[1]]
    row_blocks = []
    for owner in owners:
        length = owner.shape[-1]
        is_static = isinstance(length, int)  # a symbolic length (`jax.export`) has its scores computed whole
        bias = None
        if not is_static or length <= MAX_WHOLE_ROW or relative_bias is not None:
            slots = np.arange(length) if is_static else jnp.arange(length)
            bias = attention_mask(owner, owner, slots, slots, kind.window, causal=a.causal)
            if relative_bias is not None:
                # A sentence's tokens are adjacent, so distances between slots equal distances between positions.
                distance = jnp.clip(jnp.expand_dims(slots, 0) - jnp.expand_dims(slots, 1), -MAX_DISTANCE, MAX_DISTANCE)
                buckets = jnp.asarray(relative_buckets(np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)))
                by_head = relative_bias(buckets[distance + MAX_DISTANCE]).transpose(2, 0, 1)
                bias = bias + by_head[None, None]
        row_blocks.append(RowBlock(owner, bias))
    return AttentionInputs(tuple(row_blocks), rotation)


def attention_mask(
    query_owner: Integer[Array, "g r q"],
    key_owner: Integer[Array, "g r k"],
    query_slots: Integer[Array, " q"],
    key_slots: Integer[Array, " k"],
    window: int,
    *,
    causal: bool,
) -> Float[Array, "g r 1 q k"]:
    """0 where a query attends to a key, by their sentences and their slots in the row; the smallest float32 elsewhere.

    A token always attends to itself.
    """
    is_visible = query_owner[:, :, :, None] == key_owner[:, :, None, :]
    distance = jnp.expand_dims(key_slots, 0) - jnp.expand_dims(query_slots, 1)
    if window:
        is_visible = is_visible & (abs(distance) <= window)[None, None]
    if causal:
        is_visible = is_visible & (distance <= 0)[None, None]
    # Finite: the softmax of a row of -inf, as for a padding query, would be NaN.
    return jnp.where(is_visible, 0.0, jnp.finfo(jnp.float32).min)[:, :, None]


def attend_in_blocks(
    attend, query, key, value, owner, window: int, *, causal: bool, seeds
) -> Float[Array, "g r l ..."]:
    """Calls `attend` on one block of queries at a time; with a window, reads only the keys around the block.

    The backward pass recomputes each block's scores.
    """
    length = owner.shape[-1]
    blocks = math.ceil(length / BLOCK_QUERIES)
    span = min(length, BLOCK_QUERIES + 2 * window) if window else length
    padding = (0, blocks * BLOCK_QUERIES - length)
    padded_query = jnp.pad(query, ((0, 0), (0, 0), padding) + ((0, 0),) * (query.ndim - 3))
    # Slots that fill the last block belong to no sentence; their rows are cut off below.
    padded_owner = jnp.pad(owner, ((0, 0), (0, 0), padding), constant_values=-1)

    part = partial(jax.lax.dynamic_slice_in_dim, axis=2)

    @jax.checkpoint
    def attend_block(index: Array) -> Array:
        start = index * BLOCK_QUERIES
        # The span has a static size: at both ends it moves inwards, and the mask hides keys outside the window.
        first_key = jnp.clip(start - window, 0, length - span) if window else jnp.zeros_like(start)
        query_slots, key_slots = start + jnp.arange(BLOCK_QUERIES), first_key + jnp.arange(span)
        owners = part(padded_owner, start, BLOCK_QUERIES), part(owner, first_key, span)
        mask = attention_mask(*owners, query_slots, key_slots, window, causal=causal)
        # Each block draws its own dropout.
        block_seeds = None if seeds is None else seeds + index.astype(seeds.dtype)
        return attend(
            part(padded_query, start, BLOCK_QUERIES), part(key, first_key, span), part(value, first_key, span),
            mask, seeds=block_seeds,
        )  # fmt: skip

    outputs = jax.lax.map(attend_block, jnp.arange(blocks))
    joined = jnp.moveaxis(outputs, 0, 2).reshape(*query.shape[:2], blocks * BLOCK_QUERIES, *query.shape[3:])
    return joined[:, :, :length]


def rotated(
    x: Float[Array, "g r l h f"], cosines: Float[Array, "g r l f//2"], sines: Float[Array, "g r l f//2"]
) -> Float[Array, "g r l h f"]:
    """Rotates each head's first and second half by its token's angles, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[:, :, :, None], sines[:, :, :, None]
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def relative_buckets(distance: np.ndarray) -> np.ndarray:
    """T5's buckets of `key - query` distances: half for each direction; of these, half are exact and half logarithmic.

    Source: Raffel et al., T5, JMLR 2020.
    """
    half = BUCKETS // 2
    exact = half // 2
    size = np.abs(distance)
    share = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (share * (half - exact)).astype(np.int32), half - 1)
    return np.where(distance > 0, half, 0) + np.where(size < exact, size, far)
