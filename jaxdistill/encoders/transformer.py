"""How do token ids become hidden states? The body of BERT and its relatives, over packed rows.

A row holds several sentences. A token attends to the tokens of its own sentence, padding to padding alone, so that
every softmax has something to sum over and nothing becomes NaN.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jaxdistill.core import Tokens
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.layers import (
    ACTIVATION_FUNCTIONS,
    LayerNorm,
    Linear,
    Table,
    contraction,
    drophead,
    dropout,
    expanded,
)
from jaxdistill.ops.dense import product

SITES_PER_LAYER = 3
"""Dropout happens on attention probabilities, attention output and feed-forward output."""


class Embeddings(nnx.Module):
    """Word, position and token type embeddings, normalised, projected where the family does so."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        width = a.embedding_size
        self.position_offset, self.rate = a.position_offset, a.hidden_dropout
        self.word = Table(a.vocab_size, width, rngs=rngs, zero_row=a.pad_id)
        self.position = Table(a.max_positions, width, rngs=rngs)
        self.token_type = Table(a.token_types, width, rngs=rngs) if a.token_types else None
        self.norm = LayerNorm(width, a.layer_norm_eps)
        self.projection = Linear(width, a.hidden_size, rngs=rngs) if width != a.hidden_size else None

    def __call__(self, tokens: Tokens, *, seeds: Array | None, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        x = self.word(tokens.ids) + self.position(tokens.position + self.position_offset)
        if self.token_type is not None:
            x = x + self.of_type(tokens.types, x)
        x = dropout(self.norm(x), self.rate, seeds, 0)
        return x if self.projection is None else self.projection(x, compute_dtype)

    def of_type(self, types: Int[Array, "g r l"] | None, x: Float[Array, "g r l h"]) -> Float[Array, "g r l h"]:
        """Token type embeddings; a family whose table has one row (RoBERTa) does not tell the sentences of a pair apart."""
        table = self.token_type.embedding
        return expanded(table[0], x) if types is None or table.shape[0] == 1 else self.token_type(types)


class Attention(nnx.Module):
    """Multi-head self-attention with its residual and norm."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        self.heads, self.rate, self.attention_rate = a.heads, a.hidden_dropout, a.attention_dropout
        self.query = Linear(a.hidden_size, a.hidden_size, rngs=rngs)
        self.key = Linear(a.hidden_size, a.hidden_size, rngs=rngs)
        self.value = Linear(a.hidden_size, a.hidden_size, rngs=rngs)
        self.output = Linear(a.hidden_size, a.hidden_size, rngs=rngs)
        self.norm = LayerNorm(a.hidden_size, a.layer_norm_eps)

    def __call__(
        self,
        x: Float[Array, "g r l d"],
        bias: Float[Array, "g r #h l l"],
        head_scale: Float[Array, "g r l h"] | None,
        *,
        seeds: Array | None,
        site: int,
        compute_dtype: DTypeLike,
    ) -> Float[Array, "g r l d"]:
        size = x.shape[-1] // self.heads
        # One product for the three: fewer and wider, and one gradient with respect to x instead of a sum of three.
        linears = (self.query, self.key, self.value)
        kernel = jnp.concatenate([linear.kernel[...] for linear in linears], axis=1)
        bias_of_three = jnp.concatenate([linear.bias[...] for linear in linears])
        together = product(x, kernel, compute_dtype=compute_dtype)
        together = (together + expanded(bias_of_three, together)).reshape(*x.shape[:-1], 3, self.heads, size)
        query, keys, value = (together[..., part, :, :] for part in range(3))
        # The scale goes on the queries, which are fewer than the scores.
        scores = contraction("grqhs,grkhs->grhqk", query * (1.0 / math.sqrt(size)), keys, compute_dtype)
        weights = dropout(jax.nn.softmax(scores + bias, axis=-1), self.attention_rate, seeds, site)
        mixed = contraction("grhqk,grkhs->grqhs", weights, value, compute_dtype)
        if head_scale is not None:
            mixed = mixed * head_scale[..., None]
        output = self.output(mixed.reshape(x.shape), compute_dtype)
        return self.norm(x + dropout(output, self.rate, seeds, site + 1))


class Layer(nnx.Module):
    """Attention, then the feed-forward network, each with a residual and a norm behind it."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        self.activation, self.rate = a.activation, a.hidden_dropout
        self.attention = Attention(a, rngs=rngs)
        self.intermediate = Linear(a.hidden_size, a.intermediate_size, rngs=rngs)
        self.output = Linear(a.intermediate_size, a.hidden_size, rngs=rngs)
        self.norm = LayerNorm(a.hidden_size, a.layer_norm_eps)

    def __call__(self, x, bias, head_scale, *, seeds: Array | None, site: int, compute_dtype: DTypeLike):
        x = self.attention(x, bias, head_scale, seeds=seeds, site=site, compute_dtype=compute_dtype)
        hidden = ACTIVATION_FUNCTIONS[self.activation](self.intermediate(x, compute_dtype))
        return self.norm(x + dropout(self.output(hidden, compute_dtype), self.rate, seeds, site + 2))


class Transformer(nnx.Module):
    """Embeddings and layers; the pooler's weights lie here too, as in the checkpoints."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        self.embeddings = Embeddings(a, rngs=rngs)
        self.relative_bias = Table(a.relative_buckets, a.heads, rngs=rngs) if a.relative_buckets else None
        self.layers = nnx.List([Layer(a, rngs=rngs) for _ in range(a.layers)])
        self.pooler = Linear(a.hidden_size, a.hidden_size, rngs=rngs) if a.pooler else None
        self.heads, self.drophead = a.heads, a.drophead

    def __call__(
        self, tokens: Tokens, *, key: Array | None, compute_dtype: DTypeLike, remat: bool
    ) -> list[Float[Array, "g r l d"]]:
        """Hidden states: the embeddings' output, then each layer's."""
        seeds, head_seeds = self.seeds(key)
        x = self.embeddings(tokens, seeds=seeds, compute_dtype=compute_dtype)
        bias = self.attention_bias(tokens.owner)
        states = [x]
        for index, layer in enumerate(self.layers):

            def apply(x, bias, head_scale, seeds, layer=layer, site=1 + SITES_PER_LAYER * index):
                return layer(x, bias, head_scale, seeds=seeds, site=site, compute_dtype=compute_dtype)

            head_scale = None if head_seeds is None else self.head_scale(tokens, head_seeds[index])
            x = (jax.checkpoint(apply) if remat else apply)(x, bias, head_scale, seeds)
            states.append(x)
        return states

    def seeds(self, key: Array | None) -> tuple[Int[Array, "s 2"] | None, Int[Array, "s 2"] | None]:
        """Seeds of every place that drops numbers, and of every layer that drops heads; None where nothing is dropped."""
        if key is None:
            return None, None
        sites = 1 + SITES_PER_LAYER * len(self.layers)
        seeds = jax.random.bits(key, (sites, 2), jnp.uint32)
        if self.drophead == 0.0:
            return seeds, None
        return seeds, jax.random.bits(jax.random.fold_in(key, 1), (len(self.layers), 2), jnp.uint32)

    def head_scale(self, tokens: Tokens, seed: Int[Array, " 2"]) -> Float[Array, "g r l h"]:
        """A layer's draw of heads, token by token."""
        sentences = tokens.first.shape[-1]
        return drophead(self.drophead, seed, tokens.owner, sentences=sentences, heads=self.heads)

    def attention_bias(self, owner: Int[Array, "g r l"]) -> Float[Array, "g r #h l l"]:
        """What is added to attention scores: the mask between sentences and MPNet's relative positions."""
        same = owner[:, :, :, None] == owner[:, :, None, :]
        mask = jnp.where(same, 0.0, jnp.finfo(jnp.float32).min)[:, :, None]
        if self.relative_bias is None:
            return mask
        length = owner.shape[-1]
        # Tokens of one sentence lie together, so slots are as far apart as positions.
        distance = np.arange(length)[None, :] - np.arange(length)[:, None]
        buckets = relative_buckets(distance, self.relative_bias.embedding.shape[0])
        return mask + self.relative_bias(buckets).transpose(2, 0, 1)[None, None]


def relative_buckets(distance: np.ndarray, buckets: int, longest: int = 128) -> np.ndarray:
    """T5's buckets of `key - query` distances, both directions: exact up to a quarter of them, then logarithmic.

    Source: Raffel et al., T5, JMLR 2020; MPNet uses 32 buckets and a longest distance of 128.
    """
    half = buckets // 2
    exact = half // 2
    size = np.abs(distance)
    logarithmic = np.log(np.maximum(size, 1).astype(np.float32) / exact) / math.log(longest / exact) * (half - exact)
    far = np.minimum(exact + logarithmic.astype(np.int32), half - 1)
    return np.where(distance > 0, half, 0) + np.where(size < exact, size, far)
