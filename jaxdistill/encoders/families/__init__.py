"""Which checkpoints can be read? One file per family, chosen by the `model_type` of `config.json`, `-` written as `_`.

A family's file has three functions: `architecture(config)` reads a `config.json`, `config(architecture)` writes one,
and `names(architecture)` maps our parameter paths to the checkpoint's tensor names. A tuple `PREFIXES` lists what task
models put before those names. A new family is a new file.
"""

import importlib
import pkgutil
from types import ModuleType

from jaxdistill.core import InputError


def family(model_type: str) -> ModuleType:
    """The module that reads and writes checkpoints of `model_type`."""
    known = sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))
    if model_type not in known:
        raise InputError(f"model_type {model_type!r} is not a family that can be read; known are {', '.join(known)}.")
    return importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")
