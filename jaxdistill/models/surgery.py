"""Makes students: from some layers of a model, or randomly initialised, with or without a dense head."""

import dataclasses
import logging
from typing import Any

import jax
import numpy as np

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.families import cross_definition
from jaxdistill.encoders.layers import normal
from jaxdistill.encoders.sentence import init_params
from jaxdistill.models.checkpoints.model import POOLER, SentenceModel, check_size
from jaxdistill.models.checkpoints.modules import dense_names
from jaxdistill.models.checkpoints.weights import Arrays

logger = logging.getLogger(__name__)

LAYERS = "transformer/layers/"
EMBEDDINGS = "transformer/embeddings/"
COMPACTED = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert")
"""Families whose embedding block `compact` replaces by ELECTRA's."""
POSITIONS_PER_WORD, POSITIONS = 4, 32
"""A compact embedding block is fitted to the original one with every word at `POSITIONS_PER_WORD` of the first `POSITIONS`."""


def layer_indices(choice: str, depth: int) -> tuple[int, ...]:
    """The indices, among `depth` layers, that `choice` names; `even:3` of 6 are 1, 3, 5: the last layer of each third."""
    kind, _, number = choice.partition(":")
    try:
        if kind == "last":
            chosen = range(depth - int(number), depth)
        elif kind == "first":
            chosen = range(int(number))
        elif kind == "even":
            chosen = [round((index + 1) * depth / int(number)) - 1 for index in range(int(number))]
        else:
            chosen = [int(part) for part in choice.split(",")]
    except ValueError:  # not a number
        chosen = []
    is_ascending = list(chosen) == sorted({*chosen})
    if not chosen or not is_ascending or not set(chosen) <= set(range(depth)):
        raise InputError(
            f"student.layers={choice!r} does not fit an encoder of {depth} layers; use last:3, first:3, even:3, greedy:3 or a list such as "
            "1,3,5 (counted from 0), in ascending order."
        )
    return tuple(chosen)


def from_layers(model: SentenceModel, layers: str) -> SentenceModel:
    """The model with only the layers that `layers` names, see `layer_indices`. Each keeps its attention window and rotary positions."""
    old = model.definition.architecture
    chosen = layer_indices(layers, old.layers)
    params = {path: array for path, array in model.params.items() if not path.startswith(LAYERS)}
    stored = (0,) if old.shared_layers else chosen  # shared layers have one set of weights
    for new_index, old_index in enumerate(stored):
        prefix = f"{LAYERS}{old_index}/"
        layer = {path.removeprefix(prefix): array for path, array in model.params.items() if path.startswith(prefix)}
        if new_index == 0 and not old.first_norm and "attention/norm/scale" in layer:
            # A family whose first layer has no norm before attention. The scale of the norm is multiplied into queries, keys and
            # values instead, which is exact if the norm of the embeddings has scale 1.
            scale = layer["attention/norm/scale"].astype(np.float32)[:, None]  # of the inputs of kernels [in, out]
            layer = {path: array for path, array in layer.items() if not path.startswith("attention/norm/")}
            kernels = [f"attention/{part}/kernel" for part in ("query", "key", "value")]
            layer |= {path: layer[path].astype(np.float32) * scale for path in kernels}
        params |= {f"{LAYERS}{new_index}/{path}": array for path, array in layer.items()}
    without_window = [index for index in range(old.layers) if not old.kind(index).window]
    if without_window and set(without_window).isdisjoint(chosen):
        logger.warning(
            "student.layers=%s keeps only layers that see %d tokens on each side; those that see the whole sentence are %s",
            layers, max(old.kind(index).window for index in chosen), ",".join(map(str, without_window)),
        )  # fmt: skip
    definition = dataclasses.replace(model.definition, architecture=old.with_layers(chosen))
    source = f"{model.source}, layers {', '.join(map(str, chosen))}"
    return dataclasses.replace(model, definition=definition, params=params, source=source, unread_pooler={})


def with_pooling(model: SentenceModel, pooling: str) -> SentenceModel:
    """The teacher as a student with another pooling, such as `cls`; `pooler` uses the checkpoint's, even if the teacher does not."""
    chosen, old = Pooling.parse(pooling), model.definition
    if chosen == old.pooling:
        return model
    logger.warning("%s: student.pooling=%s instead of the teacher's %s", model.source, chosen, old.pooling)
    params = {**model.unread_pooler, **model.params}
    pooler = {path: array for path, array in params.items() if path.startswith(POOLER)}
    reads_pooler = chosen.tokens == "pooler" and bool(pooler)  # without one, `EncoderDefinition` refuses `pooler`
    if not reads_pooler:
        params = {path: array for path, array in params.items() if path not in pooler}
    architecture = dataclasses.replace(old.architecture, pooler=reads_pooler)
    definition = dataclasses.replace(old, architecture=architecture, pooling=chosen)
    unread_pooler = {} if reads_pooler else pooler
    return dataclasses.replace(model, definition=definition, params=params, unread_pooler=unread_pooler)


def fresh(
    template: SentenceModel, key: jax.Array, *, width: int, depth: int, heads: int = 0, intermediate: int = 0
) -> SentenceModel:
    """A randomly initialised student with the family, tokenizer, prompts and pooling of `template`. `depth` counts layers; 0 `heads`: one
    for each 64 of `width`; 0 `intermediate`: a feed-forward network of 4 times the `width`."""
    old, pooling = template.definition.architecture, template.definition.pooling
    # Layers repeat the template's kinds in order. Head widths are new, and there are as many key heads as query heads.
    architecture = dataclasses.replace(
        old.with_layers([layer % old.layers for layer in range(depth)]),
        hidden_size=width, embedding_size=width, heads=heads or max(1, width // 64), head_size=0, key_heads=0,
        intermediate_size=intermediate or 4 * width, attention_scale=0.0, pooler=pooling.tokens == "pooler",
        embedding_projected=old.embedding_projected or old.shared_layers,  # ALBERT's format always has the projection
    )  # fmt: skip
    definition = EncoderDefinition(architecture=architecture, pooling=pooling, normalize=template.definition.normalize)
    source = f"fresh {architecture.family} of width {width} and depth {depth}, tokenizer of {template.source}"
    params = init_params(definition, key)
    return dataclasses.replace(template, definition=definition, params=params, source=source, unread_pooler={})


def plain_architecture(old: Architecture, family: str, **changes: Any) -> Architecture:
    """A BERT or ELECTRA architecture with the sizes of another family's encoder, updated by `changes`."""
    copied = (
        "vocab_size", "hidden_size", "layers", "heads", "intermediate_size", "embedding_size", "activation", "layer_norm_eps",
        "pooler", "pad_id", "hidden_dropout", "attention_dropout", "drophead",
    )  # fmt: skip
    fields: dict[str, Any] = {name: getattr(old, name) for name in copied}
    fields |= {"max_positions": old.longest, "token_types": old.token_types or 2}  # both families have a table
    return Architecture(family=family, **(fields | changes))


def compact(model: SentenceModel, width: int, *, key: jax.Array, init: str) -> SentenceModel:
    """The model with embedding tables of `width`, projected to the width of its layers: SimTDE's student, in ELECTRA's form.
    `init` is `random`, or `svd` for tables and a projection that are fitted to the model's, see `_fitted_embeddings`."""
    old, pooling = model.definition.architecture, model.definition.pooling
    if width >= old.hidden_size or old.family not in COMPACTED or pooling.tokens == "pooler":
        raise InputError(
            f"student.embedding={width} must be below the encoder's width of {old.hidden_size}, which must be a BERT or RoBERTa without a "
            f"pooler, not a {old.family} with pooling {pooling}."
        )
    architecture = plain_architecture(old, "electra", embedding_size=width, pooler=False)
    definition = dataclasses.replace(model.definition, architecture=architecture)
    # The layers keep their weights; only the embedding block is new, its projection included.
    params = dict(init_params(definition, key))
    layers = params.keys() & {path for path in model.params if not path.startswith(EMBEDDINGS)}
    params |= {path: model.params[path] for path in layers}
    if init == "svd":
        params |= _fitted_embeddings(model, width)
    source = f"{model.source}, embeddings of width {width} ({init})"
    return dataclasses.replace(model, definition=definition, params=params, source=source, unread_pooler={})


def _fitted_embeddings(model: SentenceModel, width: int) -> Arrays:
    """Compact embeddings, by path, with which the layers' input changes little. The tables are the model's, projected to the first
    right singular vectors of its centred word table; least squares over the vocabulary give the projection back."""
    old = model.definition.architecture
    word = model.params[EMBEDDINGS + "word/embedding"]  # [entries, d]
    position = model.params[EMBEDDINGS + "position/embedding"][old.position_offset :]
    types = model.params.get(EMBEDDINGS + "token_type/embedding", np.zeros((2, old.hidden_size), np.float32))
    # `eigh` sorts ascending: the last eigenvectors are the principal components.
    _, vectors = np.linalg.eigh(np.cov(word.astype(np.float64), rowvar=False))
    basis = vectors[:, ::-1][:, :width].astype(np.float32)  # [d, width]
    tables = [(table @ basis).astype(np.float32) for table in (word, position, types)]
    # The sample has every word at several positions, which are derived from its id so that all positions occur.
    ids = np.tile(np.arange(len(word)), POSITIONS_PER_WORD)
    shifts = np.repeat(np.arange(POSITIONS_PER_WORD), len(word))
    positions = (ids * 7 + shifts * 13) % min(POSITIONS, len(position))

    def normalized_sums(word: np.ndarray, position: np.ndarray, types: np.ndarray) -> np.ndarray:
        """The embedding block's output for the sample, before the scale and bias of its norm."""
        sums = word[ids] + position[positions] + types[0]
        centred = sums - sums.mean(axis=1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + old.layer_norm_eps)

    # The compact block's norm keeps a scale of 1 and a bias of 0: the projection takes over the old ones.
    target = normalized_sums(word, position, types)  # [sample, d]
    target = target * model.params[EMBEDDINGS + "norm/scale"] + model.params[EMBEDDINGS + "norm/bias"]
    inputs = normalized_sums(*tables)  # [sample, width]
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)  # the last column is for the bias
    solution = np.linalg.solve((inputs.T @ inputs).astype(np.float64), (inputs.T @ target).astype(np.float64))
    names = ("word/embedding", "position/embedding", "token_type/embedding", "projection/kernel", "projection/bias")
    arrays = [*tables, solution[:-1].astype(np.float32), solution[-1].astype(np.float32)]
    return {EMBEDDINGS + name: array for name, array in zip(names, arrays, strict=True)}


def truncated(model: SentenceModel, width: int) -> SentenceModel:
    """The model with only the first `width` dimensions of its vectors, normalised after that if they were before. The last dense layer
    loses its other columns; a model without one gets a dense layer that selects the dimensions."""
    dense, old = model.definition.dense, model.definition.embedding_width
    check_size("dims", width, old, f"the width of the vectors of {model.source}")
    if width == old:
        return model
    if dense and isinstance(dense[-1], Dense):
        params = {path: model.params[path][..., :width] for path in dense_names(len(dense) - 1, dense[-1])}
        dense = (*dense[:-1], dataclasses.replace(dense[-1], out_features=width))
    else:
        params = {f"dense/{len(dense)}/kernel": np.eye(old, width, dtype=np.float32)}
        dense = (*dense, Dense(in_features=old, out_features=width, bias=False, activation="identity"))
    definition = dataclasses.replace(model.definition, dense=dense)
    source = f"{model.source}, first {width} numbers"
    return dataclasses.replace(model, definition=definition, params=model.params | params, source=source)


def uniform_as_torch(key: jax.Array, shape: tuple[int, ...], fan_in: int) -> jax.Array:
    """Draws uniformly from +-1/sqrt(fan_in), as torch does for the weights and biases of a linear layer."""
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, np.float32, -bound, bound)


def add_head(
    model: SentenceModel, out_features: int, *, key: jax.Array, activation: str = "tanh", init: str = "uniform"
) -> SentenceModel:
    """The model with one more dense layer on its pooled sentences. `init` of its kernel is `identity`, `normal`, or `uniform` as in torch.
    On a static encoder, the layer has no bias, so that the export can fold it into the table."""
    dense, width = model.definition.dense, model.definition.embedding_width
    bias = np.zeros(out_features, np.float32)
    if init == "identity":
        kernel = np.eye(width, out_features, dtype=np.float32)  # truncates the vectors, or appends zeros
    elif init == "normal":
        kernel = np.asarray(normal(key, (width, out_features)))
    else:
        kernel_key, bias_key = jax.random.split(key)
        kernel = np.asarray(uniform_as_torch(kernel_key, (width, out_features), width))
        bias = np.asarray(uniform_as_torch(bias_key, (out_features,), width))
    has_bias = not model.definition.architecture.is_static
    layer = Dense(in_features=width, out_features=out_features, bias=has_bias, activation=activation)
    params = model.params | {f"dense/{len(dense)}/kernel": kernel}
    if has_bias:
        params[f"dense/{len(dense)}/bias"] = bias
    definition = dataclasses.replace(model.definition, dense=(*dense, layer))
    return dataclasses.replace(model, definition=definition, params=params)


def cross_encoder(model: SentenceModel, *, key: jax.Array) -> SentenceModel:
    """A cross-encoder with the model's body and a new head, or the model itself if it is one; BERT's pooler is kept. The result has
    no prompts, because views of pairs have none."""
    model = dataclasses.replace(model, prompts={}, default_prompt=None, checkpoint_prompt=None)
    if model.definition.reads_pairs:
        return model
    definition = cross_definition(model.definition.architecture)
    width = model.definition.architecture.hidden_size
    has_pooler = definition.architecture.pooler
    arrays = {**model.params, **model.unread_pooler}
    params = {path: array for path, array in arrays.items() if path.startswith("transformer/")}
    if not has_pooler:
        params = {path: array for path, array in params.items() if not path.startswith(POOLER)}
    new_layers = {f"dense/{index}": dense.out_features for index, dense in enumerate(definition.dense)}
    # NOTE: a pooler of zeros is replaced by a new one. Exports of encoders without a pooler have it.
    if has_pooler and not np.any(params.get(POOLER + "kernel", 0.0)):
        new_layers["transformer/pooler"] = width
    keys = jax.random.split(key, len(new_layers))
    for (path, out_features), layer_key in zip(new_layers.items(), keys, strict=True):
        kernel = np.asarray(normal(layer_key, (width, out_features)))
        params |= {f"{path}/kernel": kernel, f"{path}/bias": np.zeros(out_features)}
    params = {path: np.asarray(array, np.float32) for path, array in params.items()}
    unread_pooler = {} if has_pooler else model.unread_pooler
    source = f"cross-encoder of {model.source}"
    return dataclasses.replace(model, definition=definition, params=params, source=source, unread_pooler=unread_pooler)


def drop_head(model: SentenceModel) -> SentenceModel:
    """The model without its last dense layer."""
    dense = model.definition.dense[:-1]
    params = {path: array for path, array in model.params.items() if not path.startswith(f"dense/{len(dense)}/")}
    return dataclasses.replace(model, definition=dataclasses.replace(model.definition, dense=dense), params=params)
