"""MPNet: BERT without token types, with RoBERTa's positions and one relative position bias shared by all layers."""

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.attention import BUCKETS
from jaxdistill.encoders.families import bert, roberta
from jaxdistill.encoders.families.roberta import PAIR_HEAD as PAIR_HEAD
from jaxdistill.encoders.hugging_face import Settings

PREFIXES = ("mpnet.",)
NAMES = bert.NAMES | {
    "relative_bias": "encoder.relative_attention_bias",
    "layers/*/attention/query": "encoder.layer.*.attention.attn.q",
    "layers/*/attention/key": "encoder.layer.*.attention.attn.k",
    "layers/*/attention/value": "encoder.layer.*.attention.attn.v",
    "layers/*/attention/output": "encoder.layer.*.attention.attn.o",
    "layers/*/attention/norm": "encoder.layer.*.attention.LayerNorm",
}


def architecture(config: Settings) -> Architecture:
    return bert.architecture(
        config,
        family="mpnet",
        pad_id=1 if config.get("pad_token_id") is None else config["pad_token_id"],
        position_offset=2,  # fixed, whatever the padding token's id
        token_types=0,
        relative_buckets=config.get("relative_attention_num_buckets", BUCKETS),
    )


def config(architecture: Architecture) -> Settings:
    config = roberta.config(architecture)
    del config["type_vocab_size"]
    return config | {"relative_attention_num_buckets": architecture.relative_buckets}
