"""Qwen3: Llama with norms of queries and keys. Qwen2 (GTE-Qwen2, Stella): Llama with biases of queries, keys and values.
Mistral (E5-Mistral): Llama with a window. Some checkpoints of Qwen have windows in the upper layers.
"""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.hugging_face import FULL, SLIDING, Settings


def architecture(config: Settings) -> Architecture:
    """Reads a `config.json`; transformers loads a Mistral with `layer_types` as Ministral."""
    if config.get("model_type") == "mistral":
        plain = llama.architecture({**config, "attention_bias": False, "mlp_bias": False}, family="mistral")
        return hugging_face.with_windows(plain, config, [SLIDING] * plain.layers)
    if config.get("model_type") == "qwen2":
        biases = dict(attention_bias=True, attention_output_bias=False, intermediate_bias=False, output_bias=False)
        plain = llama.architecture(config, family="qwen2", **biases)
    else:
        settings = {"head_dim": 128, **config, "mlp_bias": False}
        plain = llama.architecture(settings, family="qwen3", query_key_norm=True)
    if not config.get("use_sliding_window"):
        return plain
    first = config.get("max_window_layers", 28)
    return hugging_face.with_windows(
        plain, config, [SLIDING if layer >= first else FULL for layer in range(plain.layers)]
    )


def config(architecture: Architecture) -> Settings:
    """The `config.json` of a plain encoder."""
    types = hugging_face.types_of(architecture)
    windows: Settings = {"sliding_window": hugging_face.sliding_window(architecture)}
    if architecture.family != "mistral":
        windows = {"use_sliding_window": SLIDING in types} | windows
    if architecture.family != "mistral" or len({*architecture.kinds}) > 1:
        windows["layer_types"] = types
    return llama.config(architecture) | windows
