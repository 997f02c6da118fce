"""RoBERTa: BERT with positions that start after the padding token's row."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.families.bert import NAMES as NAMES
from jaxdistill.encoders.hugging_face import PairHead

PREFIXES = ("roberta.",)
PAIR_HEAD = PairHead("classifier.out_proj", "classifier.dense")


def architecture(config: Mapping[str, Any], *, family: str = "roberta") -> Architecture:
    """Reads a `config.json`."""
    pad_id = hugging_face.value(config, "pad_token_id", int, 1)
    return bert.architecture(config, family=family, pad_id=pad_id, position_offset=pad_id + 1)


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    special = {"model_type": "roberta", "architectures": ["RobertaModel"], "bos_token_id": 0, "eos_token_id": 2}
    return bert.config(architecture) | special
