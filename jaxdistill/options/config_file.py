"""Reads config files, shipped or the user's own, and completes them with the defaults of all options."""

import inspect
import pathlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jaxdistill.cli import did_you_mean
from jaxdistill.config import SECTIONS, default_options
from jaxdistill.core import InputError
from jaxdistill.files import parts
from jaxdistill.paths import configs_folder


def read_config_file(spec: str) -> list[dict[str, Any]]:
    """All options of every stage of `FILE`, `FILE:PRESET` or `FILE:PRESET:ARGUMENT` as plain nested data.

    The file's `get_config` returns the options of a training, or a list with the options of each stage.

    Raises:
      InputError: the file does not exist, raises an error, or has no such preset.
    """
    name, _, preset = spec.partition(":")
    path = find_config(name)
    try:
        get_config = load_config_module(path).get_config
        given = get_config(preset) if preset else get_config()
        raw = [stage.to_dict() for stage in (given if isinstance(given, list | tuple) else [given])]
    except ValueError as error:  # an unknown preset
        raise InputError(str(error)) from error
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"config file {path} cannot be read ({type(error).__name__}: {error}).") from error
    return list(map(completed, raw))


def default_workdir(spec: str) -> str:
    """`runs/CONFIG-PRESET` in the current folder, such as `runs/congen-paper-bert-tiny`."""
    name, _, preset = spec.partition(":")
    if not preset:
        presets = inspect.signature(load_config_module(find_config(name)).get_config).parameters
        preset = str(presets["preset"].default) if "preset" in presets else ""
    return str(pathlib.Path("runs") / "-".join(filter(None, [pathlib.Path(name).stem, *preset.split(":")])))


def completed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a stage with all defaults, including the objective's."""
    from jaxdistill import objectives  # imports JAX

    given = {section: dict(raw.get(section) or {}) for section in SECTIONS}
    whole = {section: default_options(section, options) | options for section, options in given.items()}
    if "kind" in whole["objective"]:
        whole["objective"] = objectives.default_options(whole["objective"]["kind"]) | whole["objective"]
    return whole | {name: value for name, value in raw.items() if name not in whole}


def find_config(name: str) -> pathlib.Path:
    """The file of that name, or else the shipped config of that name."""
    path = pathlib.Path(name)
    if path.is_file():
        return path
    shipped = {file.name: file for file in shipped_configs()}
    if path.parent.name in ("", "configs") and path.name in shipped:
        return shipped[path.name]
    known = [f"configs/{file}" for file in shipped]
    raise InputError(f"config file {path} does not exist; shipped: {', '.join(known)}.{did_you_mean(name, known)}")


def shipped_configs() -> list[pathlib.Path]:
    """The config files installed with the package, or beside it in a clone."""
    return sorted(path for path in configs_folder().glob("*.py") if not path.name.startswith("_"))


def load_config_module(path: pathlib.Path) -> ModuleType:
    """Loads a config file as a module; it can import files of its folder and shipped ones by their plain names."""
    for folder in (path.resolve().parent, *{file.parent.resolve() for file in shipped_configs()}):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    module = ModuleType(path.stem)
    parts.run_source(path.read_bytes(), path, module)
    return module


def first_line(documented: object) -> str:
    """The first line of the docstring of a module or a class."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]
