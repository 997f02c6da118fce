"""Prepares for devices that are absent, and explains what JAX says of devices that it cannot use."""

import glob
import os
import re
import traceback

from jaxdistill import versions
from jaxdistill.core import InputError

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


def error_of_devices(error: BaseException) -> InputError | None:
    """What JAX raises if it lacks a platform that JAX_PLATFORMS names, or another process holds the chip; else None."""
    frames = traceback.extract_tb(error.__traceback__)
    absent = isinstance(error, AssertionError) and bool(frames) and frames[-1].name == "backends"  # no GPU for `cuda`
    if not absent and not str(error).startswith("Unable to initialize backend"):
        return None
    import jax

    jax.config.update("jax_platforms", "")
    reason = re.split(r"\.? \((?:set|you may)", " ".join(str(error).split()))[0]  # without JAX's own advice
    return InputError(
        f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')}: {reason or 'JAX finds no such device':.300}; there is {versions.devices()}."
        " Set JAX_PLATFORMS to a platform that is free, such as cpu."
    )
