"""Qwen3: Llama with norms of queries and keys, and, in some checkpoints, windows in the upper layers."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.hugging_face import FULL, SLIDING


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    plain = {"head_dim": 128, **config, "mlp_bias": False}
    return with_windows(llama.architecture(plain, family="qwen3", query_key_norm=True), config)


def with_windows(plain: Architecture, config: Mapping[str, Any]) -> Architecture:
    """The architecture with the windows that a `config.json` asks for."""
    value = hugging_face.value
    if not value(config, "use_sliding_window", bool, False):
        return plain
    window = hugging_face.window(config, causal=plain.causal)
    first = value(config, "max_window_layers", int, 28, least=0)
    types = hugging_face.layer_types(config, [SLIDING if layer >= first else FULL for layer in range(plain.layers)])
    return hugging_face.with_windows(plain, types, window)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    return (
        llama.config(architecture)
        | window_settings(architecture)
        | {"model_type": "qwen3", "architectures": ["Qwen3Model"]}
    )


def window_settings(architecture: Architecture) -> dict[str, Any]:
    """The options of a `config.json` that describe windows."""
    types = hugging_face.types_of(architecture)
    return {
        "use_sliding_window": SLIDING in types,
        "sliding_window": hugging_face.sliding_window(architecture),
        "layer_types": types,
    }
