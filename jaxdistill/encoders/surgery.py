"""How is a student made? From a teacher's layers, afresh with a given size, and with or without a dense head."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.layers import uniform_as_torch
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.encoders.sentence import init_params

LAYERS_HELP = "last:3, first:3, even:3 or a list such as 1,3,5 (counted from 0)"


def layer_indices(choice: str, depth: int) -> tuple[int, ...]:
    """Which of `depth` layers `choice` names; `even:3` of 6 are 1, 3, 5, so that the last is always kept."""
    kind, _, number = choice.partition(":")
    try:
        if kind in ("last", "first", "even"):
            count = int(number)
            chosen = {
                "last": tuple(range(depth - count, depth)),
                "first": tuple(range(count)),
                "even": tuple(round((index + 1) * depth / count) - 1 for index in range(count)) if count else (),
            }[kind]
        else:
            chosen = tuple(int(part) for part in choice.split(","))
    except ValueError:
        raise InputError(f"layers={choice!r} is not understood; use {LAYERS_HELP}.") from None
    rising = all(low < high for low, high in zip(chosen, chosen[1:], strict=False))
    if not chosen or not rising or chosen[0] < 0 or chosen[-1] >= depth:
        raise InputError(f"layers={choice!r} does not fit an encoder of {depth} layers; use {LAYERS_HELP}, rising.")
    return chosen


def from_layers(model: SentenceModel, layers: str) -> SentenceModel:
    """A student of some of the model's layers, with its embeddings, pooling, head and tokenizer."""
    architecture = model.definition.architecture
    chosen = layer_indices(layers, architecture.layers)
    params = {path: array for path, array in model.params.items() if not path.startswith("transformer/layers/")}
    for new, old in enumerate(chosen):
        before, after = f"transformer/layers/{old}/", f"transformer/layers/{new}/"
        of_layer = {path: array for path, array in model.params.items() if path.startswith(before)}
        params |= {after + path.removeprefix(before): array for path, array in of_layer.items()}
    architecture = dataclasses.replace(architecture, layers=len(chosen))
    return dataclasses.replace(
        model,
        definition=dataclasses.replace(model.definition, architecture=architecture),
        params=params,
        source=f"{model.source}, layers {', '.join(map(str, chosen))}",
    )


def fresh(
    template: SentenceModel,
    key: Array,
    *,
    width: int,
    depth: int,
    heads: int = 0,
    intermediate: int = 0,
    embedding: int = 0,
    pooling: str = "",
) -> SentenceModel:
    """A student of a given size with random weights, and the tokenizer, prompts and pooling of `template`.

    Args:
      template: gives its family too, unless `embedding` is narrower than `width`.
      key: of the random weights.
      width: hidden size.
      depth: number of layers.
      heads: attention heads; 0: one for every 64 of `width`.
      intermediate: width inside the feed-forward networks; 0: four times `width`.
      embedding: width of the embedding tables; 0: `width`. Another width makes it an ELECTRA model,
        whose format has it.
      pooling: empty: the template's.
    """
    chosen = Pooling.parse(pooling) if pooling else template.definition.pooling
    architecture = dataclasses.replace(
        template.definition.architecture,
        hidden_size=width,
        layers=depth,
        heads=heads or max(1, width // 64),
        intermediate_size=intermediate or 4 * width,
        embedding_size=embedding or width,
        pooler=chosen.tokens == "pooler",
    )
    if architecture.embedding_size != width:
        architecture = dataclasses.replace(
            architecture,
            family="electra",
            max_positions=architecture.longest,
            position_offset=0,
            token_types=architecture.token_types or 2,
            relative_buckets=0,
        )
        if architecture.pooler:
            raise InputError(
                "pooling pooler does not go with an embedding width of its own: ELECTRA has no pooler; use cls."
            )
    definition = EncoderDefinition(architecture=architecture, pooling=chosen, normalize=template.definition.normalize)
    params = {path: np.asarray(array) for path, array in init_params(definition, key).items()}
    source = f"fresh {architecture.family} of width {width} and depth {depth}, tokenizer of {template.source}"
    return dataclasses.replace(template, definition=definition, params=params, source=source)


def add_head(
    model: SentenceModel, out_features: int, *, key: Array, activation: str = "tanh", init: str = "uniform"
) -> SentenceModel:
    """The model with one more dense layer on its pooled sentences.

    Args:
      out_features: width of the new vectors, for instance the teacher's.
      key: of the random weights.
      activation: of the new layer.
      init: `uniform` as torch starts a linear layer; `identity` keeps the features, cut off or filled up with zeros, so
        that a student cut from its teacher stays aligned with it.
    """
    width = model.definition.embedding_width
    if init == "identity":
        kernel, bias = np.eye(width, out_features, dtype=np.float32), np.zeros(out_features, np.float32)
    elif init == "uniform":
        of_kernel, of_bias = jax.random.split(key)
        kernel = np.asarray(uniform_as_torch(of_kernel, (width, out_features), width))
        bias = np.asarray(uniform_as_torch(of_bias, (out_features,), width))
    else:
        raise InputError(f"head init {init!r} is not known; use uniform or identity.")
    index = len(model.definition.dense)
    dense = (*model.definition.dense, Dense(in_features=width, out_features=out_features, activation=activation))
    return dataclasses.replace(
        model,
        definition=dataclasses.replace(model.definition, dense=dense),
        params=model.params | {f"dense/{index}/kernel": kernel, f"dense/{index}/bias": bias},
    )


def drop_head(model: SentenceModel) -> SentenceModel:
    """The model without its last dense layer."""
    index = len(model.definition.dense) - 1
    if index < 0:
        raise InputError(f"the model {model.source} has no dense head to drop.")
    return dataclasses.replace(
        model,
        definition=dataclasses.replace(model.definition, dense=model.definition.dense[:-1]),
        params={path: array for path, array in model.params.items() if not path.startswith(f"dense/{index}/")},
    )
