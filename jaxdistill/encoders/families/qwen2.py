"""Qwen2: Llama with biases of queries, keys and values; for GTE-Qwen2, Stella and other decoders used as encoders."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama, qwen3
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`; raises `InputError` if only the checkpoint's own code says whether attention is causal."""
    code = hugging_face.value(config, "auto_map", dict | None, None) or {}
    if "AutoModel" in code and "is_causal" not in config:
        raise InputError(
            f"config.json names its own code ({code['AutoModel']!s:.80}), which is not run, and does not say whether a token"
            ' attends to later ones; add "is_causal": false if it does (GTE-Qwen2, Stella), or true.'
        )
    biases = dict(attention_bias=True, attention_output_bias=False, intermediate_bias=False, output_bias=False)
    return qwen3.with_windows(llama.architecture(config, family="qwen2", **biases), config)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    written = llama.config(architecture) | qwen3.window_settings(architecture)
    return written | {"model_type": "qwen2", "architectures": ["Qwen2Model"]}
