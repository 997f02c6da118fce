"""Kinds of student, teacher and objective, and plugins: a user's own modules or files.

A user's kind is named where it is used (`--config=FILE.py:PRESET:objective=my_file.py:MyLoss`). All other plugins are
variables of a module. The option `run.plugins`, or `--plugins` of `evaluate`, `encode` and `mine`, names the module:

    FAMILIES = {"my-bert": my_bert}                       # model_type to a module as in encoders/families
    VIEWS = {"shout": lambda text, uniform: text.upper()}   # (sentence, random number in [0, 1)) -> text to read
    EVALUATIONS = [Evaluation(task="mine", ...)]          # see evals/evaluation.py
"""

import dataclasses
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from jaxdistill.core import InputError, did_you_mean
from jaxdistill.core.files import foreign_errors

PREFIX = "jaxdistill_plugin_"
"""Begins the names of modules that are loaded from a file."""

families: dict[str, Any] = {}
"""The users' encoder families, by model type."""
views: dict[str, Callable[[str, float], str]] = {}
evaluations: dict[str, tuple[Any, ...]] = {}
"""The users' evaluations, by the digest of the source code that defines them."""
_digests: dict[ModuleType, str] = {}
"""SHA-256 of the source of each module when it was loaded: Python does not load an installed module again if it changes."""


def use(specs: str) -> None:
    """Loads modules or files, separated by commas, and registers the plugins that they define."""
    for spec in filter(None, map(str.strip, specs.split(","))):
        module = load_module(spec)
        if not {"FAMILIES", "VIEWS", "EVALUATIONS"} & vars(module).keys():
            raise InputError(f"plugins {spec!r} has none of FAMILIES, VIEWS and EVALUATIONS; define one of them.")
        families.update(getattr(module, "FAMILIES", {}))
        views.update(getattr(module, "VIEWS", {}))
        evaluations[_digests[module]] = tuple(getattr(module, "EVALUATIONS", ()))


def is_outside(name: str) -> bool:
    """Whether the name of a kind is a user's `MODULE:CLASS` or `FILE.py:CLASS`, not that of a shipped kind."""
    return ":" in name


def load_module(spec: str) -> ModuleType:
    """Loads a module by its dotted name, or a file by its path; loads a file again only after it has changed."""
    path = Path(os.path.expanduser(spec))
    with foreign_errors(f"{spec} cannot be imported"):
        if path.suffix == ".py":
            # NOTE: Python's own import may run the bytecode of an earlier version of the same size and second.
            source = path.read_bytes()
            name = PREFIX + hashlib.sha256(f"{path.resolve()} ".encode() + source).hexdigest()[:12]
            module = sys.modules.get(name)
            if module is None:
                module = ModuleType(name)
                module.__file__ = str(path)
                code = compile(source, str(path), "exec")
                sys.modules[name] = module  # dataclasses look their module up
                try:
                    exec(code, vars(module))
                except BaseException:
                    del sys.modules[name]
                    raise
        else:
            module = importlib.import_module(spec)
            source = Path(module.__file__ or os.devnull).read_bytes()  # a folder without __init__.py has no file
        _digests.setdefault(module, hashlib.sha256(source).hexdigest())
        return module


def source_digests(specs: Iterable[str]) -> dict[str, str]:
    """Maps each module or file to the SHA-256 of its source code when it was loaded."""
    return {spec: _digests[load_module(spec)] for spec in specs}


@dataclasses.dataclass(frozen=True)
class Kinds:
    """The kinds that a config section (student, teacher or objective) may have; its option `kind` names one of them."""

    section: str
    """Name of the section, such as `student`."""
    package: str
    """The package whose variable `KINDS` maps each name to a frozen options class."""
    member: str
    """The method or attribute that a user's class must have to be a kind."""
    default: str = ""
    """The kind of a section that does not name one; empty: there is no default."""

    @property
    def classes(self) -> Mapping[str, type]:
        return importlib.import_module(self.package).KINDS

    def options_class(self, name: str) -> type:
        """The frozen dataclass of the kind `name`, which may be `MODULE:CLASS` or `FILE.py:CLASS`."""
        if name in self.classes:
            return self.classes[name]
        available = [*self.classes, "FILE.py:CLASS of a frozen dataclass"]
        if is_outside(name):
            spec, _, class_name = name.rpartition(":")
            module = load_module(spec)
            found = getattr(module, class_name, None)
            if isinstance(found, type) and self.is_kind(found):
                return found
            kinds = [key for key, value in vars(module).items() if isinstance(value, type) and self.is_kind(value)]
            available = [f"{spec}:{key}" for key in kinds] or [f"no frozen dataclass with {self.member!r} in {spec}"]
        unknown = f"{self.section}.kind={name!r} is unknown; available: {', '.join(available)}."
        raise InputError(unknown + did_you_mean(name, available))

    def is_kind(self, value: object) -> bool:
        """Whether `value` is a class that can be a kind of this section, or an object of one."""
        return dataclasses.is_dataclass(value) and hasattr(value, self.member)

    def name_of(self, value: Any) -> str:
        """The name of the kind of an options object; `options_class` maps it back to the object's class."""
        kind = type(value)
        names = {options_class: name for name, options_class in self.classes.items()}
        if kind in names:
            return names[kind]
        is_from_file = kind.__module__.startswith(PREFIX)
        spec = sys.modules[kind.__module__].__file__ if is_from_file else kind.__module__
        return f"{spec}:{kind.__qualname__}"

    def default_options(self, name: str) -> dict[str, Any]:
        """The options of the kind `name` that have a default, with `kind` itself, as a dict."""
        fields = dataclasses.fields(cast(Any, self.options_class(name)))
        defaults = {field.name: field.default for field in fields if field.default is not dataclasses.MISSING}
        return {**defaults, "kind": name}


KINDS: Mapping[str, Kinds] = {
    "student": Kinds("student", "jaxdistill.models.students", "make", "cut"),
    "teacher": Kinds("teacher", "jaxdistill.models.teachers", "load", "live"),
    "objective": Kinds("objective", "jaxdistill.objectives", "scored"),
}
"""The sections that have a `kind`."""
