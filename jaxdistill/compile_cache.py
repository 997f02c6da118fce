"""Keeps compiled programs in the cache folder."""

import contextlib
import logging
import os
import pathlib
import sys
import time

from jaxdistill.files import UNFINISHED_SUFFIX, try_writing
from jaxdistill.paths import cache_folder, other_cache

COMPILED_BYTES = 2 << 30
"""Maximum size of the cache of compiled programs; the least recently used are evicted."""
HALF_WRITTEN_SECONDS = 60
"""Age after which a cached program without an access time counts as a leftover of a killed process."""
COMPILED_SECONDS = 0.2
"""Minimum compile time of programs that are cached."""

log = logging.getLogger(__name__)


def keep_compiled() -> None:
    """Enables JAX's compilation cache in the cache folder, unless the environment sets another folder.

    Warns if the cache folder cannot be written: JAX would warn of each program, without a remedy.

    NOTE: a folder set by the environment keeps its own size limit: JAX fails on entries without an access time.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = cache_folder() / "compiled"
        try:
            try_writing(folder / f".{os.getpid()}{UNFINISHED_SUFFIX}")
        except OSError as error:
            log.warning("compiled programs are not kept in %s: %s%s", folder, error.strerror, other_cache(folder))
            return
        _drop_half_written(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(COMPILED_BYTES))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    seconds = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(COMPILED_SECONDS))
    if "jax" in sys.modules:  # JAX reads the environment on import only
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        config.update("jax_compilation_cache_max_size", int(os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")))
        config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))


def _drop_half_written(compiled: pathlib.Path) -> None:
    """Removes entries without an access time: killed processes leave them, and JAX fails on them."""
    for path in compiled.glob("*-cache"):
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > HALF_WRITTEN_SECONDS
            if is_old and not path.with_name(path.name.removesuffix("-cache") + "-atime").exists():
                path.unlink()
