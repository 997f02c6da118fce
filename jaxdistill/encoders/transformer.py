"""Maps token ids to hidden states: embeddings and a stack of layers, assembled from an `Architecture`."""

import math
from collections.abc import Callable, Hashable, Iterable
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import STACKED, Array, Params, Tokens
from jaxdistill.core.ops.dense import computed_once
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.attention import Attention, AttentionInputs, make_attention_inputs
from jaxdistill.encoders.layers import ACTIVATION_FUNCTIONS, Linear, Norm, Table, drophead, dropout, expanded

SITES_PER_LAYER = 3
"""Dropout sites of a layer: attention probabilities, attention output and feed-forward output."""


def path_string(path: Iterable[Hashable]) -> str:
    """A parameter's path as one string."""
    return "/".join(map(str, path))


def recompute_in_backward(function: Callable[..., Array]) -> Callable[..., Array]:
    """`jax.checkpoint` for elementwise float32 work on a bfloat16 array, whose float32 intermediates would take more memory
    than the array. Has no effect if the first argument is float32."""

    def apply(x: Array, *others: Array | None) -> Array:
        return (function if x.dtype == jnp.float32 else jax.checkpoint(function))(x, *others)

    return apply


class Embeddings(nnx.Module):
    """Sum of word, position and token type embeddings, normalised and projected as the family requires."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        width = a.embedding_size
        self.architecture = a
        self.word = Table(a.vocab_size, width, rngs=rngs, zero_row=a.pad_id)
        self.position = Table(a.max_positions, width, rngs=rngs) if a.position_table else None
        self.token_type = Table(a.token_types, width, rngs=rngs) if a.token_types else None
        self.norm = Norm(width, a.layer_norm_eps, a.norm) if a.embedding_norm else None
        projects = a.embedding_projected or width != a.hidden_size
        self.projection = Linear(width, a.hidden_size, rngs=rngs) if projects else None

    def __call__(self, tokens: Tokens, *, seeds: Array | None, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        x = self.scaled(self.word(tokens.ids))
        if self.position is not None:
            rows = tokens.position
            if offset := self.architecture.position_offset:
                # A literal padding token in a text uses the row before the first position's, and positions after it count as
                # if it were absent.
                is_padding = (tokens.ids == offset - 1).astype(jnp.int32)
                before = jnp.cumsum(is_padding, axis=-1) - is_padding  # padding tokens in earlier slots of the row
                start = jnp.arange(tokens.ids.shape[-1])[None, None] - rows  # slot of the sentence's first token
                before_in_sentence = before - jnp.take_along_axis(before, start, axis=-1)
                rows = jnp.where(is_padding == 1, offset - 1, rows + offset - before_in_sentence)
            x = x + self.position(rows)
        if self.token_type is not None:
            table = self.token_type.embedding
            if tokens.types is None or table.shape[0] == 1:  # RoBERTa has one row for both sentences of a pair
                x = x + expanded(table[0].astype(x.dtype), x)
            else:
                x = x + self.token_type(tokens.types)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.architecture.hidden_dropout, seeds, 0)
        return x if self.projection is None else self.projection(x, compute_dtype)

    def scaled(self, rows: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Rows of the word table, scaled as the family requires."""
        a = self.architecture
        return rows * math.sqrt(a.embedding_size) if a.embedding_scaled else rows


class Layer(nnx.Module):
    """Attention, then the feed-forward network, each with a residual and norms. `sliced`: see `Attention`."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs, first: bool, sliced: bool = False):
        self.architecture = a
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
        a = self.architecture
        attended = self.attention(
            self.block_input(x, self.attention), inputs, head_scale,
            kind=kind, seeds=seeds, compute_dtype=compute_dtype,
        )  # fmt: skip
        x = self.residual_sum(x, dropout(attended, a.hidden_dropout, seeds, 1), self.attention)
        activation = ACTIVATION_FUNCTIONS[a.activation]

        @recompute_in_backward
        def hidden(intermediate: Array, gate: Array | None) -> Array:
            intermediate = intermediate.astype(jnp.float32)
            y = activation(intermediate) if gate is None else activation(gate.astype(jnp.float32)) * intermediate
            return y.astype(x.dtype)

        y = self.block_input(x, self)
        gate = None if self.gate is None else self.gate(y, compute_dtype)
        y = self.output(computed_once(hidden(self.intermediate(y, compute_dtype), gate)), compute_dtype)
        return self.residual_sum(x, dropout(y, a.hidden_dropout, seeds, 2), self)

    def block_input(self, x: Float[Array, "g r l d"], block: "Attention | Layer") -> Float[Array, "g r l d"]:
        """`x`, normalised if the norm of the block (attention, or the layer itself for feed-forward) precedes it."""
        norm = block.norm
        if self.architecture.norm_place == "post" or norm is None:
            return x
        return recompute_in_backward(lambda x: norm(x).astype(x.dtype))(x)

    def residual_sum(self, x: Array, y: Array, block: "Attention | Layer") -> Float[Array, "g r l d"]:
        """The sum of `x` and a block's output `y`, with the norms that come after the block."""
        norm = block.norm if self.architecture.norm_place == "post" else None

        @recompute_in_backward
        def add(x: Array, y: Array) -> Array:
            y = y.astype(jnp.float32) if block.norm_after is None else block.norm_after(y)
            total = x.astype(jnp.float32) + y
            return (total if norm is None else norm(total)).astype(x.dtype)

        return add(x, y)


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
        embedding_seeds = None
        # Seeds of each layer's dropout sites [s 3 2], and of DropHead [s 2]; None: nothing is dropped.
        layer_seeds: tuple[Array | None, Array | None] = (None, None)
        if key is not None:
            bits = jax.random.bits(key, (1 + SITES_PER_LAYER * a.layers, 2), jnp.uint32)
            heads = jax.random.bits(jax.random.fold_in(key, 1), (a.layers, 2), jnp.uint32) if a.drophead else None
            embedding_seeds = bits[:1]
            layer_seeds = (bits[1:].reshape(a.layers, SITES_PER_LAYER, 2), heads)
        x = self.embeddings(tokens, seeds=embedding_seeds, compute_dtype=compute_dtype)
        # Masks and rotations are computed once for each kind of layer.
        attention_inputs = {
            kind: make_attention_inputs(tokens, kind, a, self.relative_bias)
            for kind in {a.kind(index) for index in range(a.layers)}
        }

        def run_layer(x: Array, layer: Layer, kind: LayerKind, all_seeds: Any, index: int) -> Array:
            def apply(x, inputs, head_scale, seeds):
                return layer(x, inputs, head_scale, kind=kind, seeds=seeds, compute_dtype=compute_dtype)

            seeds, head_seed = jax.tree.map(itemgetter(index), all_seeds)
            head_scale = None
            if head_seed is not None:
                sentences = tokens.first.shape[-1]
                head_scale = drophead(a.drophead, head_seed, tokens.owner, sentences=sentences, heads=a.heads)
            return (jax.checkpoint(apply) if remat else apply)(x, attention_inputs[kind], head_scale, seeds)

        states = [x]
        x = x.astype(compute_dtype)
        start, period = a.repeated_layers if self.stacked else (a.layers, 0)
        for index in range(start):
            layer = self.layers[0 if a.shared_layers else index]
            x = run_layer(x, layer, a.kind(index), layer_seeds, index)
            states.append(x)
        if self.stacked:
            graph, state = nnx.split(self.stacked)
            variables = nnx.to_flat_state(state)
            weights = {f"{STACKED}{path_string(path)}": variable[...] for path, variable in variables}
            shared = {path: weight[0] for path, weight in weights.items()} if a.shared_layers else {}

            def run_period(x: Array, inputs: tuple[Params, Any]) -> tuple[Array, list[Array]]:
                period_weights, period_seeds = inputs
                gathered = gather(period_weights or shared)
                params = [nnx.Param(gathered[f"{STACKED}{path_string(path)}"]) for path in variables.paths]
                layers = nnx.merge(graph, nnx.from_flat_state(zip(variables.paths, params, strict=True)))
                period_states = []
                for index, layer in enumerate(layers):
                    x = run_layer(x, layer, a.kind(start + index), period_seeds, index)
                    period_states.append(x)
                return x, period_states

            seeds = jax.tree.map(lambda array: array[start:].reshape(-1, period, *array.shape[1:]), layer_seeds)
            periods = (a.layers - start) // period
            x, stacks = jax.lax.scan(run_period, x, ({} if shared else weights, seeds), length=periods)
            states += [stack[index] for index in range(periods) for stack in stacks]
            states[-1] = x  # not from its stack, because the compiler drops stacks that are not read
        if self.norm is not None:
            states[-1] = self.norm(x)
        return [state.astype(jnp.float32) for state in states]
