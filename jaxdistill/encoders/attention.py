"""Self-attention over packed rows, with every family's variations: heads, norms, rotary positions, windows.

A row holds several sentences, and a token attends only to its own, whose index is its `owner` (-1 for padding). Padding attends to
padding, because an empty softmax is NaN.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.fused import fused, should_fuse
from jaxdistill.encoders.layers import Linear, Norm, Table, contraction, dropout

MAX_WHOLE_ROW = 512
"""Rows of more token slots are computed in blocks of queries, so that no array has the size row x row."""
BLOCK_QUERIES = 256
BUCKETS = 32
"""Number of buckets of relative positions; as in transformers, a table's further rows are not read."""
MAX_DISTANCE = 128
"""Distance in tokens from which on all relative positions of one direction share a bucket."""


class RowBlock(NamedTuple):
    """Consecutive rows of every group, split into pieces of equal length; a piece attends only to itself."""

    owner: Integer[Array, "g pieces l"]
    bias: Float[Array, "g pieces #h l l"] | None
    """Added to the scores: the mask, and MPNet's relative positions. None: `attend_in_blocks` computes the mask."""


class LayerInputs(NamedTuple):
    """Inputs of a layer besides hidden states; the first three are shared by all layers of one `LayerKind`."""

    row_blocks: tuple[RowBlock, ...]
    """Blocks that together hold all rows, in order."""
    rotation: tuple[Float[Array, "g r l f//2"], Float[Array, "g r l f//2"]] | None
    """Cosines and sines of half a head's width, for `rotated`; None: no rotary positions."""
    window: int
    head_scale: Float[Array, "g r l h"] | None = None
    """DropHead's factors; None: no head is dropped."""
    seeds: Integer[Array, "sites 2"] | None = None
    """Seeds of the layer's dropout sites, see `dropout`; None: no dropout."""


class Attention(nnx.Module):
    """Multi-head self-attention; it holds the norms before and after it, which `Layer` applies. `normed`: whether `norm` exists."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs | None, normed: bool):
        self.architecture = architecture
        self.has_grouped_keys = architecture.key_head_count != architecture.heads
        width = architecture.hidden_size
        query_width = architecture.heads * architecture.head_width
        key_width = architecture.key_head_count * architecture.head_width
        linear = partial(Linear, rngs=rngs, bias=architecture.attention_bias)
        self.query = linear(width, query_width)
        self.key = linear(width, key_width)
        self.value = linear(width, key_width)
        output_bias = architecture.attention_bias and architecture.attention_output_bias
        self.output = linear(query_width, width, bias=output_bias)
        norm = partial(Norm, eps=architecture.layer_norm_eps, kind=architecture.norm)
        self.query_norm = norm(architecture.head_width) if architecture.query_key_norm else None
        self.key_norm = norm(architecture.head_width) if architecture.query_key_norm else None
        self.norm = norm(width) if normed else None
        self.norm_after = norm(width) if architecture.norm_place == "both" else None

    def __call__(self, x: Array, inputs: LayerInputs, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        architecture = self.architecture
        head_width = architecture.head_width
        # One product each: XLA's TPU compiler would copy what it splits from a product of joined weights, and its gradients.
        linears = self.query, self.key, self.value
        query, key, value = (linear(x, compute_dtype).reshape(*x.shape[:-1], -1, head_width) for linear in linears)
        if self.query_norm is not None and self.key_norm is not None:
            query = self.query_norm(query)
            key = self.key_norm(key)
        if inputs.rotation is not None:
            query = rotated(query, *inputs.rotation)
            key = rotated(key, *inputs.rotation)
        # The scale goes on the queries, which are fewer than the scores.
        query = query.astype(jnp.float32) * (architecture.attention_scale or 1.0 / math.sqrt(head_width))
        if self.has_grouped_keys:  # [g r l h u f], where `u` are the query heads that share a key head
            query = query.reshape(*x.shape[:-1], architecture.key_head_count, -1, head_width)
        row_length = x.shape[2]
        outputs = []
        first_row = 0
        for index, block in enumerate(inputs.row_blocks):
            pieces, length = block.owner.shape[1:]
            rows = slice(first_row, first_row + pieces * length // row_length)
            first_row = rows.stop
            # From rows to pieces: [g pieces l h f].
            qkv = [array[:, rows].reshape(-1, pieces, length, *array.shape[3:]) for array in (query, key, value)]
            # Seeds of row blocks are 2^16 apart, because `attend_in_blocks` adds smaller numbers to them.
            seeds = None if inputs.seeds is None else inputs.seeds + jnp.uint32(index << 16)
            output = self.attend_within_pieces(*qkv, block, inputs.window, seeds, compute_dtype)
            outputs.append(output.reshape(x.shape[0], -1, row_length, architecture.heads, head_width))
        output = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)
        if inputs.head_scale is not None:
            output = output * inputs.head_scale[..., None]
        return self.output(output.reshape(*x.shape[:-1], -1).astype(x.dtype), compute_dtype)

    def attend_within_pieces(
        self, query, key, value, block: RowBlock, window: int, seeds: Array | None, compute_dtype: DTypeLike
    ) -> Float[Array, "g pieces l ..."]:
        """Attention within each piece of a row block, by the fastest method for pieces of this length."""
        attend = partial(self.attend, compute_dtype=compute_dtype)
        visible = {"window": window, "causal": self.architecture.causal}
        has_dropout = seeds is not None and self.architecture.attention_dropout > 0.0
        can_fuse = not (self.architecture.relative_buckets or has_dropout)  # the TPU kernel has neither
        if can_fuse and should_fuse(block.owner.shape[2], compute_dtype):
            return fused(query, key, value, block.owner, **visible)
        if block.bias is None:
            return attend_in_blocks(attend, query, key, value, block.owner, seeds=seeds, **visible)
        return attend(query, key, value, block.bias, seeds=seeds)

    def attend(self, query, key, value, bias, *, seeds, compute_dtype: DTypeLike) -> Float[Array, "g r l ..."]:
        """The average of the values `[g r k h f]` under the softmax of scores plus `bias [g r #h q k]`.

        Queries and results are `[g r q h f]`, or with grouped keys `[g r q h u f]`.
        """
        u = ""
        if self.has_grouped_keys:
            u = "u"
            bias = bias[:, :, :, :, None]  # [g r #h q 1 k]
        scores = contraction(f"grqh{u}f,grkhf->grhq{u}k", query, key, compute_dtype)
        weights = dropout(jax.nn.softmax(scores + bias, axis=-1), self.architecture.attention_dropout, seeds, site=0)
        return contraction(f"grhq{u}k,grkhf->grqh{u}f", weights, value, compute_dtype)


def make_layer_inputs(
    tokens: Tokens, kind: LayerKind, architecture: Architecture, relative_bias: Table | None
) -> LayerInputs:
    """Masks, relative positions and rotations for layers of one kind; `relative_bias` is MPNet's table."""
    owners = [tokens.owner]
    if tokens.parts is not None:  # the last rows are divided
        groups, divided_rows, parts = tokens.parts.shape
        rows, length = tokens.owner.shape[1:]
        whole_rows = tokens.owner[:, : rows - divided_rows]
        row_parts = tokens.owner[:, rows - divided_rows :].reshape(groups, divided_rows * parts, length // parts)
        owners = [owner for owner in (whole_rows, row_parts) if owner.shape[1]]  # either may be empty
    biases = [score_bias(owner, kind, relative_bias, causal=architecture.causal) for owner in owners]
    rotation = rotary_angles(tokens.position, kind, architecture.head_width) if kind.theta else None
    return LayerInputs(tuple(map(RowBlock, owners, biases)), rotation, kind.window)


def rotary_angles(
    position: Integer[Array, "g r l"], kind: LayerKind, head_width: int
) -> tuple[Float[Array, "g r l _"], Float[Array, "g r l _"]]:
    """Cosines and sines of the angles for `rotated`, after Su et al., RoFormer, 2021, https://arxiv.org/abs/2104.09864."""
    undivided = kind.theta ** (-np.arange(0, head_width, 2) / head_width)
    frequencies = undivided / kind.divisor
    if kind.divided_above:
        # Frequencies of long wavelengths are divided, those of short ones kept, and those between interpolated.
        borders = 2 * np.pi / np.array([kind.divided_above, kind.kept_below])
        kept_share = np.interp(undivided, borders, [0.0, 1.0])
        frequencies += kept_share * (undivided - frequencies)
    angles = position[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None, None]
    return jnp.cos(angles), jnp.sin(angles)


def score_bias(
    owner: Integer[Array, "g r l"], kind: LayerKind, relative_bias: Table | None, *, causal: bool
) -> Float[Array, "g r #h l l"] | None:
    """The mask of a row block, plus MPNet's relative positions. None: `attend_in_blocks` computes the mask, for long rows without these."""
    length = owner.shape[-1]
    is_static = isinstance(length, int)  # else a symbol (`jax.export`), which cannot be divided into blocks
    if is_static and length > MAX_WHOLE_ROW and relative_bias is None:
        return None
    slots = np.arange(length) if is_static else jnp.arange(length)
    mask = attention_mask(owner, owner, slots, slots, kind.window, causal=causal)
    if relative_bias is None:
        return mask
    # A sentence's tokens are adjacent, so distances between slots equal distances between positions.
    distance = jnp.clip(jnp.expand_dims(slots, 0) - jnp.expand_dims(slots, 1), -MAX_DISTANCE, MAX_DISTANCE)  # [q k]
    buckets = jnp.asarray(relative_buckets(np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)))
    by_head = relative_bias(buckets[distance + MAX_DISTANCE]).transpose(2, 0, 1)  # [h q k]
    return mask + by_head[None, None]


def attention_mask(
    query_owner: Integer[Array, "g r q"],
    key_owner: Integer[Array, "g r k"],
    query_slots: Integer[Array, " q"],
    key_slots: Integer[Array, " k"],
    window: int,
    *,
    causal: bool,
) -> Float[Array, "g r 1 q k"]:
    """0 where a query may attend to a key, the smallest float32 elsewhere.

    Query and key must be in one sentence, and at most `window` slots apart (0: any); with `causal`, the key must not come later.
    """
    is_visible = query_owner[:, :, :, None] == key_owner[:, :, None, :]
    distance = jnp.expand_dims(key_slots, 0) - jnp.expand_dims(query_slots, 1)
    if window:
        is_visible = is_visible & (abs(distance) <= window)[None, None]
    if causal:
        is_visible = is_visible & (distance <= 0)[None, None]
    # Finite, because a query that sees no key, such as one that fills a block, would get NaN from a softmax of -inf.
    return jnp.where(is_visible, 0.0, jnp.finfo(jnp.float32).min)[:, :, None]


def attend_in_blocks(
    attend: Callable[..., Array], query, key, value, owner, *, window: int, causal: bool, seeds
) -> Float[Array, "g r l ..."]:
    """Calls `attend`, an `Attention.attend`, on one block of queries at a time, with the keys in the block's window.

    The backward pass recomputes each block's scores.
    """
    length = owner.shape[-1]
    blocks = math.ceil(length / BLOCK_QUERIES)
    # Every block reads the same number of adjacent keys, because slices have a static size.
    span = min(length, BLOCK_QUERIES + 2 * window) if window else length
    padding = (0, blocks * BLOCK_QUERIES - length)
    padded_query = jnp.pad(query, ((0, 0), (0, 0), padding) + ((0, 0),) * (query.ndim - 3))
    # Slots that fill the last block belong to no sentence; their rows are cut off below.
    padded_owner = jnp.pad(owner, ((0, 0), (0, 0), padding), constant_values=-1)

    @jax.checkpoint
    def attend_block(index: Array) -> Array:
        start = index * BLOCK_QUERIES
        # At both ends of the row, the span moves inwards; the mask hides its keys outside the window.
        first_key = jnp.clip(start - window, 0, length - span) if window else jnp.zeros_like(start)
        take_queries = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=BLOCK_QUERIES, axis=2)
        take_keys = partial(jax.lax.dynamic_slice_in_dim, start_index=first_key, slice_size=span, axis=2)
        slots = (start + jnp.arange(BLOCK_QUERIES), first_key + jnp.arange(span))
        mask = attention_mask(take_queries(padded_owner), take_keys(owner), *slots, window, causal=causal)
        # Another dropout mask for each block.
        block_seeds = None if seeds is None else seeds + index.astype(seeds.dtype)
        return attend(take_queries(padded_query), take_keys(key), take_keys(value), mask, seeds=block_seeds)

    outputs = jax.lax.map(attend_block, jnp.arange(blocks))  # [blocks g r BLOCK_QUERIES ...]
    joined = jnp.moveaxis(outputs, 0, 2).reshape(*query.shape[:2], blocks * BLOCK_QUERIES, *query.shape[3:])
    return joined[:, :, :length]


def rotated(
    x: Float[Array, "g r l h f"], cosines: Float[Array, "g r l f//2"], sines: Float[Array, "g r l f//2"]
) -> Float[Array, "g r l h f"]:
    """Rotates the pairs of numbers that lie half a head apart by their token's angles, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = (angles[:, :, :, None] for angles in (cosines, sines))
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def relative_buckets(distance: np.ndarray) -> np.ndarray:
    """The bucket of each distance `key - query`, as in T5 (Raffel et al., JMLR 2020).

    Each direction has half of the buckets: one half of these for single distances, the other for ranges that grow with distance.
    """
    per_direction = BUCKETS // 2
    exact = per_direction // 2  # smaller distances have a bucket each
    size = np.abs(distance)
    # 0 at the distance `exact`, 1 at `MAX_DISTANCE`. The maximum avoids log(0); smaller distances than `exact` do not use it.
    log_share = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(MAX_DISTANCE / exact)
    log_bucket = exact + (log_share * (per_direction - exact)).astype(np.int32)
    bucket = np.where(size < exact, size, np.minimum(log_bucket, per_direction - 1))
    return np.where(distance > 0, per_direction, 0) + bucket
