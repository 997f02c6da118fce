"""What do the families' `config.json` and tensor names have in common?"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.encoders.settings import setting

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's names of activations to ours."""


@dataclasses.dataclass(frozen=True)
class PairHead:
    """Names of the layers that make a family's encoder a classifier, which a cross-encoder is."""

    output: str
    hidden: str = ""
    """Empty: BERT, whose pooler is the hidden layer."""
    activation: str = "tanh"
    """Of the hidden layer."""
    drops_input: bool = True


@dataclasses.dataclass(frozen=True)
class WordHead:
    """Names of the tensors that make a family's encoder a masked language model."""

    dense: str
    norm: str
    bias: str
    output: str
    """Output layer where it is stored; its weight is the word embeddings' and its bias is `bias` where it is not."""
    activation: str = ""
    """Empty: as in the body."""


value = partial(setting, file="config.json")
"""A value of a `config.json`, see `setting`."""
size = partial(value, kind=int, least=1)
"""A number of rows, layers or the like, which a `config.json` must have unless there is a default."""


def activation(config: Mapping[str, Any], key: str = "hidden_act") -> str:
    """Our name of the activation function."""
    name = value(config, key, str, "gelu")
    if name not in ACTIVATIONS:
        raise InputError(f"config.json has {key}={name!r}; activations that can be read: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def activation_name(name: str) -> str:
    """Hugging Face's name of our activation function."""
    return "gelu_new" if name == "gelu_tanh" else name


def refuse_variants(config: Mapping[str, Any]) -> None:
    """Refuses options that change the computation and that no sentence encoder of these families uses."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise InputError(f"config.json has position_embedding_type={kind!r}; only 'absolute' can be read.")
    for key in ("is_decoder", "add_cross_attention"):
        if config.get(key):
            raise InputError(f"config.json has {key}=true: that is a decoder; only encoders can be read.")


def with_kernel_and_bias(names: Mapping[str, str]) -> dict[str, str]:
    """Names of dense layers to names of their two parameters."""
    return {
        f"{ours}/{part}": f"{theirs}.{suffix}"
        for ours, theirs in names.items()
        for part, suffix in (("kernel", "weight"), ("bias", "bias"))
    }


def with_scale_and_bias(names: Mapping[str, str]) -> dict[str, str]:
    """Names of LayerNorms to names of their two parameters."""
    return {
        f"{ours}/{part}": f"{theirs}.{suffix}"
        for ours, theirs in names.items()
        for part, suffix in (("scale", "weight"), ("bias", "bias"))
    }
