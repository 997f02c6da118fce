"""Versions of the software that made a result, for result files and model cards."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jaxdistill

PACKAGES = ("jax", "flax", "numpy", "tokenizers", "safetensors")
DRIVERS = ("jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Version of this project, of Python, and of each package that is installed."""
    installed = {"jaxdistill": jaxdistill.__version__, "python": platform.python_version()}
    for package in packages:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def version_text() -> str:
    """The output of `--version`: the versions of `versions` and of the devices' drivers, and the devices."""
    installed = versions((*PACKAGES, *DRIVERS))
    return f"{', '.join(f'{name} {version}' for name, version in installed.items())}\ndevices: {devices()}"


def devices() -> str:
    """Number and kind of the devices that JAX finds, or why it finds none."""
    import jax  # imported here: it takes a second

    try:
        return f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    except (RuntimeError, AssertionError) as error:
        return f"none ({(str(error) or 'no such device').splitlines()[0]})"


@cache
def source_digest(*within: str) -> str:
    """SHA-256 of this package's source files, which distinguishes states of the code with the same version.

    Args:
      within: folders and files of the package to which to restrict it; empty: all.
    """
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if within and path.relative_to(package).parts[0] not in within:
            continue
        digest.update(f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
    return digest.hexdigest()
