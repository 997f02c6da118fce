"""Masked language models: an encoder's body with its pre-training head.

The head is a dense layer, an activation, a LayerNorm, and the word embeddings as output layer with one bias per word.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Bool, Float, Integer

from jaxdistill.checkpoints.locate import locate
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.checkpoints.modules import read_modules
from jaxdistill.checkpoints.weights import params_from_tensors, read_checkpoint
from jaxdistill.core import MASK_TOKENS, Array, InputError, Params, Tokens
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition
from jaxdistill.encoders.families import head_in
from jaxdistill.encoders.hugging_face import tensor_names
from jaxdistill.encoders.layers import ACTIVATION_FUNCTIONS, Linear, Norm
from jaxdistill.encoders.sentence import path_string, vectors_and_states
from jaxdistill.ops.dense import product

EMBEDDING = "transformer/embeddings/word/embedding"


class Head(nnx.Module):
    """Maps hidden states to the width of the word embeddings."""

    def __init__(self, a: Architecture, *, rngs: nnx.Rngs):
        self.activation = head_in(a.family, "WORD_HEAD").activation or a.activation
        self.dense = Linear(a.hidden_size, a.embedding_size, rngs=rngs)
        self.norm = Norm(a.embedding_size, a.layer_norm_eps)

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m o"]:
        return self.norm(ACTIVATION_FUNCTIONS[self.activation](self.dense(x, jnp.float32)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MaskedLanguageModel:
    """An encoder with a head that predicts words."""

    model: SentenceModel
    params: Params
    """Parameters of the body, as in `SentenceModel`, and of the head, under `head/`."""
    mask_id: int


def load_masked_lm(spec: str) -> MaskedLanguageModel:
    """Loads a masked language model of a known family.

    Raises:
      InputError: as `load_model`, or the head is missing; names the missing tensor.
    """
    model = load_model(spec, pooling="mean")
    folder = read_modules(locate(spec)).transformer
    mask_ids = [model.tokenizer.token_to_id(token) for token in MASK_TOKENS]
    mask_id = next((id for id in mask_ids if id is not None), None)
    if mask_id is None:
        raise InputError(f"{folder}: the tokenizer has neither of the mask tokens {' and '.join(MASK_TOKENS)}.")
    head = _head_params(model.definition.architecture, read_checkpoint(folder), str(folder))
    output = {"head/output/embedding": model.params[EMBEDDING]}
    return MaskedLanguageModel(model=model, params=model.params | output | head, mask_id=mask_id)


def word_logits(
    definition: EncoderDefinition, params: Params, tokens: Tokens, slots: Integer[Array, " m"]
) -> Float[Array, "m words"]:
    """Logits of every word of the vocabulary at the given slots.

    Args:
      definition: static under `jax.jit`.
      params: parameters of a `MaskedLanguageModel`.
      tokens: sentences with mask tokens.
      slots: flat indices over all groups and rows.
    """
    states = vectors_and_states(definition, params, tokens)[1][-1]
    x = states.reshape(-1, states.shape[-1])[slots]
    graph, paths = _head_structure(definition.architecture)
    head = nnx.merge(graph, nnx.from_flat_state([(path, nnx.Param(params[_joined(path)])) for path, _ in paths]))
    logits = product(head(x), params["head/output/embedding"].T, compute_dtype=jnp.float32)
    return logits + params["head/output/bias"][None]


@partial(jax.jit, static_argnames=("definition", "count"))
def likeliest_words(
    definition: EncoderDefinition,
    params: Params,
    tokens: Tokens,
    slots: Integer[Array, " m"],
    allowed: Bool[Array, "kinds words"],
    kinds: Integer[Array, " m"],
    originals: Integer[Array, " m"],
    *,
    count: int,
) -> tuple[Float[Array, "m best"], Integer[Array, "m best"]]:
    """Logits and ids of the `count` best words at each slot, best first; -inf where fewer words are allowed.

    Args:
      allowed: whether each word is of each kind.
      kinds: the kind of word that each slot must get.
      originals: the word that each slot must not get.
    """
    logits = word_logits(definition, params, tokens, slots)
    words = jnp.arange(logits.shape[-1], dtype=originals.dtype)
    fits = allowed[kinds] & (words[None] != originals[:, None])
    best, words = jax.lax.top_k(jnp.where(fits, logits, -jnp.inf), min(count, logits.shape[-1]))
    return best, words


def _head_params(a: Architecture, tensors: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    theirs = head_in(a.family, "WORD_HEAD")
    own_weight, own_bias = (f"{theirs.output}.{part}" for part in ("weight", "bias"))
    shapes = {_joined(path): shape for path, shape in _head_structure(a)[1]}
    names: dict[str, Any] = tensor_names({"head/dense": theirs.dense, "head/norm": theirs.norm}, shapes)
    names["head/output/bias"] = own_bias if own_bias in tensors else theirs.bias
    if own_weight in tensors:
        names["head/output/embedding"] = own_weight
    if f"{theirs.dense}.weight" not in tensors:
        raise InputError(
            f"{source}: tensor {theirs.dense}.weight is missing from the weights, so there is no head that predicts words;"
            " give a masked language model."
        )
    shapes |= {"head/output/bias": (a.vocab_size,), "head/output/embedding": (a.vocab_size, a.embedding_size)}
    places = (theirs.dense, theirs.norm, *names.values())
    of_head = {name: tensor for name, tensor in tensors.items() if name.startswith(places)}
    return params_from_tensors(of_head, names, shapes, source=source)


def _joined(path: Iterable[Hashable]) -> str:
    return path_string(("head", *path))


@lru_cache(maxsize=16)
def _head_structure(a: Architecture):
    graph, state = nnx.split(nnx.eval_shape(lambda: Head(a, rngs=nnx.Rngs(params=0))))
    return graph, tuple((path, tuple(variable.shape)) for path, variable in nnx.to_flat_state(state))
