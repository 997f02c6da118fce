"""Families of checkpoints: one file each, named by the `model_type` of `config.json`, with `-` written as `_`.

A family's file has two functions: `architecture(config)` reads a `config.json`, and `config(architecture)` writes one.
The table `NAMES` maps our layers to the checkpoint's (see `tensor_names`); the tuple `PREFIXES` lists prefixes that task
models add to these names. If the family's cross-encoders can be read, `PAIR_HEAD` names the tensors of their head.
"""

import importlib
import pkgutil
from types import ModuleType

from jaxdistill.core import InputError, plugins
from jaxdistill.encoders.hugging_face import PairHead


def family(model_type: str) -> ModuleType:
    """The module that reads and writes checkpoints of `model_type`."""
    if model_type in plugins.families:
        return plugins.families[model_type]
    if str(model_type).replace("_", "-") not in model_types():
        raise InputError(
            f"model_type {model_type!r:.80} is not a family that can be read; known are {', '.join(model_types())}."
        )
    return importlib.import_module(f"{__name__}.{model_type.replace('-', '_')}")


def model_types() -> list[str]:
    """The names of all families, as `model_type` spells them."""
    return sorted(
        {module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)} | plugins.families.keys()
    )


def pair_head(model_type: str) -> PairHead:
    """The family's `PAIR_HEAD`; raises `InputError` if it has none."""
    head = getattr(family(model_type), "PAIR_HEAD", None)
    if head is None:
        able = [other for other in model_types() if hasattr(family(other), "PAIR_HEAD")]
        raise InputError(f"cross-encoders of {model_type} cannot be read; families that can be: {', '.join(able)}.")
    return head
