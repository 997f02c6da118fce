"""NomicBERT: BERT without biases, with rotary positions and a gated feed-forward network."""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import bert
from jaxdistill.encoders.families.bert import config as config

PREFIXES = ("nomic_bert.", "bert.")
NAMES = bert.EMBEDDINGS | {
    "embeddings/norm": "emb_ln",
    "layers/*/attention/query": hugging_face.Part("encoder.layers.*.attn.Wqkv", 0, 3),
    "layers/*/attention/key": hugging_face.Part("encoder.layers.*.attn.Wqkv", 1, 3),
    "layers/*/attention/value": hugging_face.Part("encoder.layers.*.attn.Wqkv", 2, 3),
    "layers/*/attention/output": "encoder.layers.*.attn.out_proj",
    "layers/*/attention/norm": "encoder.layers.*.norm1",
    "layers/*/intermediate": "encoder.layers.*.mlp.fc11",
    "layers/*/gate": "encoder.layers.*.mlp.fc12",
    "layers/*/output": "encoder.layers.*.mlp.fc2",
    "layers/*/norm": "encoder.layers.*.norm2",
}
OLD_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
    "resid_pdrop": "hidden_dropout_prob", "attn_pdrop": "attention_probs_dropout_prob",
}  # fmt: skip
"""Maps option names of older checkpoints, which include Python code that is never run, to today's."""
READABLE = {
    "activation_function": ("swiglu",), "prenorm": (False,), "causal": (False,), "parallel_block": (False,),
    "rotary_emb_fraction": (1.0,), "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (),
}  # fmt: skip
"""Implemented values of older options that change the computation but not the weights."""


def architecture(config: hugging_face.Settings) -> Architecture:
    """Reads a `config.json` in today's or the older form."""
    hugging_face.refuse_others(config, READABLE)
    if "n_embd" in config:
        config = {OLD_NAMES.get(key, key): value for key, value in config.items()}
        if "n_positions" in config:
            # For longer texts, the checkpoints' own code stretches rotary positions, which is not supported.
            max_positions = config.get("max_trained_positions", config["n_positions"])
            # `swiglu`, the only `activation_function` in `READABLE`, gates with silu.
            config |= {"max_position_embeddings": max_positions, "hidden_act": "silu"}
    return bert.architecture(
        {"hidden_act": "silu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} | config,
        family="nomic_bert",
        position_table=False,
        kinds=(hugging_face.rotary(config, 1_000.0),) * config["num_hidden_layers"],
        attention_bias=False,
        gated=True,
        intermediate_bias=False,
        output_bias=False,
        **hugging_face.head_sizes(config),
    )
