"""Self-attention over packed rows, with every family's variations: heads, norms, rotary positions, windows.

A row holds several sentences, and a token attends only to its own. Padding attends to padding, as an empty softmax is NaN.
"""

import math
from collections.abc import Callable, Sequence
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
    """Multi-head self-attention; its `norm`, which it has if `normed`, is applied by `Layer`.

    `sliced`: a loop over layers slices the weights. Queries, keys and values are then separate products, because joining the
    slices would copy them in every round.
    """

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs, normed: bool, sliced: bool):
        self.architecture = architecture
        self.sliced = sliced
        # Grouped keys lie beside their queries and values, so that devices that each hold some heads
        # (`run.sharding=tensor`) move no weights. Else one block: copies into blocks take a tenth of a short sentence's time.
        self.has_grouped_keys = architecture.key_head_count != architecture.heads
        self.head_blocks = architecture.key_head_count if self.has_grouped_keys else 1
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
        seeds = inputs.seeds
        query, key, value = self.project(x, compute_dtype)
        if self.query_norm is not None and self.key_norm is not None:
            query = self.query_norm(query)
            key = self.key_norm(key)
        if inputs.rotation is not None:
            query = rotated(query, *inputs.rotation)
            key = rotated(key, *inputs.rotation)
        # The scale goes on the queries, which are fewer than the scores.
        head_width = architecture.head_width
        query = query.astype(jnp.float32) * (architecture.attention_scale or 1.0 / math.sqrt(head_width))
        if self.has_grouped_keys:
            query = query.reshape(*x.shape[:-1], architecture.key_head_count, -1, head_width)  # [g r l h u f]
        attend = partial(self.attend, compute_dtype=compute_dtype)
        visible = {"window": inputs.window, "causal": architecture.causal}
        has_dropout = seeds is not None and architecture.attention_dropout > 0.0
        can_fuse = not (architecture.relative_buckets or has_dropout)  # the TPU kernel has neither
        outputs = []
        first_row = 0
        for index, block in enumerate(inputs.row_blocks):
            pieces, length = block.owner.shape[1:]
            rows = slice(first_row, first_row + pieces * length // x.shape[2])
            qkv = [array[:, rows].reshape(-1, pieces, length, *array.shape[3:]) for array in (query, key, value)]
            # Seeds of row blocks are 2^16 apart, because `attend_in_blocks` adds the index of a block, which is smaller.
            block_seeds = None if seeds is None else seeds + jnp.uint32(index << 16)
            if can_fuse and should_fuse(length, compute_dtype):
                output = fused(*qkv, block.owner, **visible)
            elif block.bias is None:
                output = attend_in_blocks(attend, *qkv, block.owner, seeds=block_seeds, **visible)
            else:
                output = attend(*qkv, block.bias, seeds=block_seeds)
            outputs.append(output.reshape(x.shape[0], -1, x.shape[2], architecture.heads, head_width))
            first_row = rows.stop
        output = outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=1)
        if inputs.head_scale is not None:
            output = output * inputs.head_scale[..., None]
        return self.output(output.reshape(*x.shape[:-1], -1).astype(x.dtype), compute_dtype)

    def project(self, x: Float[Array, "g r l d"], compute_dtype: DTypeLike) -> list[Float[Array, "g r l _ f"]]:
        """Queries, keys and values by head; keys and values may have fewer heads."""
        linears = (self.query, self.key, self.value)
        if self.sliced:
            parts = [linear(x, compute_dtype) for linear in linears]
        else:
            # One wide product for the three, and one gradient with respect to x instead of a sum of three.
            kernels = [linear.kernel[...] for linear in linears]
            joined = product(x, self.concat_qkv(kernels), compute_dtype=compute_dtype)
            biases = [linear.bias[...] for linear in linears if linear.bias is not None]
            if biases:
                joined = joined + expanded(self.concat_qkv(biases).astype(joined.dtype), joined)
            joined = joined.astype(x.dtype).reshape(*x.shape[:-1], self.head_blocks, -1)
            query_width, key_width, _ = (kernel.shape[1] // self.head_blocks for kernel in kernels)
            parts = jnp.split(joined, (query_width, query_width + key_width), axis=-1)
        return [part.reshape(*x.shape[:-1], -1, self.architecture.head_width) for part in parts]

    def attend(self, query, key, value, bias, *, seeds, compute_dtype: DTypeLike) -> Float[Array, "g r l ..."]:
        """The average of the values under the softmax of scores plus `bias`; with grouped keys, `query` is `[g r l h u f]`."""
        u = ""
        if self.has_grouped_keys:  # axis `u` has the queries of one key head
            u = "u"
            bias = bias[:, :, :, :, None]
        scores = contraction(f"grqh{u}f,grkhf->grhq{u}k", query, key, compute_dtype)
        weights = dropout(jax.nn.softmax(scores + bias, axis=-1), self.architecture.attention_dropout, seeds, 0)
        return contraction(f"grhq{u}k,grkhf->grqh{u}f", weights, value, compute_dtype)

    def concat_qkv(self, arrays: Sequence[Float[Array, "... _"]]) -> Float[Array, "... qkv"]:
        """Concatenates weights of queries, keys and values within each block of heads: a key head and its queries, or all heads."""
        parts = [array.reshape(*array.shape[:-1], self.head_blocks, -1) for array in arrays]
        return jnp.concatenate(parts, axis=-1).reshape(*arrays[0].shape[:-1], -1)


def make_layer_inputs(
    tokens: Tokens, kind: LayerKind, architecture: Architecture, relative_bias: Table | None
) -> LayerInputs:
    """Masks, relative positions and rotations for layers of one kind; `relative_bias` is MPNet's table."""
    owners = [tokens.owner]
    if tokens.parts is not None:  # a block of whole rows, and one whose pieces are the parts of divided rows
        groups, divided, parts = tokens.parts.shape
        rows, length = tokens.owner.shape[1:]
        whole = tokens.owner[:, : rows - divided]
        pieces = tokens.owner[:, rows - divided :].reshape(groups, divided * parts, length // parts)
        owners = [owner for owner in (whole, pieces) if owner.shape[1]]
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
        # Between the frequencies of the two wavelengths, the share that is not divided rises linearly from 0 to 1.
        borders = 2 * np.pi / np.array([kind.divided_above, kind.kept_below])
        frequencies += np.interp(undivided, borders, [0.0, 1.0]) * (undivided - frequencies)
    angles = position[..., None].astype(jnp.float32) * frequencies.astype(np.float32)[None, None, None]
    return jnp.cos(angles), jnp.sin(angles)


def score_bias(
    owner: Integer[Array, "g r l"], kind: LayerKind, relative_bias: Table | None, *, causal: bool
) -> Float[Array, "g r #h l l"] | None:
    """The mask of a row block, plus MPNet's relative positions; None for long rows, whose mask `attend_in_blocks` computes."""
    length = owner.shape[-1]
    is_static = isinstance(length, int)  # a symbolic length (`jax.export`) cannot be divided into blocks
    if is_static and length > MAX_WHOLE_ROW and relative_bias is None:
        return None
    slots = np.arange(length) if is_static else jnp.arange(length)
    mask = attention_mask(owner, owner, slots, slots, kind.window, causal=causal)
    if relative_bias is None:
        return mask
    # A sentence's tokens are adjacent, so distances between slots equal distances between positions.
    distance = jnp.clip(jnp.expand_dims(slots, 0) - jnp.expand_dims(slots, 1), -MAX_DISTANCE, MAX_DISTANCE)
    buckets = jnp.asarray(relative_buckets(np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)))
    by_head = relative_bias(buckets[distance + MAX_DISTANCE]).transpose(2, 0, 1)
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

    Both must be in the same sentence, and at most `window` slots apart (0: any); with `causal`, the key must not come later.
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
    attend: Callable[..., Array], query, key, value, owner, *, window: int, causal: bool, seeds
) -> Float[Array, "g r l ..."]:
    """Calls `attend`, an `Attention.attend`, on one block of queries at a time, with the keys in the block's window.

    The backward pass recomputes each block's scores.
    """
    length = owner.shape[-1]
    blocks = math.ceil(length / BLOCK_QUERIES)
    span = min(length, BLOCK_QUERIES + 2 * window) if window else length
    padding = (0, blocks * BLOCK_QUERIES - length)
    padded_query = jnp.pad(query, ((0, 0), (0, 0), padding) + ((0, 0),) * (query.ndim - 3))
    # Slots that fill the last block belong to no sentence; their rows are cut off below.
    padded_owner = jnp.pad(owner, ((0, 0), (0, 0), padding), constant_values=-1)

    @jax.checkpoint
    def attend_block(index: Array) -> Array:
        start = index * BLOCK_QUERIES
        # The span has a static size: at both ends it moves inwards, and the mask hides keys outside the window.
        first_key = jnp.clip(start - window, 0, length - span) if window else jnp.zeros_like(start)
        queries_of = partial(jax.lax.dynamic_slice_in_dim, start_index=start, slice_size=BLOCK_QUERIES, axis=2)
        keys_of = partial(jax.lax.dynamic_slice_in_dim, start_index=first_key, slice_size=span, axis=2)
        slots = (start + jnp.arange(BLOCK_QUERIES), first_key + jnp.arange(span))
        mask = attention_mask(queries_of(padded_owner), keys_of(owner), *slots, window, causal=causal)
        # Another dropout mask for each block.
        block_seeds = None if seeds is None else seeds + index.astype(seeds.dtype)
        return attend(queries_of(padded_query), keys_of(key), keys_of(value), mask, seeds=block_seeds)

    outputs = jax.lax.map(attend_block, jnp.arange(blocks))
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

    Each direction has half of the buckets: one half of these for single distances, the other for logarithmic ranges.
    """
    half = BUCKETS // 2
    exact = half // 2
    size = np.abs(distance)
    share = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (share * (half - exact)).astype(np.int32), half - 1)
    return np.where(distance > 0, half, 0) + np.where(size < exact, size, far)
