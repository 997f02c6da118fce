"""Keeps freed memory for the next step while memory is plentiful.

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
from collections.abc import Sequence
from typing import NamedTuple

GLIBC_MALLOC = {
    "M_ARENA_MAX": (-8, 1),
    "M_MMAP_MAX": (-4, 0),
    "M_TRIM_THRESHOLD": (-1, -1),
    "M_TOP_PAD": (-2, 64 << 20),
}
"""Numbers and values of glibc's parameters (malloc.h): one heap for blocks of any size, which grows by at least 64 MiB and
shrinks only on request."""
OWN, MACHINE, GROUPS = map(pathlib.Path, ("/proc/self/statm", "/proc/meminfo", "/proc/self/cgroup"))
CONTROL = pathlib.Path("/sys/fs/cgroup")
"""Where Linux reports the memory of control groups (containers, jobs)."""
SECONDS = 0.1
"""Seconds between two checks of the memory."""
MOST_OWN, LEAST_FREE = 1 / 2, 1 / 4
"""Memory is scarce if this process holds more than the first fraction of it, or less than the second is available."""


class Group(NamedTuple):
    """A control group with a memory limit."""

    limit: int
    """The limit, in bytes."""
    usage: pathlib.Path
    statistics: pathlib.Path
    """File that says how much of the usage is cached files, which the system can drop."""


@functools.cache
def keep_freed() -> None:
    """Makes glibc reuse freed memory, and return it to the system only while memory is scarce; once per process.

    A thread watches the memory, because steps end while the program waits elsewhere. Does nothing with another C library, or
    if a variable `MALLOC_*` is set. Call it before other libraries start threads (importing PyTorch does): glibc gives threads
    their own heaps, which it returns to the system regardless of these settings.
    """
    libc = _glibc()
    if libc is None or any(name.startswith("MALLOC_") for name in os.environ):
        return
    for number, value in GLIBC_MALLOC.values():
        libc.mallopt(number, value)
    threading.Thread(target=_watch, args=(libc,), name="memory", daemon=True).start()


def _watch(libc: ctypes.CDLL) -> None:
    while True:
        time.sleep(SECONDS)
        if is_scarce():
            libc.malloc_trim(0)


def is_scarce() -> bool:
    """Whether the memory of the machine or of a control group is scarce, by `MOST_OWN` and `LEAST_FREE`."""
    try:
        _, resident, shared, *_ = map(int, OWN.read_bytes().split())
        machine = _numbers(MACHINE)
        total, available = (1024 * machine[name] for name in ("MemTotal:", "MemAvailable:"))
        groups = [group for group in limited_groups() if group.limit < total]
        free = [group.limit - int(group.usage.read_text()) + _inactive(group) for group in groups]
    except (OSError, KeyError, ValueError):
        return True
    limits = [total, *(group.limit for group in groups)]
    own = (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    short = (left < LEAST_FREE * limit for left, limit in zip([available, *free], limits, strict=True))
    return own > MOST_OWN * min(limits) or any(short)


def _inactive(group: Group) -> int:
    numbers = _numbers(group.statistics)
    return numbers.get("total_inactive_file", numbers.get("inactive_file", 0))


def _numbers(path: pathlib.Path) -> dict[str, int]:
    """The first number after each name in a file of statistics."""
    return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines() if len(line.split()) > 1}


@functools.cache
def limited_groups() -> Sequence[Group]:
    """The control groups, of either version of cgroups, that limit this process's memory; a job's groups may be nested."""
    groups = []
    for line in GROUPS.read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        names = (
            ("memory.max", "memory.current") if not controllers else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        folder = CONTROL / controllers / own.strip("/")
        for each in (folder, *(parent for parent in folder.parents if parent.is_relative_to(CONTROL))):
            with contextlib.suppress(OSError, ValueError):  # `max` instead of a number means no limit
                limit = int((each / names[0]).read_text())
                groups.append(Group(limit, each / names[1], each / "memory.stat"))
    return groups


def _glibc() -> ctypes.CDLL | None:
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        if libc.mallopt and libc.malloc_trim:
            return libc
    return None
