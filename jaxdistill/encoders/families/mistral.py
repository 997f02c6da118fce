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
    window = hugging_face.value(config, "sliding_window", int | None, None, least=2)
    kinds = tuple(dataclasses.replace(kind, window=(window or 1) - 1) for kind in plain.kinds)
    return dataclasses.replace(plain, kinds=kinds)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    window = architecture.kind(0).window
    special = {
        "model_type": "mistral",
        "architectures": ["MistralModel"],
        "sliding_window": window + 1 if window else None,
    }
    return llama.config(architecture) | special
