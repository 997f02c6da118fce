"""DistilBERT: BERT without token types and pooler, under other names."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.hugging_face import PairHead, WordHead

PREFIXES = ("distilbert.",)
PAIR_HEAD = PairHead("classifier", "pre_classifier", "relu", drops_input=False)
WORD_HEAD = WordHead("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector")

GENERAL_NAMES = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
"""`attribute_map` of transformers."""


def architecture(config: Mapping[str, Any]) -> Architecture:
    """Reads a `config.json`."""
    config = hugging_face.with_own_names(config, GENERAL_NAMES)
    hugging_face.refuse_variants(config)
    size, value = hugging_face.size, hugging_face.value
    return Architecture(
        family="distilbert",
        vocab_size=size(config, "vocab_size"),
        hidden_size=size(config, "dim"),
        layers=size(config, "n_layers"),
        heads=size(config, "n_heads"),
        intermediate_size=size(config, "hidden_dim"),
        max_positions=size(config, "max_position_embeddings"),
        activation=hugging_face.activation(config, "activation"),
        pad_id=value(config, "pad_token_id", int | None, None) or 0,
        hidden_dropout=value(config, "dropout", float, 0.1, least=0),
        attention_dropout=value(config, "attention_dropout", float, 0.1, least=0),
    )


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    a = architecture
    return {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        "vocab_size": a.vocab_size,
        "dim": a.hidden_size,
        "n_layers": a.layers,
        "n_heads": a.heads,
        "hidden_dim": a.intermediate_size,
        "max_position_embeddings": a.max_positions,
        "activation": hugging_face.activation_name(a.activation),
        "pad_token_id": a.pad_id,
        "dropout": a.hidden_dropout,
        "attention_dropout": a.attention_dropout,
        "initializer_range": 0.02,
        "sinusoidal_pos_embds": False,
        "dtype": "float32",
    }


def names(architecture: Architecture) -> dict[str, str]:
    """Our paths to the checkpoint's tensor names."""
    dense, norms = {}, {"transformer/embeddings/norm": "embeddings.LayerNorm"}
    for index in range(architecture.layers):
        ours, theirs = f"transformer/layers/{index}", f"transformer.layer.{index}"
        for part, short in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
            dense[f"{ours}/attention/{part}"] = f"{theirs}.attention.{short}_lin"
        dense[f"{ours}/intermediate"] = f"{theirs}.ffn.lin1"
        dense[f"{ours}/output"] = f"{theirs}.ffn.lin2"
        norms[f"{ours}/attention/norm"] = f"{theirs}.sa_layer_norm"
        norms[f"{ours}/norm"] = f"{theirs}.output_layer_norm"
    tables = {
        "transformer/embeddings/word/embedding": "embeddings.word_embeddings.weight",
        "transformer/embeddings/position/embedding": "embeddings.position_embeddings.weight",
    }
    return tables | hugging_face.with_kernel_and_bias(dense) | hugging_face.with_scale_and_bias(norms)
