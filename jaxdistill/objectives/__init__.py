"""Training objectives: one file each, found by name, with one options class that implements `core.Objective`."""

import dataclasses
import importlib
import pkgutil
from typing import Any, cast

from jaxdistill.cli import did_you_mean
from jaxdistill.config import options_from
from jaxdistill.core import READS, InputError, Objective
from jaxdistill.files import parts


def available() -> list[str]:
    """Names of the objectives: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def options_class(name: str) -> type:
    """The frozen dataclass of the objective `name`, which may be `MODULE:CLASS` or `FILE.py:CLASS`."""
    if parts.is_outside(name):
        found = parts.load_attribute(name)
        if not dataclasses.is_dataclass(found) or not hasattr(found, "reserve_rows"):
            raise InputError(f"objective.name={name!r} is no frozen dataclass with the members of core.Objective.")
        return cast(type, found)
    if name not in available():
        raise InputError(
            f"objective.name={name!r} is unknown; available: {', '.join(available())}.{did_you_mean(name, available())}"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "reserve_rows")
    )
    return found


def name_of(kind: type) -> str:
    """The name under which `options_class` finds an options class."""
    package, _, module = kind.__module__.rpartition(".")
    return module if package == __name__ else f"{kind.__module__}:{kind.__qualname__}"


def __getattr__(name: str) -> type:
    """`jaxdistill.objectives.ConGen`: the options class of that name, whose file has it in lower case."""
    for module in available():
        if module.replace("_", "") == name.lower():
            return options_class(module)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def make(name: str, options: dict) -> Objective:
    """Makes the objective `name`; raises `InputError` for unknown names, options and `reads`, and for wrong types."""
    objective = options_from(options_class(name), options, prefix="objective")
    if unknown := set(objective.reads) - set(READS):
        raise InputError(f"objective {name}: reads has {', '.join(sorted(unknown))}; it may have {', '.join(READS)}.")
    return objective


def default_options(name: str) -> dict[str, Any]:
    """Default options of the objective `name`, as plain data."""
    fields = dataclasses.fields(cast(Any, options_class(name)))
    return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
