"""Makes students: from some layers of a model, or randomly initialised, with or without a dense head."""

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdistill.core import InputError
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.families import cross_definition
from jaxdistill.encoders.layers import INITIAL_DEVIATION, uniform_as_torch
from jaxdistill.encoders.sentence import init_params
from jaxdistill.models.checkpoints.model import POOLER, SentenceModel, check_size
from jaxdistill.models.checkpoints.modules import sentence_tensors
from jaxdistill.models.checkpoints.tokenizer import read_tokenizer

logger = logging.getLogger(__name__)

LAYERS = "transformer/layers/"
LAYERS_HELP = "last:3, first:3, even:3, greedy:3 or a list such as 1,3,5 (counted from 0)"


def layer_indices(choice: str, depth: int) -> tuple[int, ...]:
    """The indices, among `depth` layers, that `choice` names; `even:3` of 6 are 1, 3, 5, so the last is always kept."""
    kind, _, number = choice.partition(":")
    chosen: Sequence[int] = ()
    with contextlib.suppress(ValueError):  # text that is not a number selects no layer, which is refused below
        if kind in ("last", "first", "even"):
            count = int(number)
            even = [round((index + 1) * depth / count) - 1 for index in range(count)]
            chosen = {"last": range(depth - count, depth), "first": range(count), "even": even}[kind]
        else:
            chosen = [int(part) for part in choice.split(",")]
    if not chosen or not set(chosen) <= set(range(depth)) or sorted({*chosen}) != list(chosen):
        raise InputError(
            f"student.layers={choice!r} does not fit an encoder of {depth} layers; use {LAYERS_HELP}, in ascending order."
        )
    return tuple(chosen)


def from_layers(model: SentenceModel, layers: str) -> SentenceModel:
    """A student with some of the model's layers, and its embeddings, pooling, head and tokenizer.

    Layers keep the window and the rotary positions with which their weights were trained.
    """
    old = model.definition.architecture
    chosen = layer_indices(layers, old.layers)
    params = {path: array for path, array in model.params.items() if not path.startswith(LAYERS)}
    for new, index in enumerate((0,) if old.shared_layers else chosen):
        before = f"{LAYERS}{index}/"
        layer = {path.removeprefix(before): a for path, a in model.params.items() if path.startswith(before)}
        if new == 0 and not old.first_norm and "attention/norm/scale" in layer:
            # A family whose first layer has no norm: its scale goes into queries, keys and values, which is exact if the
            # embeddings' own norm has scale 1.
            scale = layer["attention/norm/scale"].astype(np.float32)[:, None]
            layer = {path: array for path, array in layer.items() if not path.startswith("attention/norm/")}
            kernels = [f"attention/{part}/kernel" for part in ("query", "key", "value")]
            layer |= {path: layer[path].astype(np.float32) * scale for path in kernels}
        params |= {f"{LAYERS}{new}/{path}": array for path, array in layer.items()}
    whole = [layer for layer in range(old.layers) if not old.kind(layer).window]
    if whole and not set(whole) & set(chosen):
        window = max(old.kind(layer).window for layer in chosen)
        message = "student.layers=%s keeps only layers that see %d tokens on each side; those that see the whole sentence are %s"
        logger.warning(message, layers, window, ",".join(map(str, whole)))
    definition = dataclasses.replace(model.definition, architecture=old.with_layers(chosen))
    return model.remade(definition, params, f"{model.source}, layers {', '.join(map(str, chosen))}", unread_pooler={})


def with_pooling(model: SentenceModel, pooling: str) -> SentenceModel:
    """The teacher as a student with another pooling, such as `cls`; `pooler` uses the checkpoint's own pooler."""
    chosen, old = Pooling.parse(pooling), model.definition
    if chosen == old.pooling:
        return model
    logger.warning("%s: student.pooling=%s instead of the teacher's %s", model.source, chosen, old.pooling)
    pooler = {path: array for path, array in {**model.unread_pooler, **model.params}.items() if path.startswith(POOLER)}
    rest = {path: array for path, array in model.params.items() if not path.startswith(POOLER)}
    reads = chosen.tokens == "pooler" and bool(pooler)
    architecture = dataclasses.replace(old.architecture, pooler=reads)
    definition = dataclasses.replace(old, architecture=architecture, pooling=chosen)
    return model.remade(definition, rest | pooler if reads else rest, unread_pooler={} if reads else pooler)


def fresh(
    template: SentenceModel, key: jax.Array, *, width: int, depth: int, heads: int = 0, intermediate: int = 0,
    tokenizer_folder: Path | None = None,
) -> SentenceModel:  # fmt: skip
    """A randomly initialised student of a given size, with the family, tokenizer, prompts and pooling of `template`.

    Zeros stand for one attention head per 64 of `width`, and feed-forward networks of four times `width`. A `tokenizer_folder`
    with a tokenizer like BERT's (`data.wordpiece`) makes the student a BERT.
    """
    if tokenizer_folder is not None:
        tokenizer = read_tokenizer(tokenizer_folder, vocab_size=None, lower_case=False)
        tokenizer.enable_truncation(template.max_length)
        entries, pad_id = tokenizer.get_vocab_size(), tokenizer.token_to_id("[PAD]")
        architecture = plain_architecture(
            template.definition.architecture, "bert", vocab_size=entries, pad_id=pad_id, token_types=2
        )
        definition = dataclasses.replace(template.definition, architecture=architecture)
        source = f"its own with {entries:,} entries"
        template = template.remade(definition, {}, source, tokenizer=tokenizer, tokenizer_folder=tokenizer_folder)
    old, pooling = template.definition.architecture, template.definition.pooling
    # Layers take the template's first kinds; head widths are new, and there are as many key heads as query heads.
    architecture = dataclasses.replace(
        old.with_layers([layer % old.layers for layer in range(depth)]),
        hidden_size=width,
        heads=heads or max(1, width // 64),
        intermediate_size=intermediate or 4 * width,
        embedding_size=width,
        pooler=pooling.tokens == "pooler",
        head_size=0,
        key_heads=0,
        attention_scale=0.0,
        embedding_projected=old.embedding_projected or old.shared_layers,  # ALBERT's format always has the projection
    )
    definition = EncoderDefinition(architecture=architecture, pooling=pooling, normalize=template.definition.normalize)
    params = {path: np.asarray(array) for path, array in init_params(definition, key).items()}
    source = f"fresh {architecture.family} of width {width} and depth {depth}, tokenizer of {template.source}"
    return template.remade(definition, params, source, unread_pooler={})


def plain_architecture(old: Architecture, family: str, **changes: Any) -> Architecture:
    """A BERT or ELECTRA architecture with the sizes of another family's encoder, updated by `changes`."""
    copied = (
        "vocab_size", "hidden_size", "layers", "heads", "intermediate_size", "embedding_size", "activation", "layer_norm_eps",
        "pooler", "pad_id", "hidden_dropout", "attention_dropout", "drophead",
    )  # fmt: skip
    options: dict[str, Any] = {name: getattr(old, name) for name in copied}
    options |= dict(max_positions=old.longest, token_types=old.token_types or 2)
    return Architecture(family=family, **(options | changes))


COMPACTED = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert")
"""Families whose embedding block `compact` replaces by ELECTRA's."""
COMPACT_POSITIONS = 4
"""Number of positions at which every word is evaluated to fit a compact embedding block to the original one."""


def compact(model: SentenceModel, width: int, *, key: jax.Array, init: str) -> SentenceModel:
    """The model with embedding tables of `width` and a projection to its layers' width: SimTDE's student, as an ELECTRA.

    `init` is `random`, or `svd`: projects the model's tables to the word table's first right singular vectors, and fits the
    projection to the old block's output by least squares over the vocabulary.
    """
    old, pooling = model.definition.architecture, model.definition.pooling
    if width >= old.hidden_size or old.family not in COMPACTED or pooling.tokens == "pooler":
        raise InputError(
            f"student.embedding={width} must be below the encoder's width of {old.hidden_size}, which must be a BERT or RoBERTa without a "
            f"pooler, not a {old.family} with pooling {pooling}."
        )
    architecture = plain_architecture(old, "electra", embedding_size=width, pooler=False)
    definition = dataclasses.replace(model.definition, architecture=architecture)
    # The layers keep their weights; only the embedding block is new, its projection included.
    fresh_params = init_params(definition, key)
    block = "transformer/embeddings/"
    params = {path: model.params.get(path, fresh_params[path]) for path in fresh_params if not path.startswith(block)}
    params |= {path: np.asarray(array) for path, array in fresh_params.items() if path.startswith(block)}
    if init == "svd":
        params |= _factored(model, definition)
    return model.remade(definition, params, f"{model.source}, embeddings of width {width} ({init})", unread_pooler={})


def _factored(model: SentenceModel, definition: EncoderDefinition) -> dict[str, np.ndarray]:
    """The embedding block of `compact` with `init="svd"`."""
    old, new, block = model.definition.architecture, definition.architecture, "transformer/embeddings/"
    word = model.params[block + "word/embedding"]
    position = model.params[block + "position/embedding"][old.position_offset :]
    types = model.params.get(block + "token_type/embedding", np.zeros((2, old.hidden_size), np.float32))
    _, basis = np.linalg.eigh(np.cov(word.astype(np.float64), rowvar=False))
    basis = basis[:, ::-1][:, : new.embedding_size].astype(np.float32)
    small = [(table @ basis).astype(np.float32) for table in (word, position, types)]
    # Each word at a few positions, derived from its index so that every position occurs.
    ids = np.tile(np.arange(len(word)), COMPACT_POSITIONS)
    positions = (ids * 7 + np.repeat(np.arange(COMPACT_POSITIONS), len(word)) * 13) % min(32, len(position))

    def normalized(tables: Sequence[np.ndarray], eps: float) -> np.ndarray:
        x = tables[0][ids] + tables[1][positions] + tables[2][0]
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + eps)

    target = normalized((word, position, types), old.layer_norm_eps)
    target = target * model.params[block + "norm/scale"] + model.params[block + "norm/bias"]
    inputs = normalized(small, new.layer_norm_eps)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    solution = np.linalg.solve((inputs.T @ inputs).astype(np.float64), (inputs.T @ target).astype(np.float64))
    return {
        block + "word/embedding": small[0],
        block + "position/embedding": small[1],
        block + "token_type/embedding": small[2],
        block + "projection/kernel": solution[:-1].astype(np.float32),
        block + "projection/bias": solution[-1].astype(np.float32),
    }


def first_numbers(model: SentenceModel, width: int) -> SentenceModel:
    """The model with the first `width` dimensions of its vectors (nested widths), normalised again if they were before.

    The last dense layer loses its other columns; a model without one gets a dense layer that selects the dimensions.
    """
    dense, old = model.definition.dense, model.definition.embedding_width
    check_size("dims", width, old, f"the width of the vectors of {model.source}")
    if width == old:
        return model
    source = f"{model.source}, first {width} numbers"
    if dense and isinstance(dense[-1], Dense):
        cut = {path: model.params[path][..., :width] for path in sentence_tensors(len(dense) - 1, dense[-1])}
        layers = (*dense[:-1], dataclasses.replace(dense[-1], out_features=width))
    else:
        cut = {f"dense/{len(dense)}/kernel": np.eye(old, width, dtype=np.float32)}
        layers = (*dense, Dense(in_features=old, out_features=width, bias=False, activation="identity"))
    return model.remade(dataclasses.replace(model.definition, dense=layers), model.params | cut, source)


def add_head(
    model: SentenceModel, out_features: int, *, key: jax.Array, activation: str = "tanh", init: str = "uniform"
) -> SentenceModel:
    """The model with one more dense layer on its pooled sentences; on a static encoder, the layer has no bias.

    `init` is `uniform`, as in torch, `normal`, as in Hugging Face, or `identity`, which keeps the features, truncated or padded
    with zeros.
    """
    width, bias = model.definition.embedding_width, np.zeros(out_features, np.float32)
    if init == "identity":
        kernel = np.eye(width, out_features, dtype=np.float32)
    elif init == "normal":
        kernel = INITIAL_DEVIATION * np.asarray(jax.random.normal(key, (width, out_features), np.float32))
    else:
        kernel_key, bias_key = jax.random.split(key)
        kernel = np.asarray(uniform_as_torch(kernel_key, (width, out_features), width))
        bias = np.asarray(uniform_as_torch(bias_key, (out_features,), width))
    index, biased = len(model.definition.dense), not model.definition.architecture.is_static
    layer = Dense(in_features=width, out_features=out_features, bias=biased, activation=activation)
    params = model.params | {f"dense/{index}/kernel": kernel} | ({f"dense/{index}/bias": bias} if biased else {})
    return model.remade(dataclasses.replace(model.definition, dense=(*model.definition.dense, layer)), params)


def cross_encoder(model: SentenceModel, *, key: jax.Array) -> SentenceModel:
    """A cross-encoder with the model's body and a new head; a model that already is a cross-encoder keeps its head.

    BERT's pooler is the checkpoint's, if it has one. The result has no prompts, because views of pairs have none.
    """
    model = model.without_prompts()
    if model.definition.reads_pairs:
        return model
    definition, width = cross_definition(model.definition.architecture), model.definition.architecture.hidden_size
    has_pooler = definition.architecture.pooler
    body = {path: a for path, a in model.params.items() if path.startswith("transformer/")} | dict(model.unread_pooler)
    fresh_layers = {f"dense/{index}": dense.out_features for index, dense in enumerate(definition.dense)}
    # NOTE: a pooler of zeros, which exports of encoders without a pooler have, is replaced.
    if has_pooler and not np.any(body.get(POOLER + "kernel", 0.0)):
        fresh_layers["transformer/pooler"] = width
    for path, layer_key in zip(fresh_layers, jax.random.split(key, len(fresh_layers)), strict=True):
        kernel = INITIAL_DEVIATION * np.asarray(jax.random.normal(layer_key, (width, fresh_layers[path]), np.float32))
        body |= {f"{path}/kernel": kernel, f"{path}/bias": np.zeros(fresh_layers[path])}
    params = {path: np.asarray(a, np.float32) for path, a in body.items() if has_pooler or not path.startswith(POOLER)}
    unread = {} if has_pooler else model.unread_pooler
    return model.remade(definition, params, f"cross-encoder of {model.source}", unread_pooler=unread)


def drop_head(model: SentenceModel) -> SentenceModel:
    """The model without its last dense layer."""
    *dense, _ = model.definition.dense
    params = {path: array for path, array in model.params.items() if not path.startswith(f"dense/{len(dense)}/")}
    return model.remade(dataclasses.replace(model.definition, dense=tuple(dense)), params)
