"""BERT, and what has its body: MiniLM, TinyBERT, multilingual MiniLM with XLM-R's tokenizer, LaBSE, BGE, E5, GTE."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.hugging_face import PairHead, WordHead

PREFIXES = ("bert.",)
PAIR_HEAD = PairHead("classifier")
WORD_HEAD = WordHead(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
    "cls.predictions.decoder",
)


def architecture(config: Mapping[str, Any], **variations: Any) -> Architecture:
    """Reads a `config.json`; `variations` are fields in which a related family differs."""
    hugging_face.refuse_variants(config)
    size, value = hugging_face.size, hugging_face.value
    fields: dict[str, Any] = dict(
        family="bert",
        vocab_size=size(config, "vocab_size"),
        hidden_size=size(config, "hidden_size"),
        layers=size(config, "num_hidden_layers"),
        heads=size(config, "num_attention_heads"),
        intermediate_size=size(config, "intermediate_size"),
        max_positions=size(config, "max_position_embeddings"),
        token_types=value(config, "type_vocab_size", int, 2, least=0),
        activation=hugging_face.activation(config),
        layer_norm_eps=value(config, "layer_norm_eps", float, 1e-12, least=0),
        pad_id=value(config, "pad_token_id", int | None, None) or 0,
        hidden_dropout=value(config, "hidden_dropout_prob", float, 0.1, least=0),
        attention_dropout=value(config, "attention_probs_dropout_prob", float, 0.1, least=0),
    )
    return Architecture(**(fields | variations))


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    a = architecture
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "intermediate_size": a.intermediate_size,
        "max_position_embeddings": a.max_positions,
        "type_vocab_size": a.token_types,
        "hidden_act": hugging_face.activation_name(a.activation),
        "layer_norm_eps": a.layer_norm_eps,
        "pad_token_id": a.pad_id,
        "hidden_dropout_prob": a.hidden_dropout,
        "attention_probs_dropout_prob": a.attention_dropout,
        "initializer_range": 0.02,
        "dtype": "float32",
    }


def names(architecture: Architecture) -> dict[str, str]:
    """Our paths to the checkpoint's tensor names."""
    dense, norms = {}, {"transformer/embeddings/norm": "embeddings.LayerNorm"}
    for index in range(architecture.layers):
        ours, theirs = f"transformer/layers/{index}", f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            dense[f"{ours}/attention/{part}"] = f"{theirs}.attention.self.{part}"
        dense[f"{ours}/attention/output"] = f"{theirs}.attention.output.dense"
        dense[f"{ours}/intermediate"] = f"{theirs}.intermediate.dense"
        dense[f"{ours}/output"] = f"{theirs}.output.dense"
        norms[f"{ours}/attention/norm"] = f"{theirs}.attention.output.LayerNorm"
        norms[f"{ours}/norm"] = f"{theirs}.output.LayerNorm"
    if architecture.pooler:
        dense["transformer/pooler"] = "pooler.dense"
    tables = {
        "transformer/embeddings/word/embedding": "embeddings.word_embeddings.weight",
        "transformer/embeddings/position/embedding": "embeddings.position_embeddings.weight",
    }
    if architecture.token_types:
        tables["transformer/embeddings/token_type/embedding"] = "embeddings.token_type_embeddings.weight"
    return tables | hugging_face.with_kernel_and_bias(dense) | hugging_face.with_scale_and_bias(norms)
