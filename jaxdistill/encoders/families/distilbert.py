"""DistilBERT: BERT without token types and pooler, under other names."""

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

LONG_NAMES = {
    "dim": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size", "activation": "hidden_act", "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}  # fmt: skip
"""Maps DistilBERT's names of options to BERT's."""


def architecture(config: Settings) -> Architecture:
    bert_config = {LONG_NAMES.get(key, key): value for key, value in config.items()}
    # transformers accepts both names of every size but this one, for which it ignores `intermediate_size`.
    bert_config["intermediate_size"] = config["hidden_dim"]
    return bert.architecture(bert_config, family="distilbert", token_types=0, layer_norm_eps=1e-12)


def config(architecture: Architecture) -> Settings:
    short_names = {long: short for short, long in LONG_NAMES.items()}
    unused = ("type_vocab_size", "layer_norm_eps")  # DistilBERT has no token types, and its epsilon is fixed
    return {short_names.get(key, key): value for key, value in bert.config(architecture).items() if key not in unused}
