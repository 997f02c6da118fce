"""The process that runs: exit statuses and signals, freed memory, compiled programs, versions, progress bars."""

import contextlib
import ctypes
import errno
import functools
import glob
import hashlib
import importlib.metadata
import logging
import os
import pathlib
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from tqdm.auto import tqdm

import jaxdistill
from jaxdistill.core import InputError, TemporaryError, error_line
from jaxdistill.core.paths import cache_folder

INTERRUPTED = 130
"""Exit status after Ctrl-C."""
AGAIN = TemporaryError.status
"""Exit status after SIGTERM, SIGHUP, or the loss of another process or of the network; the same command continues."""
DISK_FAULTS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EEXIST,
    errno.ENOTDIR,
)  # fmt: skip
"""OS errors caused by the user's disk, reported as one line wherever they occur; other OS errors are bugs."""


def log_to_stdout(logger: str = "") -> None:
    """Prints this package's messages from INFO on. With the default `logger`, the root, also prints other libraries' warnings."""
    if not logging.getLogger(logger).hasHandlers():
        logging.getLogger(logger).addHandler(logging.StreamHandler(sys.stdout))
    logging.getLogger("jaxdistill").setLevel(logging.INFO)


class Interrupted(KeyboardInterrupt):
    """Ends a program with `status` after a signal, once it has saved. The program's last line is `interrupted` and then `note`."""

    def __init__(self, status: int, note: str = ""):
        super().__init__(note)
        self.status = status


class Interrupts:
    """Makes Ctrl-C, SIGTERM and SIGHUP set `status`, so that a loop can save and exit. A second signal exits at once.
    NOTE: a KeyboardInterrupt inside JAX can be lost in its garbage collector callback, or crash the process at exit."""

    def __init__(self, notice: str = ""):
        self.status = 0
        """Exit status after the signal; 0 before one."""
        self._notice = notice
        """Says on standard error, after the first signal, what the program still finishes."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            numbers.append(signal.SIGHUP)
        if threading.current_thread() is threading.main_thread():  # no other thread can set signal handlers
            self._before = {number: signal.signal(number, self._handle_signal) for number in numbers}
        return self

    def _handle_signal(self, number: int, frame: Any) -> None:
        is_second = self.status != 0
        self.status = INTERRUPTED if number == signal.SIGINT else AGAIN
        notice = "interrupted" if is_second else self._notice
        if notice:
            os.write(2, f"\n{notice}\n".encode())  # below a progress bar
        if is_second:
            os._exit(self.status)  # without cleanup, which is safe because all writes are atomic

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def last_line(error: BaseException) -> tuple[str, int] | None:
    """The line that a program prints after an expected error, and its exit status.
    None for any other error, which is a bug: Python prints its traceback."""
    if isinstance(error, KeyboardInterrupt):
        status = error.status if isinstance(error, Interrupted) else INTERRUPTED
        return f"interrupted{error}", status
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        file = f"{error.filename}: " if error.filename else ""
        error = InputError(f"{file}{error.strerror}; fix that and run the same command again.")
    elif isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        error = InputError(f"{error_line(error):.300}; set JAX_PLATFORMS to a platform that is free, such as cpu.")
    return (f"error: {error}", error.status) if isinstance(error, InputError) else None


@functools.cache  # so that one thread watches the memory
def keep_freed() -> None:
    """Makes glibc keep freed memory, and return it to the system only while memory is scarce.

    XLA's CPU kernels allocate their buffers again in every step. By default, glibc returns large freed blocks to the system at once,
    which clears each page before reuse; docs/performance.md says what that costs. A variable `MALLOC_*` of the user's has precedence.

    For programs, never for a library's caller. Call it before other libraries start threads (importing PyTorch does): glibc gives
    threads their own heaps, which it returns to the system regardless of these settings.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # without glibc, its file or its functions are missing
        libc = ctypes.CDLL("libc.so.6")
        return_freed = libc.malloc_trim
        # M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD (malloc.h): one heap for blocks of any size, which grows by at
        # least 64 MiB and shrinks only on request.
        for parameter, value in ((-8, 1), (-4, 0), (-1, -1), (-2, 64 << 20)):
            libc.mallopt(parameter, value)

        def watch() -> None:
            while True:  # in a thread of its own: JAX frees memory while the main thread does something else
                time.sleep(0.1)
                if is_memory_scarce():
                    return_freed(0)

        threading.Thread(target=watch, name="memory", daemon=True).start()


def is_memory_scarce() -> bool:
    """Whether this process holds over half of its memory limit, or under a quarter of the machine's memory is available.
    True if the system does not say."""
    try:
        _, resident, shared, *_ = map(int, pathlib.Path("/proc/self/statm").read_bytes().split())  # in pages
        words = [line.split() for line in pathlib.Path("/proc/meminfo").read_text().splitlines()]  # `MemTotal: 16 kB`
        sizes_kib = {name: int(size) for name, size, *_ in words}
        limits_bytes = [1024 * sizes_kib["MemTotal:"]]
        # Control groups (containers, jobs) are nested, and each may have a limit; `max` instead of a number means none.
        *_, line = pathlib.Path("/proc/self/cgroup").read_text().splitlines()  # version 2: `0::/PATH`
        folder = pathlib.Path("/sys/fs/cgroup", line.rpartition("::")[2].strip("/"))
        for path in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):
                limits_bytes.append(int((path / "memory.max").read_text()))
        held_bytes = (resident - shared) * os.sysconf("SC_PAGE_SIZE")  # without pages of mapped files
        return held_bytes > min(limits_bytes) / 2 or sizes_kib["MemAvailable:"] < sizes_kib["MemTotal:"] / 4
    except (OSError, KeyError, ValueError):
        return True


def prepare_libtpu() -> None:
    """On a host without TPUs, keeps libtpu from searching for them, from warning, and from allowing only one process."""
    if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"):
        return
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")  # any will do: `--compile_for` names the slice
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


def keep_compiled() -> None:
    """Enables JAX's compilation cache in the cache folder, unless the environment sets another one.
    NOTE: the cache has no size limit. With one, JAX fails on entries that killed processes leave without an access time."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(cache_folder() / "compiled")
    jax.config.update("jax_compilation_cache_dir", folder)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)  # by default 1.0


def versions(*others: str) -> dict[str, str]:
    """Versions of this package, of Python, and of those main packages and `others` that are installed."""
    installed = {"jaxdistill": jaxdistill.__version__, "python": platform.python_version()}
    for package in ("jax", "flax", "numpy", "tokenizers", "safetensors", *others):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def print_versions() -> None:
    """Prints the versions of packages and JAX plugins, and the devices or why JAX finds none."""
    installed = versions("jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
    print(", ".join(f"{name} {version}" for name, version in installed.items()))
    try:
        print(f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}")
    except (RuntimeError, AssertionError) as error:
        print(f"devices: none ({error_line(error)})")


@functools.cache
def source_digest(*within: str) -> str:
    """SHA-256 of this package's source files; with `within`, only of files whose paths begin with one of them, such as `evals/`."""
    package = pathlib.Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not within or name.startswith(within):
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
    return digest.hexdigest()


Advance = Callable[[int], object]
"""Called with the number of units just finished."""


class Bar(tqdm):
    """A progress bar on standard error: continuous on a terminal, two lines a minute in a log."""

    monitor_interval = 0  # no monitor thread, which corrects for skipped updates; with `miniters=1`, tqdm skips none

    def __init__(self, **options: Any):
        super().__init__(mininterval=0.5 if sys.stderr.isatty() else 30.0, miniters=1, dynamic_ncols=True, **options)


@contextlib.contextmanager
def counted(total: int, unit: str, *, shown: bool | str | Advance) -> Iterator[Advance]:
    """Yields a function to call with the number of `unit`s just finished, which advances a progress bar of `total` units.
    `shown`: True for a bar; False or an empty string for none; a title for a bar that appears only if the work takes a while, and
    disappears at the end; or a function to yield instead."""
    if callable(shown):
        yield shown
    else:
        titled = {"desc": shown, "leave": False, "delay": 0.5} if isinstance(shown, str) else {}
        with Bar(total=total, unit=f" {unit}", disable=not shown, **titled) as bar:
            yield bar.update


def duration(seconds: float) -> str:
    """A duration in words, in hours or minutes if it is at least 1.5 of them: `40 s`, `2.4 minutes`, `3.1 hours`."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"
