"""Which software made a result? Versions for result files and model cards."""

import importlib.metadata
import platform
from collections.abc import Sequence

import jaxdistill

PACKAGES = ("jax", "flax", "numpy", "tokenizers", "safetensors")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Version of this project, of Python, and of each package that is installed."""
    found = {"jaxdistill": jaxdistill.__version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
