"""Imports packages that only some forms need."""

import importlib
from typing import Any

from jaxdistill.core import InputError


def imported(name: str, extra: str) -> Any:
    """The module `name`.

    Raises:
      InputError: its package is not installed; the line says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the package {(error.name or name).partition('.')[0]} is not installed; run: pip install 'jaxdistill[{extra}]'"
        ) from None
