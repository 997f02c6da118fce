"""Maps token ids to hidden states: embeddings and a stack of layers, assembled from an `Architecture`."""

import math
from collections.abc import Callable, Hashable, Iterable
from operator import itemgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import STACKED, Array, Params, Tokens
from jaxdistill.core.ops.dense import computed_once
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.attention import Attention, AttentionInputs, make_attention_inputs
from jaxdistill.encoders.layers import (
    ACTIVATION_FUNCTIONS,
    Linear,
    Norm,
    Table,
    drophead,
    dropout,
    expanded,
    recompute_in_backward,
)

SITES_PER_LAYER = 3
"""Dropout sites of a layer: attention probabilities, attention output and feed-forward output."""


def path_string(path: Iterable[Hashable]) -> str:
    """A parameter's path as one string."""
    return "/".join(map(str, path))


class Embeddings(nnx.Module):
    """Sum of word, position and token type embeddings, normalised and projected as the family requires."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        width = a.embedding_size
        self.position_offset = a.position_offset
        self.dropout_rate = a.hidden_dropout
        self.scale = math.sqrt(width) if a.embedding_scaled else 1.0
        self.word = Table(a.vocab_size, width, rngs=rngs, zero_row=a.pad_id)
        self.position = Table(a.max_positions, width, rngs=rngs) if a.position_table else None
        self.token_type = Table(a.token_types, width, rngs=rngs) if a.token_types else None
        self.norm = Norm(width, a.layer_norm_eps, a.norm) if a.embedding_norm else None
        projects = a.embedding_projected or width != a.hidden_size
        self.projection = Linear(width, a.hidden_size, rngs=rngs) if projects else None

    def __call__(self, tokens: Tokens, *, seeds: Array | None, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        x = self.scaled(self.word(tokens.ids))
        if self.position is not None:
            x = x + self.position(self.position_rows(tokens))
        if self.token_type is not None:
            table = self.token_type.embedding
            if tokens.types is None or table.shape[0] == 1:  # RoBERTa has one row for both sentences of a pair
                x = x + expanded(table[0].astype(x.dtype), x)
            else:
                x = x + self.token_type(tokens.types)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.dropout_rate, seeds, 0)
        return x if self.projection is None else self.projection(x, compute_dtype)

    def position_rows(self, tokens: Tokens) -> Integer[Array, "g r l"]:
        """Rows of the position table.

        If positions start after the padding token's row, a literal padding token in a text uses that row, and positions
        after it count as if it were absent.
        """
        if not self.position_offset:
            return tokens.position
        padding = self.position_offset - 1
        is_padding = (tokens.ids == padding).astype(jnp.int32)
        before = jnp.cumsum(is_padding, axis=-1) - is_padding  # padding tokens in earlier slots of the row
        start = jnp.arange(tokens.ids.shape[-1])[None, None] - tokens.position  # slot of the sentence's first token
        before_in_sentence = before - jnp.take_along_axis(before, start, axis=-1)
        return jnp.where(is_padding == 1, padding, tokens.position + self.position_offset - before_in_sentence)

    def scaled(self, rows: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Rows of the word table, scaled as the family requires."""
        return rows if self.scale == 1.0 else rows * self.scale


class Layer(nnx.Module):
    """Attention, then the feed-forward network, each with a residual and norms. `sliced`: see `Attention`."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, first: bool, sliced: bool = False):
        self.activation = a.activation
        self.dropout_rate = a.hidden_dropout
        self.norm_place = a.norm_place
        self.attention = Attention(a, rngs=rngs, normed=a.first_norm or not first, sliced=sliced)
        self.gate = Linear(a.hidden_size, a.intermediate_size, rngs=rngs, bias=a.intermediate_bias) if a.gated else None
        self.intermediate = Linear(a.hidden_size, a.intermediate_size, rngs=rngs, bias=a.intermediate_bias)
        self.output = Linear(a.intermediate_size, a.hidden_size, rngs=rngs, bias=a.output_bias)
        self.norm = Norm(a.hidden_size, a.layer_norm_eps, a.norm)
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
        attended = self.attention(
            self.block_input(x, self.attention), inputs, head_scale,
            kind=kind, seeds=seeds, compute_dtype=compute_dtype,
        )  # fmt: skip
        x = self.residual_sum(x, dropout(attended, self.dropout_rate, seeds, 1), self.attention)
        output = self.feed_forward(self.block_input(x, self), compute_dtype)
        return self.residual_sum(x, dropout(output, self.dropout_rate, seeds, 2), self)

    def feed_forward(self, x: Float[Array, "g r l d"], compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        activation = ACTIVATION_FUNCTIONS[self.activation]

        @recompute_in_backward
        def hidden(intermediate: Array, gate: Array | None) -> Array:
            intermediate = intermediate.astype(jnp.float32)
            y = activation(intermediate) if gate is None else activation(gate.astype(jnp.float32)) * intermediate
            return y.astype(x.dtype)

        gate = None if self.gate is None else self.gate(x, compute_dtype)
        return self.output(computed_once(hidden(self.intermediate(x, compute_dtype), gate)), compute_dtype)

    def block_input(self, x: Float[Array, "g r l d"], block: "Attention | Layer") -> Float[Array, "g r l d"]:
        """`x`, normalised if the norm of the block (attention, or the layer itself for feed-forward) precedes it."""
        norm = block.norm
        if self.norm_place == "post" or norm is None:
            return x
        return recompute_in_backward(lambda x: norm(x).astype(x.dtype))(x)

    def residual_sum(
        self, x: Float[Array, "g r l d"], y: Float[Array, "g r l d"], block: "Attention | Layer"
    ) -> Float[Array, "g r l d"]:
        """The sum of `x` and a block's output `y`, with the norms that come after the block."""
        norm = block.norm if self.norm_place == "post" else None

        @recompute_in_backward
        def add(x: Array, y: Array) -> Array:
            y = y.astype(jnp.float32) if block.norm_after is None else block.norm_after(y)
            total = x.astype(jnp.float32) + y
            return (total if norm is None else norm(total)).astype(x.dtype)

        return add(x, y)


class LayerSeeds(NamedTuple):
    """Random seeds of a layer, or of several on leading axes; None: nothing is dropped."""

    sites: Integer[Array, "*_ 3 2"] | None = None
    """Seeds of the layer's dropout sites."""
    heads: Integer[Array, "*_ 2"] | None = None
    """Seed of DropHead."""

    def select(self, layers: int | slice) -> "LayerSeeds":
        """The seeds of one or some of the layers."""
        return jax.tree.map(itemgetter(layers), self)


class Transformer(nnx.Module):
    """Embeddings and layers; also holds the pooler's weights, as checkpoints do.

    If `stacked`, the layers that repeat (`Architecture.repeated_layers`) are held as those of one period, each weight with a
    leading axis for the periods. A loop runs them, so that the compiled program does not grow with their number.
    """

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, stacked: bool = False):
        self.embeddings = Embeddings(a, rngs=rngs)
        self.relative_bias = Table(a.relative_buckets, a.heads, rngs=rngs) if a.relative_buckets else None
        if stacked:
            start, period = a.repeated_layers
        else:
            start, period = (1 if a.shared_layers else a.layers), 0
        layers = [Layer(a, rngs=rngs, first=index == 0, sliced=index >= start) for index in range(start + period)]
        self.layers = nnx.List(layers[:start])
        self.stacked = nnx.List(layers[start:])
        self.norm = Norm(a.hidden_size, a.layer_norm_eps, a.norm) if a.norm_place != "post" else None
        self.pooler = Linear(a.hidden_size, a.hidden_size, rngs=rngs) if a.pooler else None
        self.architecture = a

    def __call__(
        self,
        tokens: Tokens,
        *,
        key: jax.Array | None,
        compute_dtype: DTypeLike,
        remat: bool,
        gather: Callable[[Params], Params] = dict,
    ) -> list[Float[Array, "g r l d"]]:
        """Hidden states in float32: the embeddings' output, then each layer's; a final norm applies to the last.

        Between layers, and between the parts of a layer, states have the compute dtype.

        Args:
          key: random key of dropout and DropHead; None: none.
          gather: collects the shards of one period of stacked layers, before the loop runs it.
        """
        a = self.architecture
        embedding_seeds, layer_seeds = None, LayerSeeds()
        if key is not None:
            bits = jax.random.bits(key, (1 + SITES_PER_LAYER * a.layers, 2), jnp.uint32)
            heads = jax.random.bits(jax.random.fold_in(key, 1), (a.layers, 2), jnp.uint32) if a.drophead else None
            embedding_seeds = bits[:1]
            layer_seeds = LayerSeeds(bits[1:].reshape(a.layers, SITES_PER_LAYER, 2), heads)
        x = self.embeddings(tokens, seeds=embedding_seeds, compute_dtype=compute_dtype)
        # Masks and rotations are computed once for each kind of layer.
        attention_inputs = {
            kind: make_attention_inputs(
                tokens, kind, head_width=a.head_width, causal=a.causal, relative_bias=self.relative_bias
            )
            for kind in {a.kind(index) for index in range(a.layers)}
        }

        def run_layer(x: Array, layer: Layer, kind: LayerKind, seeds: LayerSeeds) -> Array:
            def apply(x, inputs, head_scale, seeds):
                return layer(x, inputs, head_scale, kind=kind, seeds=seeds, compute_dtype=compute_dtype)

            head_scale = None
            if seeds.heads is not None:
                sentences = tokens.first.shape[-1]
                head_scale = drophead(a.drophead, seeds.heads, tokens.owner, sentences=sentences, heads=a.heads)
            return (jax.checkpoint(apply) if remat else apply)(x, attention_inputs[kind], head_scale, seeds.sites)

        states = [x]
        x = x.astype(compute_dtype)
        start = a.repeated_layers[0] if self.stacked else a.layers
        for index in range(start):
            layer = self.layers[0 if a.shared_layers else index]
            x = run_layer(x, layer, a.kind(index), layer_seeds.select(index))
            states.append(x)
        if self.stacked:
            states += self.run_stacked(run_layer, x, layer_seeds.select(slice(start, None)), gather)
            x = states[-1]
        if self.norm is not None:
            states[-1] = self.norm(x)
        return [state.astype(jnp.float32) for state in states]

    def run_stacked(
        self,
        run_layer: Callable[[Array, Layer, LayerKind, LayerSeeds], Array],
        x: Float[Array, "g r l d"],
        seeds: LayerSeeds,
        gather: Callable[[Params], Params],
    ) -> list[Float[Array, "g r l d"]]:
        """The hidden states after each stacked layer."""
        a = self.architecture
        start, period = a.repeated_layers
        graph, state = nnx.split(self.stacked)
        variables = nnx.to_flat_state(state)
        weights = {f"{STACKED}{path_string(path)}": variable[...] for path, variable in variables}
        shared = {path: weight[0] for path, weight in weights.items()} if a.shared_layers else {}

        def run_period(x: Array, inputs: tuple[Params, LayerSeeds]) -> tuple[Array, list[Array]]:
            period_weights, period_seeds = inputs
            gathered = gather(period_weights or shared)
            params = [nnx.Param(gathered[f"{STACKED}{path_string(path)}"]) for path in variables.paths]
            layers = nnx.merge(graph, nnx.from_flat_state(zip(variables.paths, params, strict=True)))
            states = []
            for index, layer in enumerate(layers):
                x = run_layer(x, layer, a.kind(start + index), period_seeds.select(index))
                states.append(x)
            return x, states

        period_seeds = jax.tree.map(lambda array: array.reshape(-1, period, *array.shape[1:]), seeds)
        periods = (a.layers - start) // period
        x, stacks = jax.lax.scan(run_period, x, ({} if shared else weights, period_seeds), length=periods)
        states = [stack[index] for index in range(periods) for stack in stacks]
        # The last state is not taken from its stack, because the compiler drops stacks that are not read.
        return [*states[:-1], x]
