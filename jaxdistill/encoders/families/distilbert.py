"""DistilBERT: BERT without token types and pooler, under other names."""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.hugging_face import PairHead, Settings

PREFIXES = ("distilbert.",)
NAMES = bert.EMBEDDINGS | {
    "layers/*/attention/query": "transformer.layer.*.attention.q_lin",
    "layers/*/attention/key": "transformer.layer.*.attention.k_lin",
    "layers/*/attention/value": "transformer.layer.*.attention.v_lin",
    "layers/*/attention/output": "transformer.layer.*.attention.out_lin",
    "layers/*/attention/norm": "transformer.layer.*.sa_layer_norm",
    "layers/*/intermediate": "transformer.layer.*.ffn.lin1",
    "layers/*/output": "transformer.layer.*.ffn.lin2",
    "layers/*/norm": "transformer.layer.*.output_layer_norm",
}
PAIR_HEAD = PairHead("classifier", "pre_classifier", "relu", drops_input=False)

SHORT_NAMES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
}
"""General names mapped to DistilBERT's; a file may have either, but must have `hidden_dim`."""


def architecture(config: Settings) -> Architecture:
    """Reads a `config.json`."""
    general = {name: config[short] for name, short in SHORT_NAMES.items() if short in config}
    # Either name may give a size, but transformers reads only `hidden_dim`, even beside `intermediate_size`.
    config = general | config | {"intermediate_size": config["hidden_dim"]}
    hugging_face.refuse_others(config, hugging_face.ENCODER)
    return Architecture(
        family="distilbert",
        **hugging_face.sizes(config),
        activation=hugging_face.activation(config, "activation"),
        hidden_dropout=config.get("dropout", 0.1),
        attention_dropout=config.get("attention_dropout", 0.1),
    )


def config(architecture: Architecture) -> Settings:
    """The `config.json` of a plain encoder."""
    a = architecture
    return {
        "architectures": ["DistilBertModel"],
        "model_type": "distilbert",
        **{SHORT_NAMES.get(name, name): size for name, size in hugging_face.written_sizes(a).items()},
        "activation": hugging_face.activation_name(a.activation),
        "dropout": a.hidden_dropout,
        "attention_dropout": a.attention_dropout,
        "initializer_range": 0.02,
        "sinusoidal_pos_embds": False,
    }
