"""Finds the kinds of student, teacher and objective: one file per kind in the package, or a class from outside."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, cast

from jaxdistill.core import InputError, did_you_mean, plugins


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kinds:
    """The kinds that a section of the config can have: frozen options classes, found by the name of their file. The section's
    option `kind` names one."""

    section: str
    """Name of the section, such as `student`."""
    package: str
    """The package that has a file for each kind."""
    default: str = ""
    """The kind if a section names none; empty: it must name one."""
    member: str
    """The class of a file that has this member is the options class."""
    example: str
    """An object of a kind, for errors."""

    def available(self) -> list[str]:
        """Names of the kinds: the modules of the package."""
        folder = importlib.import_module(self.package).__path__
        return sorted(module.name for module in pkgutil.iter_modules(folder))

    def options_class(self, name: str) -> type:
        """The frozen dataclass of the kind `name`, which may be `MODULE:CLASS` or `FILE.py:CLASS`."""
        if plugins.is_outside(name):
            outside = plugins.load_attribute(name)
            if not isinstance(outside, type) or not self.is_kind(outside):
                raise InputError(f"{self.section}.kind={name!r} is not a frozen dataclass of a {self.section}.")
            return outside
        available = self.available()
        if name not in available:
            close = did_you_mean(name, available)
            raise InputError(f"{self.section}.kind={name!r} is unknown; available: {', '.join(available)}.{close}")
        module = importlib.import_module(f"{self.package}.{name}")
        classes = [value for value in vars(module).values() if isinstance(value, type) and hasattr(value, self.member)]
        return next(kind for kind in classes if kind.__module__ == module.__name__)

    def is_kind(self, value: object) -> bool:
        """Whether a class, or an object, is a kind of this section."""
        return dataclasses.is_dataclass(value) and hasattr(value, self.member)

    def class_named(self, name: str) -> type:
        """The options class of this name, such as `CrossEncoder` from the file `cross_encoder`; raises `AttributeError`."""
        for module in self.available():
            if module.replace("_", "") == name.lower():
                return self.options_class(module)
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def name_of(self, value: Any) -> str:
        """The name under which `options_class` finds the class of an object."""
        kind = type(value)
        package, _, module = kind.__module__.rpartition(".")
        return module if package == self.package else f"{plugins.spec_of(kind.__module__)}:{kind.__qualname__}"

    def default_options(self, name: str) -> dict[str, Any]:
        """Default options of the kind `name`, as plain data that begins with the kind."""
        fields = dataclasses.fields(cast(Any, self.options_class(name)))
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        return {**defaults, "kind": name}


KINDS: Mapping[str, Kinds] = {
    "student": Kinds(
        section="student",
        package="jaxdistill.models.students",
        default="cut",
        member="make",
        example='jaxdistill.students.Cut("teacher", layers="even:3")',
    ),
    "teacher": Kinds(
        section="teacher",
        package="jaxdistill.models.teachers",
        default="live",
        member="load",
        example='jaxdistill.teachers.Stored("MODEL")',
    ),
    "objective": Kinds(
        section="objective",
        package="jaxdistill.objectives",
        member="scored",
        example="jaxdistill.objectives.ConGen(alpha=1.0)",
    ),
}
"""The sections that have a `kind`."""
