"""Sentence vectors from packed tokens: a pure function of a definition, parameters and tokens.

Parameters are a flat dict by path; NNX modules exist only while JAX traces, which keeps dispatch cheap. Pooling works within
groups, so devices that hold whole groups need not communicate. The vector of a sentence without tokens is zero.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import STACKED, Array, Params, Tokens, platform
from jaxdistill.core.ops.similarity import unit
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling, SentenceNorm
from jaxdistill.encoders.layers import ACTIVATION_FUNCTIONS, Linear, Norm, dropout
from jaxdistill.encoders.transformer import Transformer, path_string


class SentenceEncoder(nnx.Module):
    """The modules of an encoder: a transformer, and the dense layers and norms on its pooled output."""

    def __init__(self, definition: EncoderDefinition, *, rngs: nnx.Rngs | None, stacked: bool = False):
        self.transformer = Transformer(definition.architecture, rngs=rngs, stacked=stacked)
        self.dense = nnx.List([])
        for part in definition.dense:
            if isinstance(part, SentenceNorm):
                module = Norm(part.width, eps=1e-5)  # torch's default, which sentence-transformers uses
            else:
                module = Linear(part.in_features, part.out_features, rngs=rngs, bias=part.bias)
            self.dense.append(module)


def embed(
    definition: EncoderDefinition, params: Params, tokens: Tokens, *, compute_dtype: DTypeLike = jnp.float32
) -> Float[Array, "g n e"]:
    """One vector per sentence, without dropout; for the arguments see `vectors_and_states`."""
    return vectors_and_states(definition, params, tokens, compute_dtype=compute_dtype)[0]


def vectors_and_states(
    definition: EncoderDefinition,
    params: Params,
    tokens: Tokens,
    *,
    key: jax.Array | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: bool = False,
    gather: Callable[[Params], Params] = dict,
) -> tuple[Float[Array, "g n e"], list[Float[Array, "g r l d"]]]:
    """One vector per sentence, and all hidden states, as `Transformer` returns them.

    Args:
      definition: static under `jax.jit`.
      params: float32, or bfloat16 if they are not trained.
      key: random key of dropout; None: no dropout.
      compute_dtype: dtype of matrix products and hidden states; sums, norms, softmax and pooled vectors are float32.
      remat: recompute each layer in the backward pass instead of keeping its activations.
      gather: collects the shards of stacked layers' weights, as the loop over layers reaches them.
    """
    encoder = as_module(definition, params)
    states = encoder.transformer(tokens, key=key, compute_dtype=compute_dtype, remat=remat, gather=gather)
    dropped_id = definition.architecture.dropped_id
    if dropped_id >= 0:  # pooling treats the token like padding
        tokens = tokens._replace(owner=jnp.where(tokens.ids == dropped_id, -1, tokens.owner))
    x = pooled(definition.pooling, states, tokens)
    if definition.pooling.tokens == "pooler":
        pooler = encoder.transformer.pooler
        assert pooler is not None  # checked by `EncoderDefinition`
        x = jnp.tanh(pooler(x, compute_dtype))
    # The transformer uses the key itself and its fold 1.
    seeds = None if key is None else jax.random.bits(jax.random.fold_in(key, 2), (len(definition.dense), 2), jnp.uint32)
    for index, (part, module) in enumerate(zip(definition.dense, encoder.dense, strict=True)):
        if isinstance(module, Norm):
            x = module(x)
        else:
            assert isinstance(part, Dense)  # for the type checker
            if part.drops:
                x = dropout(x, definition.architecture.hidden_dropout, seeds, site=index)
            x = ACTIVATION_FUNCTIONS[part.activation](module(x, compute_dtype))
    return (unit(x) if definition.normalize else x), states


def pooled(pooling: Pooling, states: list[Float[Array, "g r l d"]], tokens: Tokens) -> Float[Array, "g n p"]:
    """Sentence vectors from the hidden states of all layers; for `pooler`, its input: the first token's vector."""
    x = combined_layers(pooling, states)
    g, r, l, width = x.shape
    flat = x.reshape(g, r * l, width)  # [g t p], all token slots of a group
    owner = tokens.owner.reshape(g, r * l)
    if pooling.tokens == "max":
        return max_pooled(flat, owner, tokens.first, max_tokens=l)
    if pooling.tokens in ("cls", "pooler"):
        return tokens_at(flat, owner, tokens.first)
    # [g n t], 1 where a token belongs to a sentence: sums become matrix products, which need no scatter forward or backward.
    weights = (owner[:, None, :] == jnp.arange(tokens.first.shape[-1])[None, :, None]).astype(jnp.float32)
    if pooling.tokens == "last":
        token_count = jnp.sum(weights, axis=-1).astype(tokens.first.dtype)
        return tokens_at(flat, owner, tokens.first + token_count - 1)
    if pooling.tokens == "weightedmean":
        weights = weights * (tokens.position.reshape(g, 1, r * l) + 1).astype(jnp.float32)
    weight_sum = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)
    # Highest precision: products with 0 and 1 must keep every bit of x.
    total = jnp.einsum("gnt,gtd->gnd", weights, flat, precision=jax.lax.Precision.HIGHEST)
    return total / (jnp.sqrt(weight_sum) if pooling.tokens == "mean_sqrt_len" else weight_sum)


def max_pooled(
    x: Float[Array, "g t d"], owner: Integer[Array, "g t"], first: Integer[Array, "g n"], *, max_tokens: int
) -> Float[Array, "g n d"]:
    """The maximum over each sentence's tokens, which are at most `max_tokens` from slot `first` on; 0 without tokens."""
    g, n = first.shape
    # [g n max_tokens]; the last slots may belong to the next sentence.
    slots = jnp.minimum(first[..., None] + jnp.arange(max_tokens)[None, None, :], x.shape[1] - 1)
    flat_slots = slots.reshape(g, n * max_tokens)
    belongs = jnp.take_along_axis(owner, flat_slots, axis=1).reshape(slots.shape) == jnp.arange(n)[None, :, None]
    vectors = jnp.take_along_axis(x, flat_slots[..., None], axis=1).reshape(*slots.shape, -1)
    largest = jnp.max(jnp.where(belongs[..., None], vectors, -jnp.inf), axis=2)
    return jnp.where(jnp.any(belongs, axis=2)[..., None], largest, 0.0)


def combined_layers(pooling: Pooling, states: list[Float[Array, "g r l d"]]) -> Float[Array, "g r l p"]:
    """Combines the hidden states of the layers that `pooling` chooses by their mean, maximum or concatenation."""
    chosen = [states[index] for index in pooling.indices(len(states) - 1)]
    if len(chosen) == 1:
        return chosen[0]
    if pooling.combine == "concat":
        return jnp.concatenate(chosen, axis=-1)
    if pooling.combine == "max":
        return jnp.max(jnp.stack(chosen), axis=0)
    return sum(chosen[1:], chosen[0]) / len(chosen)


def embed_tokens(
    definition: EncoderDefinition, params: Params, tokens: Tokens, *, compute_dtype: DTypeLike = jnp.float32
) -> Float[Array, "g r l e"]:
    """Token vectors before pooling, after the dense layers, which must be linear.

    With mean pooling, their mean is the sentence's vector before it is normalised. NOTE: tokens with the id
    `Architecture.dropped_id` have vectors here, but do not count in that mean.
    """
    encoder = as_module(definition, params)
    states = encoder.transformer(tokens, key=None, compute_dtype=compute_dtype, remat=False)
    x = combined_layers(definition.pooling, states)
    for module in encoder.dense:
        assert isinstance(module, Linear)  # a norm acts on sentences alone
        x = module(x, compute_dtype)
    return x


def tokens_at(
    x: Float[Array, "g t d"], owner: Integer[Array, "g t"], slots: Integer[Array, "g n"]
) -> Float[Array, "g n d"]:
    """The vector of `x` at one slot for each sentence; zeros if the slot holds no token of that sentence."""
    slots = jnp.maximum(slots, 0)  # the last slot of a sentence without tokens may be -1
    belongs = jnp.take_along_axis(owner, slots, axis=1) == jnp.arange(slots.shape[-1])[None, :]
    return jnp.where(belongs[..., None], jnp.take_along_axis(x, slots[..., None], axis=1), 0.0)


def word_embeddings(definition: EncoderDefinition, params: Params, compute_dtype: DTypeLike) -> Float[Array, "words d"]:
    """The word embeddings of the whole vocabulary, projected to the width of the layers."""
    embeddings = as_module(definition, params).transformer.embeddings
    rows = embeddings.scaled(embeddings.word.embedding[...].astype(jnp.float32))
    return rows if embeddings.projection is None else embeddings.projection(rows, compute_dtype)


def init_params(definition: EncoderDefinition, key: jax.Array) -> Params:
    """Random initial parameters as in Hugging Face's code, as arrays of NumPy."""
    _, state = nnx.split(SentenceEncoder(definition, rngs=nnx.Rngs(params=key)))
    return jax.device_get({path_string(path): variable[...] for path, variable in nnx.to_flat_state(state)})


def param_shapes(definition: EncoderDefinition) -> dict[str, tuple[int, ...]]:
    """Maps every parameter's path to its shape."""
    _, shapes = _structure(definition, stacked=False)
    return {path_string(path): shape for path, shape in shapes}


def with_stacks(
    architecture: Architecture, mesh: Mesh, by_path: Mapping[str, Any], stack: Callable[[list], Any]
) -> dict[str, Any]:
    """Maps the paths of a stacked `Transformer` to values, given those of an unstacked one (`by_path`), such as arrays.

    `stack` joins the list of a parameter's values in all periods of `Architecture.repeated_layers`. On CPUs nothing is stacked,
    because a loop over layers is slower there than a program with all layers.
    """
    if platform(mesh) == "cpu":
        return dict(by_path)
    start, period = architecture.repeated_layers
    result: dict[str, Any] = {}
    for path, value in by_path.items():
        match = re.fullmatch(r"transformer/layers/(\d+)/(.*)", path)
        layer = int(match[1]) if match else -1
        if match is None or layer < start:
            result[path] = value
        elif layer < start + period:  # the first period, from which the paths in the later ones follow
            paths = [f"transformer/layers/{index}/{match[2]}" for index in range(layer, architecture.layers, period)]
            # Of layers that share their weights (ALBERT), only the first has a path.
            result[f"{STACKED}{layer - start}/{match[2]}"] = stack([by_path[path] for path in paths if path in by_path])
    return result


def as_module(definition: EncoderDefinition, params: Params) -> SentenceEncoder:
    """The encoder as a module that holds `params`."""
    graph, shapes = _structure(definition, stacked=any(path.startswith(STACKED) for path in params))
    variables = [(path, nnx.Param(params[path_string(path)])) for path, _ in shapes]
    return nnx.merge(graph, nnx.from_flat_state(variables))


@lru_cache(maxsize=64)
def _structure(definition: EncoderDefinition, stacked: bool):
    """The encoder's graph definition, and the (path, shape) of each parameter."""
    graph, state = nnx.split(SentenceEncoder(definition, rngs=None, stacked=stacked))
    return graph, tuple((path, tuple(variable.shape)) for path, variable in nnx.to_flat_state(state))
