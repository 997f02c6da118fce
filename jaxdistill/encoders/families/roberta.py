"""RoBERTa, XLM-R and CamemBERT: BERT with positions that start after the padding token's row."""

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.families.bert import NAMES as NAMES
from jaxdistill.encoders.hugging_face import PairHead, Settings

PREFIXES = ("roberta.", "xlm-roberta.")
PAIR_HEAD = PairHead("classifier.out_proj", "classifier.dense")


def architecture(config: Settings) -> Architecture:
    family = config.get("model_type", "roberta")
    pad_id = config.get("pad_token_id", 1)
    return bert.architecture(config, family=family, pad_id=pad_id, position_offset=pad_id + 1)


def config(architecture: Architecture) -> Settings:
    return bert.config(architecture) | {"bos_token_id": 0, "eos_token_id": 2}  # transformers' defaults
