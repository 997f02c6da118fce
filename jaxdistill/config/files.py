"""Finds and loads config files, shipped or the user's own."""

import inspect
import pathlib
import re
import textwrap
from typing import Any

from ml_collections import ConfigDict

from jaxdistill.config.write import option_names
from jaxdistill.core import InputError, did_you_mean
from jaxdistill.files import parts
from jaxdistill.paths import configs_folder


def load_config(spec: str) -> ConfigDict:
    """What `get_config` of `FILE`, `FILE:PRESET` or `FILE:PRESET:ARGUMENT` returns.

    Raises:
      InputError: the file does not exist, raises an error, or has no such preset.
    """
    name, _, preset = spec.partition(":")
    path = find_config(name)
    try:
        config = parts.load_module(str(path)).get_config(*[preset] * bool(preset))
    except InputError:
        raise
    except Exception as error:  # whatever a user's file raises
        raise InputError(f"config file {path} cannot be read ({type(error).__name__}: {error}).") from error
    if not isinstance(config, ConfigDict):
        raise InputError(
            f"config file {path}: get_config returned {type(config).__name__}; return jaxdistill.config.defaults(...) with "
            "your changes, or jaxdistill.config.chain([...]) for several stages."
        )
    return config


def find_config(name: str) -> pathlib.Path:
    """The file of that name, or else the shipped config of that name."""
    path = pathlib.Path(name).expanduser()
    if path.is_file():
        return path
    shipped = {file.name: file for file in shipped_configs()}
    if path.parent.name in ("", "configs") and path.name in shipped:
        return shipped[path.name]
    close = did_you_mean(path.name, list(shipped))
    raise InputError(f"config file {path} does not exist; shipped: configs/{', '.join(shipped)}.{close}")


def shipped_configs() -> list[pathlib.Path]:
    """The config files installed with the package, or beside it in a clone."""
    return sorted(path for path in configs_folder().glob("*.py") if not path.name.startswith("_"))


def default_workdir(spec: str) -> str:
    """`runs/CONFIG-PRESET` in the current folder, such as `runs/congen-paper-bert-tiny`."""
    name, _, preset = spec.partition(":")
    if not preset:
        arguments = inspect.signature(parts.load_module(str(find_config(name))).get_config).parameters
        preset = str(arguments["preset"].default) if "preset" in arguments else ""
    named = "-".join(filter(None, [pathlib.Path(name).stem, preset]))
    return str(pathlib.Path("runs") / re.sub(r"[^\w.+-]", "-", named))


def one_config_help(spec: str) -> str:
    """The description of a config, the arguments of its presets, and the kinds and options of the preset that is named."""
    module = parts.load_module(str(find_config(spec.partition(":")[0])))
    config = load_config(spec)
    lines = [inspect.cleandoc(module.__doc__ or ""), ""]
    lines += [f"{preset}:ARGUMENT  {', '.join(taken)}" for preset, taken in getattr(module, "ARGUMENTS", {}).items()]
    lines += ["", "Options, which the documentation describes:"]
    for name in option_names(config):
        value: Any = config
        for part in name.split("."):
            value = value[part]
        lines.append(f"  {'' if name.endswith('.kind') else '--config.'}{name}={value}")
    return "\n".join(lines)


def configs_help() -> str:
    """The shipped configs and their presets."""
    lines = ["Configs and their presets:"]
    for path in shipped_configs():
        module = parts.load_module(str(path))
        title = (inspect.getdoc(module) or "").partition("\n")[0]
        lines += [f"\n  configs/{path.name}: {title}"]
        lines += textwrap.wrap(", ".join(module.PRESETS), 90, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
