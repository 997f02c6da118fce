"""Qwen3: Llama with norms of queries and keys. Qwen2 (GTE-Qwen2, Stella): Llama with biases of queries, keys and values.
Mistral (E5-Mistral): Llama with a window. Some checkpoints of Qwen have windows in the upper layers.
"""

import dataclasses

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES
from jaxdistill.encoders.hugging_face import FULL, SLIDING, Settings


def architecture(config: Settings) -> Architecture:
    """Reads a `config.json`; transformers loads a Mistral with `layer_types` as Ministral."""
    name, first = config.get("model_type"), config.get("max_window_layers", 28)
    if name == "mistral":
        first = 0
        plain = llama.architecture({**config, "attention_bias": False, "mlp_bias": False}, family="mistral")
    elif name == "qwen2":
        biases = dict(attention_bias=True, attention_output_bias=False, intermediate_bias=False, output_bias=False)
        plain = llama.architecture(config, family="qwen2", **biases)
    else:
        settings = {"head_dim": 128, **config, "mlp_bias": False}
        plain = llama.architecture(settings, family="qwen3", query_key_norm=True)
    if name != "mistral" and not config.get("use_sliding_window"):
        return plain
    width = config.get("sliding_window", 4096)
    window = 0 if width is None else width - plain.causal  # a causal window counts the token itself
    types = hugging_face.layer_types(config, [SLIDING if layer >= first else FULL for layer in range(plain.layers)])
    kinds = [dataclasses.replace(plain.kind(0), window=window if kind == SLIDING else 0) for kind in types]
    return dataclasses.replace(plain, kinds=tuple(kinds))


def config(architecture: Architecture) -> Settings:
    """The `config.json` of a plain encoder."""
    types, widest = hugging_face.types_of(architecture), max(kind.window for kind in architecture.kinds)
    windows: Settings = {"sliding_window": widest + architecture.causal if widest else None}
    if architecture.family != "mistral":
        windows = {"use_sliding_window": SLIDING in types} | windows
    if architecture.family != "mistral" or len({*architecture.kinds}) > 1:
        windows["layer_types"] = types
    return llama.config(architecture) | windows
