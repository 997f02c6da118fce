"""Llama, and what has its body: pre-norm, RMSNorm, rotary positions, grouped keys, a gated feed-forward network."""

from collections.abc import Mapping
from typing import Any

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture

PREFIXES = ("model.",)
HEADS_DIVIDE_WIDTH = True


def architecture(config: Mapping[str, Any], *, theta: float = 10_000.0, **variations: Any) -> Architecture:
    """Reads a `config.json`; `variations` are fields in which a related family differs, `theta` its default base."""
    size, value = hugging_face.size, hugging_face.value
    layers, mlp_bias = hugging_face.layer_count(config), value(config, "mlp_bias", bool, False)
    fields: dict[str, Any] = dict(
        family="llama",
        vocab_size=size(config, "vocab_size"),
        hidden_size=size(config, "hidden_size"),
        layers=layers,
        heads=size(config, "num_attention_heads"),
        intermediate_size=size(config, "intermediate_size"),
        max_positions=size(config, "max_position_embeddings"),
        activation=hugging_face.activation(config, default="silu"),
        layer_norm_eps=value(config, "rms_norm_eps", float, 1e-6, least=0),
        pad_id=value(config, "pad_token_id", int | None, None) or 0,
        hidden_dropout=0.0,
        attention_dropout=value(config, "attention_dropout", float, 0.0, least=0),
        position_table=False,
        kinds=(hugging_face.rotary(config, theta),) * layers,
        norm="rms",
        norm_place="pre",
        embedding_norm=False,
        attention_bias=value(config, "attention_bias", bool, False),
        causal=value(config, "is_causal", bool, True),
        gated=True,
        intermediate_bias=mlp_bias,
        output_bias=mlp_bias,
        **hugging_face.head_sizes(config),
    )
    return Architecture(**(fields | variations))


def config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a plain encoder."""
    a = architecture
    return {
        "architectures": ["LlamaModel"],
        "model_type": "llama",
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.key_head_count,
        "head_dim": a.head_width,
        "intermediate_size": a.intermediate_size,
        "max_position_embeddings": a.max_positions,
        "hidden_act": hugging_face.activation_name(a.activation),
        "rms_norm_eps": a.layer_norm_eps,
        "pad_token_id": a.pad_id,
        "attention_dropout": a.attention_dropout,
        "attention_bias": a.attention_bias,
        "mlp_bias": a.output_bias,
        "is_causal": a.causal,
        "rope_theta": a.kind(0).theta,
        "rope_parameters": hugging_face.rope_parameters(a.kind(0)),
        "tie_word_embeddings": True,
        "use_cache": False,
        "dtype": "float32",
    }


def names(architecture: Architecture) -> dict[str, str]:
    """Our paths to the checkpoint's tensor names."""
    attention, attention_outputs, gates, outputs = {}, {}, {}, {}
    norms = {"transformer/norm": "norm"}
    for index in range(architecture.layers):
        ours, theirs = f"transformer/layers/{index}", f"layers.{index}"
        for part, short in (("query", "q"), ("key", "k"), ("value", "v")):
            attention[f"{ours}/attention/{part}"] = f"{theirs}.self_attn.{short}_proj"
        attention_outputs[f"{ours}/attention/output"] = f"{theirs}.self_attn.o_proj"
        gates[f"{ours}/gate"] = f"{theirs}.mlp.gate_proj"
        gates[f"{ours}/intermediate"] = f"{theirs}.mlp.up_proj"
        outputs[f"{ours}/output"] = f"{theirs}.mlp.down_proj"
        norms[f"{ours}/attention/norm"] = f"{theirs}.input_layernorm"
        norms[f"{ours}/norm"] = f"{theirs}.post_attention_layernorm"
        if architecture.query_key_norm:
            norms[f"{ours}/attention/query_norm"] = f"{theirs}.self_attn.q_norm"
            norms[f"{ours}/attention/key_norm"] = f"{theirs}.self_attn.k_norm"
    return (
        {"transformer/embeddings/word/embedding": "embed_tokens.weight"}
        | hugging_face.with_kernel_and_bias(attention, bias=architecture.attention_bias)
        | hugging_face.with_kernel_and_bias(
            attention_outputs, bias=architecture.attention_bias and architecture.attention_output_bias
        )
        | hugging_face.with_kernel_and_bias(gates, bias=architecture.intermediate_bias)
        | hugging_face.with_kernel_and_bias(outputs, bias=architecture.output_bias)
        | hugging_face.with_scale_and_bias(norms, bias=False)
    )
