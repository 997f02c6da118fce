"""Self-attention over packed rows, with every family's variations: heads, norms, rotary positions, windows.

A row holds several sentences. A token attends only to tokens of its own sentence. Padding attends to padding, because a
softmax over nothing would be NaN.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.core.ops.dense import product
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.fused import fused, should_fuse
from jaxdistill.encoders.layers import Linear, Norm, Table, contraction, dropout, expanded

MAX_WHOLE_ROW = 512
"""Longer rows are computed in blocks of queries, so that no array has the size row x row."""
BLOCK = 256
"""Queries per block."""
BUCKETS = 32
"""Number of buckets of relative positions; as in transformers, a table's further rows are not read."""
FARTHEST = 128
"""Distance in tokens from which on all relative positions share a bucket."""


class RowBlock(NamedTuple):
    """Consecutive rows of every group, split into pieces of equal length; a piece attends only to itself."""

    owner: Integer[Array, "g pieces l"]
    bias: Float[Array, "g pieces #h l l"] | None
    """Added to the scores: the mask, and MPNet's relative positions. None: the mask is computed block by block."""

    def of_rows(self, x: Float[Array, "g r _ ..."], start: int) -> Float[Array, "g pieces l ..."]:
        """The block's part of `x`, an array over all rows; the block's first row is `start`."""
        groups, pieces, length = self.owner.shape
        count = pieces * length // x.shape[2]
        return x[:, start : start + count].reshape(groups, pieces, length, *x.shape[3:])


class AttentionInputs(NamedTuple):
    """Inputs of attention besides hidden states, shared by all layers of one `LayerKind`."""

    row_blocks: tuple[RowBlock, ...]
    """All rows, in their order."""
    rotation: tuple[Float[Array, "g r l f//2"], Float[Array, "g r l f//2"]] | None
    """Cosines and sines of half a head's width; None: no rotary positions."""


class Attention(nnx.Module):
    """Multi-head self-attention; `Layer` applies its norms. `sliced`: a loop over layers slices its weights."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, normed: bool = True, sliced: bool = False):
        queries, keys = a.heads * a.head_width, a.key_head_count * a.head_width
        self.heads, self.key_heads, self.size = a.heads, a.key_head_count, a.head_width
        # Grouped keys lie beside their queries and values, so that devices that each hold some heads
        # (`run.sharding=tensor`) move no weights. Without groups this copy is left out: it costs a short sentence a tenth.
        self.blocks = self.key_heads if self.key_heads != self.heads else 1
        self.scale = a.attention_scale or 1.0 / math.sqrt(a.head_width)
        self.sliced = sliced
        self.rate, self.causal, self.relative = a.attention_dropout, a.causal, a.relative_buckets > 0
        self.query = Linear(a.hidden_size, queries, rngs=rngs, bias=a.attention_bias)
        self.key = Linear(a.hidden_size, keys, rngs=rngs, bias=a.attention_bias)
        self.value = Linear(a.hidden_size, keys, rngs=rngs, bias=a.attention_bias)
        self.output = Linear(queries, a.hidden_size, rngs=rngs, bias=a.attention_bias and a.attention_output_bias)
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
        query, keys, value = self.projected(x, inputs.rotation, compute_dtype)

        def attend(query, keys, value, bias, seeds):
            u = ""
            if query.ndim == keys.ndim + 1:  # grouped keys: axis `u` has the queries of one key head
                u, bias = "u", bias[:, :, :, :, None]
            scores = contraction(f"grqh{u}s,grkhs->grhq{u}k", query, keys, compute_dtype)
            weights = dropout(jax.nn.softmax(scores + bias, axis=-1), self.rate, seeds, 0)
            return contraction(f"grhq{u}k,grkhs->grqh{u}s", weights, value, compute_dtype)

        # The TPU kernel has neither relative positions nor dropout.
        fusible = not self.relative and (seeds is None or self.rate == 0.0)
        pieces, start = [], 0
        for number, block in enumerate(inputs.row_blocks):
            parts = [block.of_rows(each, start) for each in (query, keys, value)]
            # Seeds of row blocks are 2^16 apart, because `in_blocks` adds the number of a block of queries, which is smaller.
            drawn = None if seeds is None else seeds + jnp.uint32(number << 16)
            if fusible and should_fuse(block.owner.shape[-1], compute_dtype):
                mixed = fused(*parts, block.owner, window=kind.window, causal=self.causal)
            elif block.bias is None:
                mixed = in_blocks(attend, *parts, block.owner, kind.window, causal=self.causal, seeds=drawn)
            else:
                mixed = attend(*parts, block.bias, drawn)
            pieces.append(mixed.reshape(x.shape[0], -1, x.shape[2], self.heads, self.size))
            start += pieces[-1].shape[1]
        mixed = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=1)
        if head_scale is not None:
            mixed = mixed * head_scale[..., None]
        return self.output(mixed.reshape(*x.shape[:-1], -1).astype(x.dtype), compute_dtype)

    def projected(self, x: Float[Array, "g r l d"], rotation, compute_dtype: DTypeLike) -> tuple[Array, Array, Array]:
        """Queries, keys and values [g r l h s]; with grouped keys, queries [g r l h u s]: `u` per key head."""
        linears = (self.query, self.key, self.value)
        if self.sliced:
            # Joining slices would copy these weights in every round of the loop.
            parts = [linear(x, compute_dtype) for linear in linears]
        else:
            # One product for the three: fewer and wider, and one gradient with respect to x instead of a sum of three.
            kernel = self.concat_qkv([linear.kernel[...] for linear in linears])
            joined = product(x, kernel, compute_dtype=compute_dtype)
            biases = [linear.bias[...] for linear in linears if linear.bias is not None]
            if biases:
                joined = joined + expanded(self.concat_qkv(biases).astype(joined.dtype), joined)
            joined = joined.astype(x.dtype).reshape(*x.shape[:-1], self.blocks, -1)
            queries, keys = (heads // self.blocks * self.size for heads in (self.heads, self.key_heads))
            parts = jnp.split(joined, (queries, queries + keys), axis=-1)
        query, keys, value = (part.reshape(*x.shape[:-1], -1, self.size) for part in parts)
        if self.query_norm is not None and self.key_norm is not None:
            query, keys = self.query_norm(query), self.key_norm(keys)
        if rotation is not None:
            query, keys = rotated(query, *rotation), rotated(keys, *rotation)
        # The scale goes on the queries, which are fewer than the scores.
        query = query.astype(jnp.float32) * self.scale
        if self.key_heads != self.heads:
            query = query.reshape(*x.shape[:-1], self.key_heads, -1, self.size)
        return query, keys, value

    def concat_qkv(self, arrays: Sequence[Float[Array, "... _"]]) -> Float[Array, "... qkv"]:
        """Concatenates weights of queries, keys and values within each block of heads."""
        parts = [array.reshape(*array.shape[:-1], self.blocks, -1) for array in arrays]
        return jnp.concatenate(parts, axis=-1).reshape(*arrays[0].shape[:-1], -1)


def attention_inputs_of(
    tokens: Tokens, kind: LayerKind, *, head_width: int, causal: bool, relative_bias: Table | None
) -> AttentionInputs:
    """Masks, relative positions and rotations for layers of one kind."""
    rotation = rotation_of(tokens.position, kind, head_width) if kind.theta else None
    pieces = [tokens.owner]
    if tokens.parts is not None:
        groups, divided, parts = tokens.parts.shape
        rows, length = tokens.owner.shape[1:]
        pieces = [
            tokens.owner[:, : rows - divided],
            tokens.owner[:, rows - divided :].reshape(groups, divided * parts, length // parts),
        ]
    row_blocks = tuple(
        RowBlock(owner, _bias(owner, kind.window, causal=causal, relative_bias=relative_bias))
        for owner in pieces
        if owner.shape[1]
    )
    return AttentionInputs(row_blocks, rotation)


def _bias(
    owner: Integer[Array, "g r l"], window: int, *, causal: bool, relative_bias: Table | None
) -> Float[Array, "g r #h l l"] | None:
    """The `bias` of a `RowBlock`; None for rows above `MAX_WHOLE_ROW` slots, unless they have relative positions."""
    length = owner.shape[-1]
    is_static = isinstance(length, int)  # a symbolic length (`jax.export`) has its scores computed whole
    if is_static and length > MAX_WHOLE_ROW and relative_bias is None:
        return None
    slots = np.arange(length) if is_static else jnp.arange(length)
    bias = mask_of(visible(owner, owner, slots, slots, window=window, causal=causal))
    if relative_bias is not None:
        # A sentence's tokens are adjacent, so distances between slots equal distances between positions.
        distance = jnp.clip(jnp.expand_dims(slots, 0) - jnp.expand_dims(slots, 1), -FARTHEST, FARTHEST)
        buckets = jnp.asarray(relative_buckets(np.arange(-FARTHEST, FARTHEST + 1)))[distance + FARTHEST]
        bias = bias + relative_bias(buckets).transpose(2, 0, 1)[None, None]
    return bias


def visible(
    owner: Integer[Array, "g r q"],
    key_owner: Integer[Array, "g r k"],
    slots: Integer[Array, " q"],
    key_slots: Integer[Array, " k"],
    window: int,
    *,
    causal: bool,
) -> Bool[Array, "g r q k"]:
    """Which keys each query attends to; a token always sees itself."""
    seen = owner[:, :, :, None] == key_owner[:, :, None, :]
    distance = jnp.expand_dims(key_slots, 0) - jnp.expand_dims(slots, 1)
    if window:
        seen = seen & (abs(distance) <= window)[None, None]
    return seen & (distance <= 0)[None, None] if causal else seen


def mask_of(seen: Bool[Array, "g r q k"]) -> Float[Array, "g r 1 q k"]:
    """0 where a query attends to a key, the smallest float32 elsewhere."""
    # Finite: the softmax of a row of -inf, as for a padding query, would be NaN.
    return jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)[:, :, None]


def in_blocks(attend, query, keys, value, owner, window: int, *, causal: bool, seeds) -> Float[Array, "g r l ..."]:
    """Calls `attend` on one block of queries at a time; with a window, reads only the keys around the block.

    The backward pass recomputes each block's scores.
    """
    length = owner.shape[-1]
    count = -(-length // BLOCK)
    span = min(length, BLOCK + 2 * window) if window else length
    behind = count * BLOCK - length
    padded_query = jnp.pad(query, ((0, 0), (0, 0), (0, behind)) + ((0, 0),) * (query.ndim - 3))
    # Slots that fill the last block belong to no sentence; their rows are cut off below.
    padded_owner = jnp.pad(owner, ((0, 0), (0, 0), (0, behind)), constant_values=-1)

    def part(x: Array, start: Array, size: int) -> Array:
        return jax.lax.dynamic_slice_in_dim(x, start, size, axis=2)

    @jax.checkpoint
    def block(number: Array) -> Array:
        start = number * BLOCK
        # The span has a static size: at both ends it moves inwards, and `visible` masks keys outside the window.
        first_key = jnp.clip(start - window, 0, length - span) if window else jnp.zeros_like(start)
        slots, key_slots = start + jnp.arange(BLOCK), first_key + jnp.arange(span)
        owners = part(padded_owner, start, BLOCK), part(owner, first_key, span)
        seen = visible(*owners, slots, key_slots, window=window, causal=causal)
        # Each block draws its own dropout.
        drawn = None if seeds is None else seeds + number.astype(seeds.dtype)
        return attend(
            part(padded_query, start, BLOCK), part(keys, first_key, span), part(value, first_key, span),
            mask_of(seen), seeds=drawn,
        )  # fmt: skip

    blocks = jax.lax.map(block, jnp.arange(count))
    whole = jnp.moveaxis(blocks, 0, 2).reshape(*query.shape[:2], count * BLOCK, *query.shape[3:])
    return whole[:, :, :length]


def rotation_of(
    position: Integer[Array, "g r l"], kind: LayerKind, head_width: int
) -> tuple[Float[Array, "g r l {head_width//2}"], Float[Array, "g r l {head_width//2}"]]:
    """Cosines and sines of rotary positions.

    Source: Su et al., RoFormer, 2021, https://arxiv.org/abs/2104.09864; rotated pairs lie half a head apart.
    """
    whole = kind.theta ** (-np.arange(0, head_width, 2) / head_width)
    frequencies = whole / kind.divisor
    if kind.divided_above:
        # Between the frequencies of the two wavelengths, the share that is not divided rises linearly from 0 to 1.
        borders = 2 * np.pi / np.array([kind.divided_above, kind.kept_below])
        frequencies += np.interp(whole, borders, [0.0, 1.0]) * (whole - frequencies)
    angles = position[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None, None]
    return jnp.cos(angles), jnp.sin(angles)


def rotated(
    x: Float[Array, "g r l h f"], cosines: Float[Array, "g r l f//2"], sines: Float[Array, "g r l f//2"]
) -> Float[Array, "g r l h f"]:
    """Rotates each head's first and second half by its token's angles, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[:, :, :, None], sines[:, :, :, None]
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def relative_buckets(distance: np.ndarray) -> np.ndarray:
    """T5's buckets of `key - query` distances: half for each direction, of which half are exact and half logarithmic.

    Source: Raffel et al., T5, JMLR 2020.
    """
    half = BUCKETS // 2
    exact = half // 2
    size = np.abs(distance)
    logarithmic = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(FARTHEST / exact) * (half - exact)
    far = np.minimum(exact + logarithmic.astype(np.int32), half - 1)
    return np.where(distance > 0, half, 0) + np.where(size < exact, size, far)
