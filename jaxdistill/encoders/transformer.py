"""Maps token ids to hidden states: embeddings and a stack of layers, assembled from an `Architecture`."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.attention import Attention, Reach, reach_of
from jaxdistill.encoders.layers import (
    ACTIVATION_FUNCTIONS,
    Linear,
    Norm,
    Table,
    again_backward,
    drophead,
    dropout,
    expanded,
)

SITES_PER_LAYER = 3
"""Dropout sites of a layer: attention probabilities, attention output and feed-forward output."""


class Embeddings(nnx.Module):
    """Sum of word, position and token type embeddings, normalised and projected as the family requires."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        width = a.embedding_size
        self.position_offset, self.rate = a.position_offset, a.hidden_dropout
        self.scale = math.sqrt(width) if a.embedding_scaled else 1.0
        self.word = Table(a.vocab_size, width, rngs=rngs, zero_row=a.pad_id)
        self.position = Table(a.max_positions, width, rngs=rngs) if a.position_table else None
        self.token_type = Table(a.token_types, width, rngs=rngs) if a.token_types else None
        self.norm = Norm(width, a.layer_norm_eps, a.norm) if a.embedding_norm else None
        self.projection = Linear(width, a.hidden_size, rngs=rngs) if a.projects_embeddings else None

    def __call__(self, tokens: Tokens, *, seeds: Array | None, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        x = self.of_words(self.word(tokens.ids))
        if self.position is not None:
            x = x + self.position(self.position_rows(tokens))
        if self.token_type is not None:
            x = x + of_type(self.token_type, tokens.types, x)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.rate, seeds, 0)
        return x if self.projection is None else self.projection(x, compute_dtype)

    def position_rows(self, tokens: Tokens) -> Integer[Array, "g r l"]:
        """Rows of the position table.

        If positions start after the padding token's row, a literal padding token in a text uses that row, and positions
        after it count as if it were absent.
        """
        if not self.position_offset:
            return tokens.position
        padding = self.position_offset - 1
        skipped = (tokens.ids == padding).astype(jnp.int32)
        before = jnp.cumsum(skipped, axis=-1) - skipped
        start = jnp.arange(tokens.ids.shape[-1])[None, None] - tokens.position
        own = before - jnp.take_along_axis(before, start, axis=-1)
        return jnp.where(skipped == 1, padding, tokens.position + self.position_offset - own)

    def of_words(self, rows: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Rows of the word table, scaled as the family requires."""
        return rows if self.scale == 1.0 else rows * self.scale


def of_type(
    table: Table, types: Integer[Array, "g r l"] | None, like: Float[Array, "g r l d"]
) -> Float[Array, "#g #r #l d"]:
    """Token type embeddings; a table of one row (RoBERTa) does not distinguish the sentences of a pair."""
    rows = table.embedding
    return expanded(rows[0].astype(like.dtype), like) if types is None or rows.shape[0] == 1 else table(types)


class Layer(nnx.Module):
    """Attention, then the feed-forward network, each with a residual and one or two norms."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, first: bool):
        self.activation, self.rate, self.norm_place = a.activation, a.hidden_dropout, a.norm_place
        self.attention = Attention(a, rngs=rngs, normed=a.first_norm or not first)
        self.gate = Linear(a.hidden_size, a.intermediate_size, rngs=rngs, bias=a.intermediate_bias) if a.gated else None
        self.intermediate = Linear(a.hidden_size, a.intermediate_size, rngs=rngs, bias=a.intermediate_bias)
        self.output = Linear(a.intermediate_size, a.hidden_size, rngs=rngs, bias=a.output_bias)
        self.norm = Norm(a.hidden_size, a.layer_norm_eps, a.norm)
        self.norm_after = Norm(a.hidden_size, a.layer_norm_eps, a.norm) if a.norm_place == "both" else None

    def __call__(
        self,
        x: Float[Array, "g r l d"],
        reach: Reach,
        head_scale: Float[Array, "g r l h"] | None,
        *,
        kind: LayerKind,
        seeds: Array | None,
        site: int,
        compute_dtype: DTypeLike,
        mesh: Mesh | None,
    ) -> Float[Array, "g r l d"]:
        attended = self.attention(
            self.before(x, self.attention), reach, head_scale,
            kind=kind, seeds=seeds, site=site, compute_dtype=compute_dtype, mesh=mesh,
        )  # fmt: skip
        x = self.summed(x, dropout(attended, self.rate, seeds, site + 1), self.attention)
        output = self.feed_forward(self.before(x, self), compute_dtype)
        return self.summed(x, dropout(output, self.rate, seeds, site + 2), self)

    def feed_forward(self, x: Float[Array, "g r l d"], compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        activation = ACTIVATION_FUNCTIONS[self.activation]

        @again_backward
        def hidden(intermediate: Array, gate: Array | None) -> Array:
            intermediate = intermediate.astype(jnp.float32)
            y = activation(intermediate) if gate is None else activation(gate.astype(jnp.float32)) * intermediate
            return y.astype(x.dtype)

        gate = None if self.gate is None else self.gate(x, compute_dtype)
        return self.output(hidden(self.intermediate(x, compute_dtype), gate), compute_dtype)

    def before(self, x: Float[Array, "g r l d"], block: "Attention | Layer") -> Float[Array, "g r l d"]:
        """The input of a block: normalised unless norms come after the residual sum."""
        norm = block.norm
        if self.norm_place == "post" or norm is None:
            return x
        return again_backward(lambda x: norm(x).astype(x.dtype))(x)

    def summed(
        self, x: Float[Array, "g r l d"], y: Float[Array, "g r l d"], block: "Attention | Layer"
    ) -> Float[Array, "g r l d"]:
        """The residual sum of `x` and a block's output `y`, with the norms that come after the block."""
        norm = block.norm if self.norm_place == "post" else None

        @again_backward
        def summed(x: Array, y: Array) -> Array:
            y = y.astype(jnp.float32) if block.norm_after is None else block.norm_after(y)
            total = x.astype(jnp.float32) + y
            return (total if norm is None else norm(total)).astype(x.dtype)

        return summed(x, y)


class Transformer(nnx.Module):
    """Embeddings and layers; also holds the pooler's weights, as checkpoints do."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        self.embeddings = Embeddings(a, rngs=rngs)
        self.relative_bias = Table(a.relative_buckets, a.heads, rngs=rngs) if a.relative_buckets else None
        count = 1 if a.shared_layers else a.layers
        self.layers = nnx.List([Layer(a, rngs=rngs, first=index == 0) for index in range(count)])
        self.norm = Norm(a.hidden_size, a.layer_norm_eps, a.norm) if a.norm_place != "post" else None
        self.pooler = Linear(a.hidden_size, a.hidden_size, rngs=rngs) if a.pooler else None
        self.architecture = a

    def __call__(
        self, tokens: Tokens, *, key: jax.Array | None, compute_dtype: DTypeLike, remat: bool, mesh: Mesh | None = None
    ) -> list[Float[Array, "g r l d"]]:
        """Hidden states in float32: the embeddings' output, then each layer's; a final norm applies to the last.

        Between layers, and between the parts of a layer, states have the compute dtype.
        """
        a = self.architecture
        seeds, head_seeds = self.seeds(key)
        x = self.embeddings(tokens, seeds=seeds, compute_dtype=compute_dtype)
        reaches = self.reaches(tokens)
        states, x = [x], x.astype(compute_dtype)
        for index in range(a.layers):
            layer, kind = self.layers[0 if a.shared_layers else index], a.kind(index)

            def apply(x, reach, head_scale, seeds, layer=layer, kind=kind, site=1 + SITES_PER_LAYER * index):
                return layer(
                    x, reach, head_scale,
                    kind=kind, seeds=seeds, site=site, compute_dtype=compute_dtype, mesh=mesh,
                )  # fmt: skip

            head_scale = None if head_seeds is None else self.head_scale(tokens, head_seeds[index])
            x = (jax.checkpoint(apply) if remat else apply)(x, reaches[kind], head_scale, seeds)
            states.append(x)
        if self.norm is not None:
            states[-1] = self.norm(x)
        return [state.astype(jnp.float32) for state in states]

    def reaches(self, tokens: Tokens) -> dict[LayerKind, Reach]:
        """Masks and rotations for each kind of layer, computed once and shared by all its layers."""
        a = self.architecture
        return {
            kind: reach_of(tokens, kind, head_width=a.head_width, causal=a.causal, relative_bias=self.relative_bias)
            for kind in {a.kind(index) for index in range(a.layers)}
        }

    def seeds(self, key: jax.Array | None) -> tuple[Integer[Array, "sites 2"] | None, Integer[Array, "s 2"] | None]:
        """Seeds of every dropout site and of every layer with DropHead; None without dropout."""
        if key is None:
            return None, None
        layers = self.architecture.layers
        seeds = jax.random.bits(key, (1 + SITES_PER_LAYER * layers, 2), jnp.uint32)
        if self.architecture.drophead == 0.0:
            return seeds, None
        return seeds, jax.random.bits(jax.random.fold_in(key, 1), (layers, 2), jnp.uint32)

    def head_scale(self, tokens: Tokens, seed: Integer[Array, " 2"]) -> Float[Array, "g r l h"]:
        """A layer's DropHead factors, token by token."""
        sentences = tokens.first.shape[-1]
        a = self.architecture
        return drophead(a.drophead, seed, tokens.owner, sentences=sentences, heads=a.heads)
