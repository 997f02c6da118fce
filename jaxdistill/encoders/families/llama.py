"""Llama, and models with its body: pre-norm, RMSNorm, rotary positions, grouped keys, a gated feed-forward network."""

from typing import Any

from jaxdistill.core import InputError
from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture

PREFIXES = ("model.",)
NAMES = {
    "embeddings/word": "embed_tokens",
    "layers/*/attention/norm": "layers.*.input_layernorm",
    "layers/*/attention/query": "layers.*.self_attn.q_proj",
    "layers/*/attention/key": "layers.*.self_attn.k_proj",
    "layers/*/attention/value": "layers.*.self_attn.v_proj",
    "layers/*/attention/query_norm": "layers.*.self_attn.q_norm",
    "layers/*/attention/key_norm": "layers.*.self_attn.k_norm",
    "layers/*/attention/output": "layers.*.self_attn.o_proj",
    "layers/*/norm": "layers.*.post_attention_layernorm",
    "layers/*/gate": "layers.*.mlp.gate_proj",
    "layers/*/intermediate": "layers.*.mlp.up_proj",
    "layers/*/output": "layers.*.mlp.down_proj",
    "norm": "norm",
}


def architecture(config: hugging_face.Settings, **variations: Any) -> Architecture:
    """Reads a `config.json`; `variations` are the fields in which a related family differs."""
    if config.get("model_type") == "eurobert":  # Llama with bidirectional attention
        hugging_face.refuse_others(config, hugging_face.ENCODER)
        config = {"rms_norm_eps": 1e-5} | config
        variations = {"family": "eurobert", "causal": False}
    own_code = config.get("auto_map") or {}
    states_causality = "is_causal" in config or "causal" in variations
    if "AutoModel" in own_code and not states_causality:
        raise InputError(
            f"config.json names its own code ({own_code['AutoModel']!s:.80}), which is not run, and does not say whether a token attends "
            'to later ones; add "is_causal": false if it does (GTE-Qwen2, Stella, LLM2Vec), or true.'
        )
    mlp_bias = config.get("mlp_bias", False)
    fields: dict[str, Any] = dict(
        family="llama",
        **hugging_face.sizes(config),
        activation=hugging_face.activation(config, default="silu"),
        layer_norm_eps=config.get("rms_norm_eps", 1e-6),
        hidden_dropout=0.0,
        attention_dropout=config.get("attention_dropout", 0.0),
        position_table=False,
        kinds=(hugging_face.rotary(config, 10_000.0),) * config["num_hidden_layers"],
        norm="rms",
        norm_place="pre",
        embedding_norm=False,
        attention_bias=config.get("attention_bias", False),
        causal=config.get("is_causal", True),
        gated=True,
        intermediate_bias=mlp_bias,
        output_bias=mlp_bias,
        **hugging_face.head_sizes(config),
    )
    return Architecture(**(fields | variations))


def config(architecture: Architecture) -> hugging_face.Settings:
    return {
        **hugging_face.common_settings(architecture),
        "num_key_value_heads": architecture.key_head_count,
        "head_dim": architecture.head_width,
        "rms_norm_eps": architecture.layer_norm_eps,
        "attention_dropout": architecture.attention_dropout,
        "attention_bias": architecture.attention_bias,
        "mlp_bias": architecture.output_bias,
        "is_causal": architecture.causal,
        "rope_theta": architecture.kind(0).theta,  # for older transformers; newer ones read `rope_parameters`
        "rope_parameters": hugging_face.rope_parameters(architecture.kind(0)),
        "tie_word_embeddings": True,  # the folder has no output layer
        "use_cache": False,
    }
