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

SENTENCE_NORM_EPS = 1e-5
"""torch's default, which sentence-transformers uses."""


class SentenceEncoder(nnx.Module):
    """A transformer, and dense layers and norms on its pooled output."""

    def __init__(self, definition: EncoderDefinition, *, rngs: nnx.Rngs, stacked: bool = False):
        self.transformer = Transformer(definition.architecture, rngs=rngs, stacked=stacked)

        self.dense = nnx.List([])
        for part in definition.dense:
            if isinstance(part, SentenceNorm):
                module = Norm(part.width, SENTENCE_NORM_EPS)
            else:
                module = Linear(part.in_features, part.out_features, rngs=rngs, bias=part.bias, torch_init=True)
            self.dense.append(module)


def embed(
    definition: EncoderDefinition,
    params: Params,
    tokens: Tokens,
    *,
    key: jax.Array | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: bool = False,
) -> Float[Array, "g n e"]:
    """One vector per sentence.

    Args:
      definition: static under `jax.jit`.
      params: a flat dict, as from `init_params` or `load_model`; float32, or bfloat16 if they are not trained.
      tokens: packed sentences.
      key: random key of dropout; None: no dropout.
      compute_dtype: dtype of matrix products and of hidden states between them; sums, norms, softmax, pooling and heads
        are float32.
      remat: recompute each layer in the backward pass instead of keeping its activations.
    """
    return vectors_and_states(definition, params, tokens, key=key, compute_dtype=compute_dtype, remat=remat)[0]


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
    """Like `embed`, but also returns the token vectors after the embeddings and after every layer, first to last.

    Args:
      gather: collects the shards of stacked layers' weights, as the loop reaches them.
    """
    encoder = as_module(definition, params)
    states = encoder.transformer(tokens, key=key, compute_dtype=compute_dtype, remat=remat, gather=gather)
    dropped_id = definition.architecture.dropped_id
    if dropped_id >= 0:
        tokens = tokens._replace(owner=jnp.where(tokens.ids == dropped_id, -1, tokens.owner))
    x = pooled(definition.pooling, states, tokens)
    if definition.pooling.tokens == "pooler":
        pooler = encoder.transformer.pooler
        assert pooler is not None  # checked by `EncoderDefinition`
        x = jnp.tanh(pooler(x, compute_dtype))
    seeds = None if key is None else jax.random.bits(jax.random.fold_in(key, 2), (len(definition.dense), 2), jnp.uint32)
    for index, (part, module) in enumerate(zip(definition.dense, encoder.dense, strict=True)):
        if isinstance(module, Norm):
            x = module(x)
            continue
        assert isinstance(part, Dense)
        x = dropout(x, definition.architecture.hidden_dropout if part.drops else 0.0, seeds, index)
        x = ACTIVATION_FUNCTIONS[part.activation](module(x, compute_dtype))
    return (unit(x) if definition.normalize else x), states


def pooled(pooling: Pooling, states: list[Float[Array, "g r l d"]], tokens: Tokens) -> Float[Array, "g n p"]:
    """Sentence vectors from the hidden states of all layers; for `pooler`, the first token, as for `cls`."""
    x = combined_layers(pooling, states)
    g, r, l, width = x.shape
    flat = x.reshape(g, r * l, width)
    owner = tokens.owner.reshape(g, r * l)
    n = tokens.first.shape[-1]
    if pooling.tokens == "max":
        # The row's length bounds the number of a sentence's tokens.
        slots = jnp.minimum(tokens.first[..., None] + jnp.arange(l)[None, None, :], r * l - 1).reshape(g, n * l)
        is_own = jnp.take_along_axis(owner, slots, axis=1).reshape(g, n, l) == jnp.arange(n)[None, :, None]
        gathered = jnp.take_along_axis(flat, slots[..., None], axis=1).reshape(g, n, l, -1)
        largest = jnp.max(jnp.where(is_own[..., None], gathered, -jnp.inf), axis=2)
        return jnp.where(jnp.any(is_own, axis=2)[..., None], largest, 0.0)
    if pooling.tokens in ("cls", "pooler"):
        return tokens_at(flat, owner, tokens.first)
    # 1 where a token belongs to a sentence: sums over its tokens become matrix products, without a scatter, forward or backward.
    weights = (owner[:, None, :] == jnp.arange(n)[None, :, None]).astype(jnp.float32)
    if pooling.tokens == "last":
        return tokens_at(flat, owner, tokens.first + jnp.sum(weights, axis=-1).astype(tokens.first.dtype) - 1)
    if pooling.tokens == "weightedmean":
        weights = weights * (tokens.position.reshape(g, 1, r * l) + 1).astype(jnp.float32)
    weight_sum = jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)
    # Highest precision: products with 0 and 1 must keep every bit of x.
    total = jnp.einsum("gnt,gtd->gnd", weights, flat, precision=jax.lax.Precision.HIGHEST)
    return total / (jnp.sqrt(weight_sum) if pooling.tokens == "mean_sqrt_len" else weight_sum)


def combined_layers(pooling: Pooling, states: list[Float[Array, "g r l d"]]) -> Float[Array, "g r l p"]:
    """The hidden states of the layers that the pooling reads, averaged, concatenated or their maximum."""
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
    """Token vectors before pooling, with the dense layers applied, which must be linear.

    With mean pooling, a sentence's vector is the mean of its tokens', up to scale. Tokens `dropped_id` are here, but not in
    that mean.
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
    """The vector at one slot per sentence; zeros if the slot holds no token of that sentence."""
    slots = jnp.maximum(slots, 0)
    is_own = jnp.take_along_axis(owner, slots, axis=1) == jnp.arange(slots.shape[-1])[None, :]
    return jnp.where(is_own[..., None], jnp.take_along_axis(x, slots[..., None], axis=1), 0.0)


def word_embeddings(definition: EncoderDefinition, params: Params, compute_dtype: DTypeLike) -> Float[Array, "words d"]:
    """The word embeddings of the whole vocabulary, projected to the width of the layers."""
    embeddings = as_module(definition, params).transformer.embeddings
    rows = embeddings.scaled(embeddings.word.embedding[...].astype(jnp.float32))
    return rows if embeddings.projection is None else embeddings.projection(rows, compute_dtype)


def init_params(definition: EncoderDefinition, key: jax.Array) -> Params:
    """Random initial parameters: the transformer as in Hugging Face, dense layers as in torch."""
    _, state = nnx.split(SentenceEncoder(definition, rngs=nnx.Rngs(params=key)))
    return {path_string(path): variable[...] for path, variable in nnx.to_flat_state(state)}


def param_shapes(definition: EncoderDefinition) -> dict[str, tuple[int, ...]]:
    """Maps every parameter's path to its shape."""
    _, shapes = _structure(definition)
    return {path_string(path): shape for path, shape in shapes}


def with_stacks(
    a: Architecture, mesh: Mesh, by_path: Mapping[str, Any], stack: Callable[[list], Any]
) -> dict[str, Any]:
    """Converts values by path, such as parameters, to the form of a frozen model on the mesh.

    `stack` joins the values of layers that repeat, see `Transformer`. Does nothing on CPUs, where a loop over layers is slower
    than a program with all layers.
    """
    start, period = a.repeated_layers if platform(mesh) != "cpu" else (a.layers, 0)
    result: dict[str, Any] = {}
    by_period: dict[str, dict[int, Any]] = {}
    for path, value in by_path.items():
        match = re.fullmatch(r"transformer/layers/(\d+)/(.*)", path)
        if match and int(match[1]) >= start:
            number, index = divmod(int(match[1]) - start, period)
            by_period.setdefault(f"{STACKED}{index}/{match[2]}", {})[number] = value
        else:
            result[path] = value
    return result | {path: stack([values[number] for number in sorted(values)]) for path, values in by_period.items()}


def as_module(definition: EncoderDefinition, params: Params) -> SentenceEncoder:
    """The encoder as a module that holds `params`."""
    graph, shapes = _structure(definition, stacked=any(path.startswith(STACKED) for path in params))
    return nnx.merge(graph, nnx.from_flat_state([(path, nnx.Param(params[path_string(path)])) for path, _ in shapes]))


@lru_cache(maxsize=64)
def _structure(definition: EncoderDefinition, stacked: bool = False):
    """The encoder's graph definition, and the (path, shape) of each parameter."""
    encoder = nnx.eval_shape(lambda: SentenceEncoder(definition, rngs=nnx.Rngs(params=0), stacked=stacked))
    graph, state = nnx.split(encoder)
    return graph, tuple((path, tuple(variable.shape)) for path, variable in nnx.to_flat_state(state))
