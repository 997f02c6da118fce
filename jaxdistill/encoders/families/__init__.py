"""Families of checkpoints: one file each, named by the `model_type` of `config.json`, with `-` written as `_`.

A family's file has two functions: `architecture(config)` reads a `config.json`, and `config(architecture)` writes one.
A table `NAMES` maps our layers to the checkpoint's, see `tensor_names`, and a tuple `PREFIXES` lists what task models
put before those names. `PAIR_HEAD` and `WORD_HEAD` name the tensors of its cross-encoders and masked language
models, where these can be read. `HEADS_DIVIDE_WIDTH` marks families for which transformers requires the number of heads
to divide the width, although heads have a size of their own.
"""

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.files import parts


def family(model_type: str) -> ModuleType:
    """The module that reads and writes checkpoints of `model_type`."""
    if model_type in parts.families:
        return parts.families[model_type]
    if str(model_type).replace("_", "-") not in known():
        raise InputError(
            f"model_type {model_type!r:.80} is not a family that can be read; known are {', '.join(known())}."
        )
    return importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")


def known() -> list[str]:
    """All families."""
    return sorted({module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)} | parts.families.keys())


def head_in(model_type: str, name: str) -> Any:
    """The family's `PAIR_HEAD` or `WORD_HEAD`."""
    head = getattr(family(model_type), name, None)
    if head is None:
        kind = {"PAIR_HEAD": "cross-encoders", "WORD_HEAD": "masked language models"}[name]
        having = [other for other in known() if hasattr(family(other), name)]
        raise InputError(f"{kind} of {model_type} cannot be read; those of {', '.join(having)} can.")
    return head
