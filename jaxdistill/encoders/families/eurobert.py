"""EuroBERT: Llama with bidirectional attention."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    hugging_face.refuse_others(config, hugging_face.ENCODER)
    return llama.architecture({"rms_norm_eps": 1e-5} | dict(config), family="eurobert", causal=False)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    return llama.config(architecture) | {"model_type": "eurobert", "architectures": ["EuroBertModel"]}
