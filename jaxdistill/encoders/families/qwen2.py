"""Qwen2: Llama with biases of queries, keys and values; for GTE-Qwen2, Stella and other decoders used as encoders."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama, qwen3
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    biases = dict(attention_bias=True, attention_output_bias=False, intermediate_bias=False, output_bias=False)
    return qwen3.with_windows(llama.architecture(config, family="qwen2", **biases), config)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    written = llama.config(architecture) | qwen3.window_settings(architecture)
    return written | {"model_type": "qwen2", "architectures": ["Qwen2Model"]}
