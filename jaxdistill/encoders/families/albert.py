"""ALBERT: narrow embeddings like ELECTRA's, and one layer that is applied repeatedly."""

from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.hugging_face import Settings

PREFIXES = ("albert.",)
NAMES = bert.EMBEDDINGS | {
    "embeddings/projection": "encoder.embedding_hidden_mapping_in",
    "layers/*/attention/query": "encoder.albert_layer_groups.*.albert_layers.0.attention.query",
    "layers/*/attention/key": "encoder.albert_layer_groups.*.albert_layers.0.attention.key",
    "layers/*/attention/value": "encoder.albert_layer_groups.*.albert_layers.0.attention.value",
    "layers/*/attention/output": "encoder.albert_layer_groups.*.albert_layers.0.attention.dense",
    "layers/*/attention/norm": "encoder.albert_layer_groups.*.albert_layers.0.attention.LayerNorm",
    "layers/*/intermediate": "encoder.albert_layer_groups.*.albert_layers.0.ffn",
    "layers/*/output": "encoder.albert_layer_groups.*.albert_layers.0.ffn_output",
    "layers/*/norm": "encoder.albert_layer_groups.*.albert_layers.0.full_layer_layer_norm",
    "pooler": "pooler",
}


def architecture(config: Settings) -> Architecture:
    embedding_size = config.get("embedding_size", 128)
    return bert.architecture(
        {"hidden_act": "gelu_new", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | config,
        family="albert",
        embedding_size=embedding_size,
        embedding_projected=embedding_size == config["hidden_size"],  # of other widths, `Architecture` always projects
        shared_layers=True,
    )


def config(architecture: Architecture) -> Settings:
    return bert.config(architecture) | {"embedding_size": architecture.embedding_size}
