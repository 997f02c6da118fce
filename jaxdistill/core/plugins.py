"""Plugins: a user's own objectives, encoder families, views, readers and evaluations, from outside the package.

A plugin is a module or a file. An objective is named where it is used (`--config=FILE.py:PRESET:objective=my_file.py:MyLoss`). The others
are variables of a module that `run.plugins` names, or `--plugins` of `evaluate`, `encode` and `mine`:

    FAMILIES = {"my-bert": my_bert}                       # model_type to a module as in encoders/families
    VIEWS = {"shout": lambda text, uniform: text.upper()}   # (sentence, random number in [0, 1)) to what is read instead
    READERS = {".lines": read_lines}                      # suffix to (path, {our name: column}) -> rows of texts
    EVALUATIONS = [Evaluation(task="mine", ...)]          # see evals/evaluation.py
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxdistill.core import InputError

PREFIX = "jaxdistill_plugin_"
"""Begins the names of modules that are loaded from a file."""

families: dict[str, Any] = {}
"""Encoder families from outside, by model type."""
views: dict[str, Callable[[str, float], str]] = {}
readers: dict[str, Callable[..., Iterable[tuple[str, ...]]]] = {}
reader_sources: dict[str, str] = {}
"""Digest of each reader's source code, by suffix; part of the cache key of everything made from rows that it reads."""
evaluations: dict[str, tuple[Any, ...]] = {}
"""Evaluations from outside, by the digest of the source code that defines them."""


_digests: dict[ModuleType, str] = {}
"""SHA-256 of the source of each module when it was loaded: Python does not load an installed module again if it changes."""


def use(specs: str) -> None:
    """Loads modules or files, separated by commas, and registers what they define."""
    for spec in (name.strip() for name in specs.split(",") if name.strip()):
        module = load_module(spec)
        registered = [getattr(module, name, None) for name in ("FAMILIES", "VIEWS", "READERS", "EVALUATIONS")]
        if not any(registered):
            raise InputError(
                f"plugins {spec!r} has none of FAMILIES, VIEWS, READERS and EVALUATIONS; define one of them."
            )
        for registry, added in zip((families, views, readers), registered, strict=False):
            registry.update(added or {})
        source = _digests[module]
        reader_sources.update(dict.fromkeys(registered[2] or {}, source))
        if registered[3]:
            evaluations[source] = tuple(registered[3])


def is_outside(name: str) -> bool:
    """Whether a name is `MODULE:ATTRIBUTE` or `FILE.py:ATTRIBUTE`."""
    return ":" in name


def load_attribute(spec: str) -> Any:
    """The attribute that `MODULE:ATTRIBUTE` or `FILE.py:ATTRIBUTE` names."""
    module_name, _, attribute = spec.rpartition(":")
    module = load_module(module_name)
    if not hasattr(module, attribute):
        raise InputError(f"{spec}: {module_name} has no {attribute!r}.")
    return getattr(module, attribute)


def load_module(spec: str) -> ModuleType:
    """Loads a module by its dotted name, or a file by its path; loads a file again only after it has changed."""
    path = Path(os.path.expanduser(spec))
    try:
        if path.suffix != ".py":
            module = importlib.import_module(spec)
            source = Path(module.__file__ or os.devnull).read_bytes()
        else:
            source = path.read_bytes()
            name = f"{PREFIX}{hashlib.sha256(f'{path.resolve()} '.encode() + source).hexdigest()[:12]}"
            module = sys.modules.get(name) or _module_of(source, path, name)
        _digests.setdefault(module, hashlib.sha256(source).hexdigest())
        return module
    except InputError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"{spec} cannot be imported ({type(error).__name__}: {error}).") from error


def _module_of(source: bytes, path: Path, name: str) -> ModuleType:
    """Runs a file as a new module. Python's own import may run the bytecode of an earlier version of the same size and second,
    which would then be taken for the one whose digest is noted."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def spec_of(module: str) -> str:
    """The spec, a dotted name or a path, with which `load_module` loads this module."""
    file = sys.modules[module].__file__
    return str(file) if module.startswith(PREFIX) else module


def source_digests(specs: Iterable[str]) -> dict[str, str]:
    """Maps each spec to the SHA-256 of its module's or file's source code, as it was loaded."""
    return {spec: _digests[load_module(spec)] for spec in specs}
