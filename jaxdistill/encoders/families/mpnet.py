"""MPNet: BERT without token types, with positions as RoBERTa's and one relative position bias for all layers."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.attention import BUCKETS
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.families.roberta import PAIR_HEAD as PAIR_HEAD
from jaxdistill.encoders.families.roberta import WORD_HEAD as WORD_HEAD

PREFIXES = ("mpnet.",)


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    value = hugging_face.value
    return bert.architecture(
        config,
        family="mpnet",
        pad_id=value(config, "pad_token_id", int, 1, least=0),
        position_offset=2,  # fixed, whatever the padding token
        token_types=0,
        relative_buckets=value(config, "relative_attention_num_buckets", int, BUCKETS, least=BUCKETS),
    )


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    config = bert.config(architecture)
    del config["type_vocab_size"]
    special = {"model_type": "mpnet", "architectures": ["MPNetModel"], "bos_token_id": 0, "eos_token_id": 2}
    return config | special | {"relative_attention_num_buckets": architecture.relative_buckets}


def names(architecture: Architecture) -> dict[str, str]:
    """Our paths to the checkpoint's tensor names."""
    dense, norms = {}, {"transformer/embeddings/norm": "embeddings.LayerNorm"}
    for index in range(architecture.layers):
        ours, theirs = f"transformer/layers/{index}", f"encoder.layer.{index}"
        for part, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            dense[f"{ours}/attention/{part}"] = f"{theirs}.attention.attn.{short}"
        dense[f"{ours}/intermediate"] = f"{theirs}.intermediate.dense"
        dense[f"{ours}/output"] = f"{theirs}.output.dense"
        norms[f"{ours}/attention/norm"] = f"{theirs}.attention.LayerNorm"
        norms[f"{ours}/norm"] = f"{theirs}.output.LayerNorm"
    if architecture.pooler:
        dense["transformer/pooler"] = "pooler.dense"
    tables = {
        "transformer/embeddings/word/embedding": "embeddings.word_embeddings.weight",
        "transformer/embeddings/position/embedding": "embeddings.position_embeddings.weight",
        "transformer/relative_bias/embedding": "encoder.relative_attention_bias.weight",
    }
    return tables | hugging_face.with_kernel_and_bias(dense) | hugging_face.with_scale_and_bias(norms)
