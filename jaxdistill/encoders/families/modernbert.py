"""ModernBERT: pre-norm without biases, GeGLU, rotary positions, and windows in two layers of three."""

import dataclasses

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture, LayerKind
from jaxdistill.encoders.hugging_face import FULL, SLIDING, Part, Settings

PREFIXES = ("model.",)
NAMES = {
    "embeddings/word": "embeddings.tok_embeddings",
    "embeddings/norm": "embeddings.norm",
    "layers/*/attention/norm": "layers.*.attn_norm",
    "layers/*/attention/query": Part("layers.*.attn.Wqkv", 0, 3),
    "layers/*/attention/key": Part("layers.*.attn.Wqkv", 1, 3),
    "layers/*/attention/value": Part("layers.*.attn.Wqkv", 2, 3),
    "layers/*/attention/output": "layers.*.attn.Wo",
    "layers/*/norm": "layers.*.mlp_norm",
    "layers/*/gate": Part("layers.*.mlp.Wi", 0, 2),
    "layers/*/intermediate": Part("layers.*.mlp.Wi", 1, 2),
    "layers/*/output": "layers.*.mlp.Wo",
    "norm": "final_norm",
}


def periodic_types(layers: int, period: int) -> list[str]:
    """Types of layers: every `period`-th has full attention, from the first on, the others a window."""
    return [SLIDING if layer % period else FULL for layer in range(layers)]


def architecture(config: Settings) -> Architecture:
    hugging_face.refuse_others(config, hugging_face.ENCODER)
    mlp_bias = config.get("mlp_bias", False)
    default_types = periodic_types(config["num_hidden_layers"], config.get("global_attn_every_n_layers", 3))
    types = hugging_face.layer_types(config, default_types)
    full = hugging_face.rotary(config, 160_000.0, layer_type=FULL, theta_key="global_rope_theta")
    unlimited = hugging_face.rotary(config, 10_000.0, layer_type=SLIDING, theta_key="local_rope_theta")
    # `sliding_window` counts the tokens of one side, the older `local_attention` those of both.
    window = config.get("sliding_window", config.get("local_attention", 128) // 2)
    local = dataclasses.replace(unlimited, window=window)
    return Architecture(
        family="modernbert",
        **hugging_face.sizes(config),
        activation=hugging_face.activation(config, "hidden_activation"),
        layer_norm_eps=config.get("norm_eps", 1e-5),
        hidden_dropout=config.get("embedding_dropout", 0.0),  # of all layers too, whatever `mlp_dropout` is
        attention_dropout=config.get("attention_dropout", 0.0),
        position_table=False,
        kinds=tuple(local if layer_type == SLIDING else full for layer_type in types),
        norm="layer" if config.get("norm_bias", False) else "layer_no_bias",
        norm_place="pre",
        first_norm=False,
        attention_bias=config.get("attention_bias", False),
        gated=True,
        intermediate_bias=mlp_bias,
        output_bias=mlp_bias,
    )


def config(architecture: Architecture) -> Settings:
    # Defaults, because a cut encoder may lack layers of a type.
    local = next((kind for kind in architecture.kinds if kind.window), LayerKind(window=64, theta=10_000.0))
    full = next((kind for kind in architecture.kinds if not kind.window), LayerKind(theta=160_000.0))
    types = hugging_face.written_layer_types(architecture)
    periods = [n for n in range(1, len(types) + 1) if types == periodic_types(len(types), n)]
    return {
        **hugging_face.common_settings(architecture, activation_key="hidden_activation"),
        "norm_eps": architecture.layer_norm_eps,
        "norm_bias": architecture.norm == "layer",
        "embedding_dropout": architecture.hidden_dropout,
        "mlp_dropout": architecture.hidden_dropout,
        "attention_dropout": architecture.attention_dropout,
        "attention_bias": architecture.attention_bias,
        "mlp_bias": architecture.output_bias,
        "local_attention": 2 * local.window,
        "layer_types": types,
        # transformers before 5 reads this instead of `layer_types`.
        **({"global_attn_every_n_layers": periods[0]} if periods else {}),
        "global_rope_theta": full.theta,  # for older transformers, likewise the next; newer ones read `rope_parameters`
        "local_rope_theta": local.theta,
        "rope_parameters": {FULL: hugging_face.rope_parameters(full), SLIDING: hugging_face.rope_parameters(local)},
    }
