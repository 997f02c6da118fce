"""Mistral: Llama with a window; E5-Mistral and other decoders that give sentence vectors."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.families.llama import names as names


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    plain = llama.architecture(config, family="mistral")
    window = hugging_face.window(config, causal=plain.causal)
    kinds = tuple(dataclasses.replace(kind, window=window) for kind in plain.kinds)
    return dataclasses.replace(plain, kinds=kinds)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    special = {
        "model_type": "mistral",
        "architectures": ["MistralModel"],
        "sliding_window": hugging_face.sliding_window(architecture),
    }
    return llama.config(architecture) | special
