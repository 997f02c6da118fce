"""ALBERT: ELECTRA's narrow embeddings, and one layer that is applied repeatedly."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert

PREFIXES = ("albert.",)


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    for key in ("num_hidden_groups", "inner_group_num"):
        if config.get(key, 1) != 1:
            raise InputError(f"config.json has {key}={config[key]!r}; only 1, one layer for all, can be read.")
    width = hugging_face.size(config, "embedding_size", default=128)
    return bert.architecture(
        {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | dict(config),
        family="albert",
        embedding_size=width,
        embedding_projected=width == hugging_face.size(config, "hidden_size"),
        shared_layers=True,
    )


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    special = {"model_type": "albert", "architectures": ["AlbertModel"], "num_hidden_groups": 1, "inner_group_num": 1}
    return bert.config(architecture) | special | {"embedding_size": architecture.embedding_size}


def names(architecture: Architecture) -> dict[str, str]:
    """Our paths to the checkpoint's tensor names."""
    ours, theirs = "transformer/layers/0", "encoder.albert_layer_groups.0.albert_layers.0"
    dense = {f"{ours}/attention/{part}": f"{theirs}.attention.{part}" for part in ("query", "key", "value")}
    dense |= {
        f"{ours}/attention/output": f"{theirs}.attention.dense",
        f"{ours}/intermediate": f"{theirs}.ffn",
        f"{ours}/output": f"{theirs}.ffn_output",
        "transformer/embeddings/projection": "encoder.embedding_hidden_mapping_in",
    }
    norms = {
        "transformer/embeddings/norm": "embeddings.LayerNorm",
        f"{ours}/attention/norm": f"{theirs}.attention.LayerNorm",
        f"{ours}/norm": f"{theirs}.full_layer_layer_norm",
    }
    if architecture.pooler:
        dense["transformer/pooler"] = "pooler"
    tables = {
        f"transformer/embeddings/{part}/embedding": f"embeddings.{part}_embeddings.weight"
        for part in ("word", "position", "token_type")
    }
    return tables | hugging_face.with_kernel_and_bias(dense) | hugging_face.with_scale_and_bias(norms)
