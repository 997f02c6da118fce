"""Mistral: Llama with a window and without biases; for E5-Mistral and other decoders used as sentence encoders."""

from jaxdistill.encoders import hugging_face
from jaxdistill.encoders.architecture import Architecture
from jaxdistill.encoders.families import llama
from jaxdistill.encoders.families.llama import NAMES as NAMES
from jaxdistill.encoders.families.llama import PREFIXES as PREFIXES


def architecture(config: hugging_face.Settings) -> Architecture:
    plain = llama.architecture({**config, "attention_bias": False, "mlp_bias": False}, family="mistral")
    return hugging_face.with_windows(plain, config, [hugging_face.SLIDING] * plain.layers)


def config(architecture: Architecture) -> hugging_face.Settings:
    config = llama.config(architecture) | hugging_face.written_windows(architecture)
    if len({*architecture.kinds}) == 1:
        del config["layer_types"]  # transformers loads a config that has it as Ministral
    return config
