"""Maps token ids to hidden states: embeddings and a stack of layers, assembled from an `Architecture`."""

import math
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import STACKED, Array, Params, Tokens
from jaxdistill.core.ops.dense import computed_once
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.attention import Attention, LayerInputs, make_layer_inputs
from jaxdistill.encoders.layers import ACTIVATION_FUNCTIONS, Linear, Norm, Table, drophead, dropout, expanded

SITES_PER_LAYER = 3
"""Dropout sites of a layer: attention probabilities, attention output and feed-forward output."""


def path_string(path: Iterable[Hashable]) -> str:
    """A parameter's path as one string."""
    return "/".join(map(str, path))


def recompute_in_backward(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wraps elementwise work in float32: for bfloat16 arguments, the backward pass recomputes its intermediates, which are larger. It
    keeps those that have a name (`checkpoint_name`): the statistics of a norm, which are one number per token."""
    recomputed = jax.checkpoint(function, policy=jax.checkpoint_policies.save_any_names_but_these())

    def apply(x: Array, *others: Array | None) -> Array:
        return (function if x.dtype == jnp.float32 else recomputed)(x, *others)

    return apply


class Embeddings(nnx.Module):
    """Sum of word, position and token type embeddings, normalised and projected as the family requires."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs | None):
        self.architecture = architecture
        width = architecture.embedding_size
        table = partial(Table, width=width, rngs=rngs)
        self.word = table(architecture.vocab_size, zero_row=architecture.pad_id)
        self.position = table(architecture.max_positions) if architecture.position_table else None
        self.token_type = table(architecture.token_types) if architecture.token_types else None
        self.norm = Norm(width, architecture.layer_norm_eps, architecture.norm) if architecture.embedding_norm else None
        projects = architecture.embedding_projected or width != architecture.hidden_size
        self.projection = Linear(width, architecture.hidden_size, rngs=rngs) if projects else None

    def __call__(self, tokens: Tokens, *, seeds: Array | None, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        x = self.scaled(self.word(tokens.ids))
        if self.position is not None:
            x = x + self.position(position_rows(tokens, self.architecture.position_offset))
        if self.token_type is not None:
            table = self.token_type.embedding
            if tokens.types is None or table.shape[0] == 1:  # RoBERTa has one row for both sentences of a pair
                x = x + expanded(table[0].astype(x.dtype), x)
            else:
                x = x + self.token_type(tokens.types)
        if self.norm is not None:
            x = self.norm(x)
        x = dropout(x, self.architecture.hidden_dropout, seeds, site=0)
        return x if self.projection is None else self.projection(x, compute_dtype)

    def scaled(self, rows: Float[Array, "... d"]) -> Float[Array, "... d"]:
        """Rows of the word table, scaled as the family requires."""
        return rows * math.sqrt(rows.shape[-1]) if self.architecture.embedding_scaled else rows


def position_rows(tokens: Tokens, offset: int) -> Integer[Array, "g r l"]:
    """The row of the position table for each token; a sentence's first token has row `offset`.

    With an offset, `offset - 1` is the padding token's id and its row. As in transformers, a padding token that a text contains
    literally has that row, too, and does not count for the positions of later tokens.
    """
    if not offset:
        return tokens.position
    is_padding = (tokens.ids == offset - 1).astype(jnp.int32)
    earlier_in_row = jnp.cumsum(is_padding, axis=-1) - is_padding  # number of padding tokens in earlier slots
    first_slot = jnp.arange(tokens.ids.shape[-1])[None, None] - tokens.position  # of the token's sentence
    earlier_in_sentence = earlier_in_row - jnp.take_along_axis(earlier_in_row, first_slot, axis=-1)
    return jnp.where(is_padding == 1, offset - 1, tokens.position + offset - earlier_in_sentence)


class Layer(nnx.Module):
    """Attention and the feed-forward network, each with a residual. Holds the norms of the latter; `Attention` holds its own. `first`:
    whether it is the first layer, which may lack attention's norm."""

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs | None, first: bool):
        self.architecture = architecture
        self.attention = Attention(architecture, rngs=rngs, normed=architecture.first_norm or not first)
        width = architecture.hidden_size
        inner_width = architecture.intermediate_size
        linear = partial(Linear, width, inner_width, rngs=rngs, bias=architecture.intermediate_bias)
        self.gate = linear() if architecture.gated else None
        self.intermediate = linear()
        self.output = Linear(inner_width, width, rngs=rngs, bias=architecture.output_bias)
        norm = partial(Norm, width, architecture.layer_norm_eps, architecture.norm)
        self.norm = norm()
        self.norm_after = norm() if architecture.norm_place == "both" else None

    def __call__(self, x: Array, inputs: LayerInputs, compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        attention = self.attention
        rate = self.architecture.hidden_dropout
        y = attention(self.block_input(x, attention.norm), inputs, compute_dtype)
        x = self.residual_sum(x, dropout(y, rate, inputs.seeds, site=1), attention.norm, attention.norm_after)
        y = self.feed_forward(self.block_input(x, self.norm), compute_dtype)
        return self.residual_sum(x, dropout(y, rate, inputs.seeds, site=2), self.norm, self.norm_after)

    def feed_forward(self, x: Float[Array, "g r l d"], compute_dtype: DTypeLike) -> Float[Array, "g r l d"]:
        """The feed-forward network, with its activation in float32."""
        activation = ACTIVATION_FUNCTIONS[self.architecture.activation]

        @recompute_in_backward
        def hidden(intermediate: Array, gate: Array | None) -> Array:
            intermediate = intermediate.astype(jnp.float32)
            y = activation(intermediate) if gate is None else activation(gate.astype(jnp.float32)) * intermediate
            return y.astype(x.dtype)

        gate = None if self.gate is None else self.gate(x, compute_dtype)
        y = hidden(self.intermediate(x, compute_dtype), gate)
        # `computed_once`: XLA's TPU compiler would repeat the activation in each product that reads it.
        return self.output(computed_once(y), compute_dtype)

    def block_input(self, x: Float[Array, "g r l d"], norm: Norm | None) -> Float[Array, "g r l d"]:
        """The input of attention or feed-forward network: `x`, after `norm` if norms come before the blocks."""
        if self.architecture.norm_place == "post" or norm is None:
            return x
        return recompute_in_backward(lambda x: norm(x).astype(x.dtype))(x)

    def residual_sum(self, x: Array, y: Array, norm: Norm | None, norm_after: Norm | None) -> Float[Array, "g r l d"]:
        """`x` plus a block's output `y`, after `norm_after` if there is one; with `norm_place="post"`, `norm` acts on the sum."""
        sum_norm = norm if self.architecture.norm_place == "post" else None

        @recompute_in_backward
        def add(x: Array, y: Array) -> Array:
            y = y.astype(jnp.float32) if norm_after is None else norm_after(y)
            total = x.astype(jnp.float32) + y
            return (total if sum_norm is None else sum_norm(total)).astype(x.dtype)

        return add(x, y)


class Transformer(nnx.Module):
    """Embeddings and layers; also holds the pooler's weights, as checkpoints do.

    If `stacked`, the layers that repeat (`Architecture.repeated_layers`) are held as those of one period, each weight with a
    leading axis for the periods. A loop runs them, so that the compiled program does not grow with their number.
    """

    def __init__(self, architecture: Architecture, *, rngs: nnx.Rngs | None, stacked: bool = False):
        self.architecture = architecture
        self.embeddings = Embeddings(architecture, rngs=rngs)
        buckets = architecture.relative_buckets
        self.relative_bias = Table(buckets, architecture.heads, rngs=rngs) if buckets else None
        layers = 1 if architecture.shared_layers else architecture.layers
        start, period = architecture.repeated_layers if stacked else (layers, 0)
        make_layer = partial(Layer, architecture, rngs=rngs)
        self.layers = nnx.List([make_layer(first=index == 0) for index in range(start)])
        self.stacked = nnx.List([make_layer(first=start + index == 0) for index in range(period)])
        width = architecture.hidden_size
        has_norm = architecture.norm_place != "post"
        self.norm = Norm(width, architecture.layer_norm_eps, architecture.norm) if has_norm else None
        self.pooler = Linear(width, width, rngs=rngs) if architecture.pooler else None

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
          key: random key of dropout and DropHead; None: nothing is dropped.
          remat: recompute each layer in the backward pass instead of keeping its activations.
          gather: collects the shards of one period of stacked layers, before the loop runs it; `dict` leaves them as they are.
        """
        architecture = self.architecture
        embedding_seeds, layer_seeds = self.draw_seeds(key)
        x = self.embeddings(tokens, seeds=embedding_seeds, compute_dtype=compute_dtype)
        # Masks and rotations are computed once for each kind of layer.
        kinds = {architecture.kind(index) for index in range(architecture.layers)}
        inputs_by_kind = {kind: make_layer_inputs(tokens, kind, architecture, self.relative_bias) for kind in kinds}

        def run_layer(x: Array, layer: Layer, kind: LayerKind, seeds: Any, index: int) -> Array:
            """Runs a layer; `index` is its index in the two arrays `seeds`, see `draw_seeds`."""
            head_seed, dropout_seeds = jax.tree.map(itemgetter(index), seeds)
            head_scale = None
            if head_seed is not None:
                head_scale = drophead(architecture.drophead, head_seed, tokens, heads=architecture.heads)
            inputs = inputs_by_kind[kind]._replace(head_scale=head_scale, seeds=dropout_seeds)
            run = partial(layer, inputs=inputs, compute_dtype=compute_dtype)
            return (jax.checkpoint(run) if remat else run)(x)

        states = [x]
        x = x.astype(compute_dtype)
        for index in range(architecture.repeated_layers[0] if self.stacked else architecture.layers):
            layer = self.layers[0 if architecture.shared_layers else index]
            x = run_layer(x, layer, architecture.kind(index), layer_seeds, index)
            states.append(x)
        if self.stacked:
            states += self.run_stacked(x, layer_seeds, run_layer, gather)
        if self.norm is not None:
            states[-1] = self.norm(states[-1])
        return [state.astype(jnp.float32) for state in states]

    def draw_seeds(self, key: jax.Array | None) -> tuple[Array | None, tuple[Array | None, Array | None]]:
        """Seeds of the embeddings' dropout `[1 2]`, and a pair for the layers: DropHead's `[s 2]` and dropout's `[s sites 2]`."""
        if key is None:
            return None, (None, None)
        layers = self.architecture.layers
        bits = jax.random.bits(key, (1 + SITES_PER_LAYER * layers, 2), jnp.uint32)
        head_seeds = None
        if self.architecture.drophead:
            head_seeds = jax.random.bits(jax.random.fold_in(key, 1), (layers, 2), jnp.uint32)
        return bits[:1], (head_seeds, bits[1:].reshape(layers, SITES_PER_LAYER, 2))

    def run_stacked(self, x: Array, seeds: Any, run_layer: Callable[..., Array], gather: Callable[[Params], Params]):
        """Runs the stacked layers in a loop over their periods; returns the hidden states after each layer.

        `seeds` are the layers' (see `draw_seeds`); `run_layer` and `gather` are those of `__call__`.
        """
        architecture = self.architecture
        start, period = architecture.repeated_layers
        graph, state = nnx.split(self.stacked)
        variables = nnx.to_flat_state(state)
        weights = {f"{STACKED}{path_string(path)}": variable[...] for path, variable in variables}
        # A layer that all periods share (ALBERT) is a stack of one, which the loop does not slice.
        shared = {path: weight[0] for path, weight in weights.items()} if architecture.shared_layers else {}

        def run_period(x: Array, inputs: tuple[Params, Any]) -> tuple[Array, list[Array]]:
            period_weights, period_seeds = inputs
            gathered = gather(shared or period_weights)
            params = [nnx.Param(gathered[f"{STACKED}{path_string(path)}"]) for path in variables.paths]
            layers = nnx.merge(graph, nnx.from_flat_state(zip(variables.paths, params, strict=True)))
            period_states = []
            for index, layer in enumerate(layers):
                x = run_layer(x, layer, architecture.kind(start + index), period_seeds, index)
                period_states.append(x)
            return x, period_states

        # From `[s ...]` to `[periods period ...]`, without the layers before `start`.
        seeds = jax.tree.map(lambda array: array[start:].reshape(-1, period, *array.shape[1:]), seeds)
        periods = (architecture.layers - start) // period
        x, stacks = jax.lax.scan(run_period, x, ({} if shared else weights, seeds), length=periods)
        states = [stack[index] for index in range(periods) for stack in stacks]
        # `x` equals the last state. Its copy in a stack is not read, so that the compiler can drop stacks that nobody reads.
        return [*states[:-1], x]
