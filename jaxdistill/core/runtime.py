"""Sets up what JAX runs on (a missing TPU, compiled programs in the cache), and says which versions run."""

import glob
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jax

import jaxdistill
from jaxdistill.core import error_line
from jaxdistill.core.paths import cache_folder

PACKAGES = ("jax", "flax", "numpy", "tokenizers", "safetensors")
DRIVERS = ("jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
LIBTPU_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",  # any will do: `--compile_for` names the slice
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""Environment variables without which libtpu, where it is installed, looks for a TPU, warns, and allows one process at a time."""


def prepare_libtpu() -> None:
    """Sets `LIBTPU_WITHOUT_TPU` where there is no TPU; variables that are set already stay."""
    if not (glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*")):
        os.environ.update(LIBTPU_WITHOUT_TPU | os.environ)


def keep_compiled() -> None:
    """Enables JAX's compilation cache in the cache folder, unless the environment sets another one.

    NOTE: it has no size limit, with which JAX fails on the entries that killed processes leave without an access time.
    """
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder() / "compiled")
    jax.config.update("jax_compilation_cache_dir", folder)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


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
    """The output of `--version`: versions of packages and of the devices' drivers, and the devices, or why JAX finds none."""
    try:
        devices = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    except (RuntimeError, AssertionError) as error:
        devices = f"none ({error_line(error)})"
    installed = versions((*PACKAGES, *DRIVERS))
    return f"{', '.join(f'{name} {version}' for name, version in installed.items())}\ndevices: {devices}"


@cache
def source_digest(*within: str) -> str:
    """SHA-256 of this package's source files, which distinguishes states of the code with the same version.

    Args:
      within: folders and files of the package, such as `evals`, to which to restrict it; empty: all.
    """
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if within and not name.startswith(within):
            continue
        digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
    return digest.hexdigest()
