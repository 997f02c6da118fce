"""CamemBERT: RoBERTa under another name."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import roberta
from jaxdistill.encoders.families.roberta import NAMES as NAMES
from jaxdistill.encoders.families.roberta import PAIR_HEAD as PAIR_HEAD
from jaxdistill.encoders.families.roberta import PREFIXES as PREFIXES


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    return roberta.architecture(config, family="camembert")


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    return roberta.config(architecture) | {"model_type": "camembert", "architectures": ["CamembertModel"]}
