"""Keeps freed memory for the next step while memory is plentiful: a setting of the programs, never of a library's caller.

XLA's CPU kernels allocate their buffers again in every step. glibc returns large freed blocks to the system at once, which
clears each page before reuse. docs/performance.md says what that costs.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
import threading
import time
from collections.abc import Iterator

GLIBC_MALLOC = {
    "M_ARENA_MAX": (-8, 1),
    "M_MMAP_MAX": (-4, 0),
    "M_TRIM_THRESHOLD": (-1, -1),
    "M_TOP_PAD": (-2, 64 << 20),
}
"""Numbers and values of glibc's parameters (malloc.h): one heap for blocks of any size, which grows by at least 64 MiB and
shrinks only on request."""
PROCESS, MACHINE, GROUPS = map(pathlib.Path, ("/proc/self/statm", "/proc/meminfo", "/proc/self/cgroup"))
CONTROL = pathlib.Path("/sys/fs/cgroup")
"""Where Linux reports the limits of control groups (containers, jobs)."""
CHECK_SECONDS = 0.1


@functools.cache
def keep_freed() -> None:
    """Makes glibc reuse freed memory, and return it to the system only while memory is scarce; once per process.

    A thread watches the memory, because steps end while the program waits elsewhere. Does nothing with another C library, or
    if a variable `MALLOC_*` is set. Call it before other libraries start threads (importing PyTorch does): glibc gives threads
    their own heaps, which it returns to the system regardless of these settings.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        if libc.malloc_trim and not any(name.startswith("MALLOC_") for name in os.environ):
            for number, value in GLIBC_MALLOC.values():
                libc.mallopt(number, value)
            threading.Thread(target=_watch, args=(libc,), name="memory", daemon=True).start()


def _watch(libc: ctypes.CDLL) -> None:
    while True:
        time.sleep(CHECK_SECONDS)
        if is_scarce():
            libc.malloc_trim(0)


def is_scarce() -> bool:
    """Whether this process holds over half of its memory limit, or under a quarter of the machine's memory is available."""
    try:
        _, resident, shared, *_ = map(int, PROCESS.read_bytes().split())
        sizes = {line.split()[0]: 1024 * int(line.split()[1]) for line in MACHINE.read_text().splitlines()}
        held = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
        limit = min([sizes["MemTotal:"], *_group_limits()])
        return held > limit / 2 or sizes["MemAvailable:"] < sizes["MemTotal:"] / 4
    except (OSError, KeyError, ValueError):
        return True


def _group_limits() -> Iterator[int]:
    """Memory limits of the control groups, of either version of cgroups, that hold this process; they may be nested."""
    for line in GROUPS.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            folder = CONTROL / controllers / group.strip("/")
            for each in (folder, *(parent for parent in folder.parents if parent.is_relative_to(CONTROL))):
                with contextlib.suppress(OSError, ValueError):  # `max` instead of a number means no limit
                    yield int((each / name).read_text())
