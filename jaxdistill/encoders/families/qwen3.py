"""Qwen3: Llama with norms of queries and keys. Qwen2 (GTE-Qwen2, Stella): Llama with biases of queries, keys and values."""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.hugging_face import FULL, SLIDING, Settings


def architecture(config: Settings) -> Architecture:
    if config.get("model_type") == "qwen2":
        biases = dict(attention_bias=True, attention_output_bias=False, intermediate_bias=False, output_bias=False)
        plain = llama.architecture(config, family="qwen2", **biases)
    else:
        settings = {"head_dim": 128, **config, "mlp_bias": False}
        plain = llama.architecture(settings, family="qwen3", query_key_norm=True)
    if not config.get("use_sliding_window"):
        return plain
    full_layers = config.get("max_window_layers", 28)  # the layers above these have a window
    default_types = [FULL if layer < full_layers else SLIDING for layer in range(plain.layers)]
    return hugging_face.with_windows(plain, config, default_types)


def config(architecture: Architecture) -> Settings:
    windows = hugging_face.written_windows(architecture)
    return llama.config(architecture) | windows | {"use_sliding_window": SLIDING in windows["layer_types"]}
