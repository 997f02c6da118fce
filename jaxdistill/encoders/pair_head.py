"""Cross-encoder heads: map a sentence pair's first token to one logit.

The heads follow Hugging Face's `...ForSequenceClassification` with one label, family by family: BERT has a linear layer
on its pooler; others have a dense layer, an activation and a linear layer. In training, dropout at the hidden states'
rate precedes each of these layers (DistilBERT's own rate is 0.2, before the last layer only).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.families import pair_head
from jaxdistill.encoders.hugging_face import Part, tensor_names
from jaxdistill.encoders.layers import INITIAL_DEVIATION
from jaxdistill.encoders.settings import setting

KIND = "ForSequenceClassification"
"""Ending of a classifier's name in `architectures` of its `config.json`."""


def cross_definition(architecture: Architecture) -> EncoderDefinition:
    """The definition of the family's cross-encoder with this body."""
    head = pair_head(architecture.family)
    width = architecture.hidden_size
    hidden = Dense(in_features=width, out_features=width, activation=head.activation, drops=head.drops_input)
    return EncoderDefinition(
        architecture=dataclasses.replace(architecture, pooler=not head.hidden),
        pooling=Pooling(tokens="cls" if head.hidden else "pooler"),
        dense=(
            *([hidden] if head.hidden else []),
            Dense(in_features=width, out_features=1, activation="identity", drops=True),
        ),
        reads_pairs=True,
    )


def head_names(architecture: Architecture) -> dict[str, str | Part]:
    """Maps the head's parameters to the checkpoint's tensor names."""
    head = pair_head(architecture.family)
    layers = [name for name in (head.hidden, head.output) if name]
    table = {f"dense/{place}": name for place, name in enumerate(layers)}
    return tensor_names(table, [f"{layer}/{leaf}" for layer in table for leaf in ("kernel", "bias")])


def classifier_labels(config: Mapping[str, Any], file: Path) -> int:
    """Number of labels in a `config.json`: 1 for a cross-encoder, 0 if it does not describe a classifier."""
    if not any(
        str(name).endswith(KIND) for name in setting(config, "architectures", list | None, None, file=file) or ()
    ):
        return 0
    if "id2label" in config:
        return len(setting(config, "id2label", dict, file=file))
    return setting(config, "num_labels", int, 2, least=1, file=file)


def fresh_head(
    definition: EncoderDefinition, params: Mapping[str, np.ndarray], key: jax.Array
) -> tuple[EncoderDefinition, dict[str, np.ndarray]]:
    """The cross-encoder with an encoder's body and a new head: weights of deviation 0.02, biases 0.

    Keeps the encoder's pooler. NOTE: replaces a pooler of zeros, which exports of encoders without a pooler have.
    """
    cross = cross_definition(definition.architecture)
    width = definition.architecture.hidden_size
    layers = {f"dense/{place}": dense.out_features for place, dense in enumerate(cross.dense)}
    pooler = params.get("transformer/pooler/kernel")
    if cross.architecture.pooler and (pooler is None or not np.any(pooler)):
        layers["transformer/pooler"] = width
    body = {path: array for path, array in params.items() if path.startswith("transformer/")}
    for path, layer_key in zip(layers, jax.random.split(key, len(layers)), strict=True):
        normal = jax.random.normal(layer_key, (width, layers[path]), np.float32)
        body |= {f"{path}/kernel": INITIAL_DEVIATION * np.asarray(normal), f"{path}/bias": np.zeros(layers[path])}
    unread = () if cross.architecture.pooler else ("transformer/pooler/kernel", "transformer/pooler/bias")
    return cross, {path: np.asarray(array, np.float32) for path, array in body.items() if path not in unread}
