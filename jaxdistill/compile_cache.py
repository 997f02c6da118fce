"""Keeps compiled programs in the cache folder."""

import contextlib
import os
import pathlib
import sys
import time

from jaxdistill.paths import cache_folder

COMPILED_BYTES = 2 << 30
"""Maximum size of the cache of compiled programs; the least recently used are evicted."""
HALF_WRITTEN_SECONDS = 60
"""Age after which a cached program without an access time counts as a leftover of a killed process."""
COMPILED_SECONDS = 0.2
"""Minimum compile time of programs that are cached."""


def keep_compiled() -> None:
    """Enables JAX's compilation cache in the cache folder, unless the environment sets another folder.

    NOTE: a folder set by the environment keeps its own size limit: JAX fails on entries without an access time.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        own = cache_folder() / "compiled"
        _drop_half_written(own)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(COMPILED_BYTES))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(own)
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    size = os.environ.get("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    seconds = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", str(COMPILED_SECONDS))
    if "jax" in sys.modules:  # JAX reads the environment on import only
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", folder)
        config.update("jax_compilation_cache_max_size", int(size))
        config.update("jax_persistent_cache_min_compile_time_secs", float(seconds))


def _drop_half_written(compiled: pathlib.Path) -> None:
    """Removes entries without an access time: killed processes leave them, and JAX fails on them."""
    for path in compiled.glob("*-cache"):
        with contextlib.suppress(OSError):
            is_old = time.time() - path.stat().st_mtime > HALF_WRITTEN_SECONDS
            if is_old and not path.with_name(path.name.removesuffix("-cache") + "-atime").exists():
                path.unlink()
