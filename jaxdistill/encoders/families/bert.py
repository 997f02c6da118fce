"""BERT, and models with its body: MiniLM, TinyBERT, multilingual MiniLM with XLM-R's tokenizer, LaBSE, BGE, E5, the first GTE."""

from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture

PREFIXES = ("bert.",)
EMBEDDINGS = {
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/token_type": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
}
NAMES = EMBEDDINGS | {
    "layers/*/attention/query": "encoder.layer.*.attention.self.query",
    "layers/*/attention/key": "encoder.layer.*.attention.self.key",
    "layers/*/attention/value": "encoder.layer.*.attention.self.value",
    "layers/*/attention/output": "encoder.layer.*.attention.output.dense",
    "layers/*/attention/norm": "encoder.layer.*.attention.output.LayerNorm",
    "layers/*/intermediate": "encoder.layer.*.intermediate.dense",
    "layers/*/output": "encoder.layer.*.output.dense",
    "layers/*/norm": "encoder.layer.*.output.LayerNorm",
    "pooler": "pooler.dense",
}
PAIR_HEAD = hugging_face.PairHead("classifier")


def architecture(config: hugging_face.Settings, **variations: Any) -> Architecture:
    """Reads a `config.json`; `variations` are the fields in which a related family differs."""
    hugging_face.refuse_others(config, hugging_face.ENCODER)
    fields: dict[str, Any] = dict(
        family="bert",
        **hugging_face.sizes(config),
        token_types=config.get("type_vocab_size", 2),
        activation=hugging_face.activation(config),
        layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        hidden_dropout=config.get("hidden_dropout_prob", 0.1),
        attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
    )
    return Architecture(**(fields | variations))


def config(architecture: Architecture) -> hugging_face.Settings:
    """The `config.json` of a plain encoder, also of a related family."""
    return {
        **hugging_face.common_settings(architecture),
        "type_vocab_size": architecture.token_types,
        "layer_norm_eps": architecture.layer_norm_eps,
        "hidden_dropout_prob": architecture.hidden_dropout,
        "attention_probs_dropout_prob": architecture.attention_dropout,
        **({"head_dim": architecture.head_size} if architecture.head_size else {}),  # not in BERT, likewise the next
        **({"rope_parameters": hugging_face.rope_parameters(architecture.kind(0))} if architecture.kinds else {}),
    }
