"""Gemma 3's text model, causal or not, such as EmbeddingGemma. Some layers have a window, and their own rotary positions."""

import dataclasses

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.hugging_face import FULL, SLIDING, Settings

NAMES = llama.NAMES | {
    "layers/*/attention/norm_after": "layers.*.post_attention_layernorm",
    "layers/*/norm": "layers.*.pre_feedforward_layernorm",
    "layers/*/norm_after": "layers.*.post_feedforward_layernorm",
}


def architecture(config: Settings) -> Architecture:
    hugging_face.refuse_others(config, {"attn_logit_softcapping": ()})  # Gemma 2's
    # NOTE: two keys switch causality off, as in transformers. `use_bidirectional_attention` also halves `sliding_window`, and
    # `is_causal` decides whether this counts the token itself.
    is_bidirectional = bool(config.get("use_bidirectional_attention"))
    causal = config.get("is_causal", True)
    sliding = config.get("sliding_window") or 4096
    window = (sliding // 2 + 1 if is_bidirectional else sliding) - int(causal)
    period = config.get("sliding_window_pattern", 6)
    layers = config["num_hidden_layers"]
    types = hugging_face.layer_types(config, [SLIDING if (layer + 1) % period else FULL for layer in range(layers)])
    # The older `rope_scaling` does not apply to layers with a window.
    unscaled = config | {"rope_scaling": None}
    rotary = hugging_face.rotary(unscaled, 10_000.0, layer_type=SLIDING, theta_key="rope_local_base_freq")
    local = dataclasses.replace(rotary, window=window)
    full = hugging_face.rotary(config, 1_000_000.0, layer_type=FULL)
    # `kinds` has the rotary positions, so that `llama` gets none to read. Gemma has no `mlp_bias`.
    llama_config = config | {"rope_parameters": None, "rope_scaling": None, "mlp_bias": False}
    return llama.architecture(
        {"head_dim": 256, "num_key_value_heads": 4} | llama_config,
        family="gemma3_text",
        activation=hugging_face.activation(config, "hidden_activation", default="gelu_pytorch_tanh"),
        kinds=tuple(local if layer_type == SLIDING else full for layer_type in types),
        norm="rms_plus_one",
        norm_place="both",
        embedding_scaled=True,
        query_key_norm=True,
        attention_scale=config.get("query_pre_attn_scalar", 256) ** -0.5,
        causal=causal and not is_bidirectional,
    )


def config(architecture: Architecture) -> Settings:
    """The inverse of `architecture`, which halves `sliding_window` if `use_bidirectional_attention` is set."""
    # Defaults, because a cut encoder may lack layers of a type.
    local = next((kind for kind in architecture.kinds if kind.window), LayerKind(window=256, theta=10_000.0))
    full = next((kind for kind in architecture.kinds if not kind.window), LayerKind(theta=1_000_000.0))
    # `is_causal` is left out because `sliding_window` below is computed for its default, true.
    shared = {key: value for key, value in llama.config(architecture).items() if key not in ("is_causal", "mlp_bias")}
    activation = shared.pop("hidden_act")
    return shared | {
        "hidden_activation": activation,
        "query_pre_attn_scalar": round((architecture.attention_scale or architecture.head_width**-0.5) ** -2),
        "use_bidirectional_attention": not architecture.causal,
        "sliding_window": local.window + 1 if architecture.causal else 2 * local.window,
        "layer_types": hugging_face.written_layer_types(architecture),
        "rope_theta": full.theta,  # for older transformers, likewise the next; newer ones read `rope_parameters`
        "rope_local_base_freq": local.theta,
        "rope_parameters": {FULL: hugging_face.rope_parameters(full), SLIDING: hugging_face.rope_parameters(local)},
    }
