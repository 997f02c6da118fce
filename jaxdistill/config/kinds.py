"""Finds the kinds of student, teacher and objective: one file per kind in the package, or a class from outside."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, cast

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError
from jaxdistill.files import parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kinds:
    """The kinds that a section of the config can have: frozen options classes, found by the name of their file. The section's
    option `kind` names one."""

    section: str
    """Name of the section, such as `student`."""
    default: str = ""
    """The kind if a section names none; empty: it must name one."""
    package: str
    """Subpackage with a file for each kind."""
    member: str
    """The class of a file that has this member is the options class."""
    base: str
    """Full name of the base class, for errors."""

    def available(self) -> list[str]:
        """Names of the kinds: the modules of the subpackage, without nested ones."""
        folder = importlib.import_module(self.package).__path__
        return sorted(module.name for module in pkgutil.iter_modules(folder) if not module.ispkg)

    def options_class(self, name: str) -> type:
        """The frozen dataclass of the kind `name`, which may be `MODULE:CLASS` or `FILE.py:CLASS`."""
        given = f"{self.section}.kind={name!r}"
        if parts.is_outside(name):
            outside = parts.load_attribute(name)
            if not dataclasses.is_dataclass(outside) or not hasattr(outside, self.member):
                raise InputError(f"{given} is not a frozen dataclass that extends {self.base}.")
            if self.section not in KINDS and any(field.name == "kind" for field in dataclasses.fields(outside)):
                raise InputError(f"{given} has an option named kind, which chooses the {self.section}; rename it.")
            return cast(type, outside)
        if name not in self.available():
            close = did_you_mean(name, self.available())
            raise InputError(f"{given} is unknown; available: {', '.join(self.available())}.{close}")
        module = importlib.import_module(f"{self.package}.{name}")
        (kind,) = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, self.member)
        )
        return kind

    def class_named(self, name: str) -> type:
        """The options class of this name, such as `CrossEncoder` from the file `cross_encoder`; raises `AttributeError`."""
        for module in self.available():
            if module.replace("_", "") == name.lower():
                return self.options_class(module)
        raise AttributeError(f"module {self.package!r} has no attribute {name!r}")

    def name_of(self, kind: type) -> str:
        """The name under which `options_class` finds an options class."""
        package, _, module = kind.__module__.rpartition(".")
        return module if package == self.package else f"{kind.__module__}:{kind.__qualname__}"

    def default_options(self, name: str) -> dict[str, Any]:
        """Default options of the kind `name`, as plain data."""
        fields = dataclasses.fields(cast(Any, self.options_class(name)))
        return {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}

    def having(self, option: str) -> list[str]:
        """The package's kinds that have an option, the default kind first."""
        names = [name for name in self.available() if option in self.default_options(name)]
        return sorted(names, key=lambda name: name != self.default)


STUDENTS = Kinds(
    section="student",
    default="cut",
    package="jaxdistill.students",
    member="make",
    base="students.parts.student.Student",
)
TEACHERS = Kinds(
    section="teacher",
    default="live",
    package="jaxdistill.teachers",
    member="load",
    base="teachers.parts.teacher.Teacher",
)
KINDS: Mapping[str, Kinds] = {"student": STUDENTS, "teacher": TEACHERS}
"""The sections that have a `kind`."""


def refuse_foreign_options(section: str, kind: str, options: Sequence[str]) -> None:
    """Raises `InputError` for an option that the kind does not have, with the kinds that have it."""
    kinds = KINDS[section]
    own = [field.name for field in dataclasses.fields(cast(Any, kinds.options_class(kind)))]
    for option in options:
        if option not in own and (having := kinds.having(option)):
            raise InputError(
                f"{section}.{option} is an option of the {'kinds' if len(having) > 1 else 'kind'} {', '.join(having)}, not of {kind}; "
                f"set --config.{section}.kind={having[0]}, or leave it out."
            )


def turned(section: str, options: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Converts a section's options to another kind: options that both kinds have keep their values, others get defaults."""
    defaults = KINDS[section].default_options(kind)
    kept = {name: value for name, value in options.items() if name in defaults}
    return defaults | kept | {"kind": kind}
