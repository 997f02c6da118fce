"""Opens untrusted files: only regular ones, links only within their folder, JSON of bounded size."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from jaxdistill.core import InputError, error_line

KERNEL_FOLDERS = ("/proc", "/sys")
"""Files here look regular but expose the state of processes, such as their environment."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

POINTERS = {b"version https://git-lfs.github.com/spec/": "git lfs pull", b"/annex/objects/": "git annex get"}
"""First bytes of files that stand for one that was not fetched, with the command that fetches it."""


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading.

    Raises:
      InputError: the file is missing, not readable, or not regular (a folder, a pipe, a device).
    """
    try:
        # Without O_NONBLOCK, opening a pipe blocks until it has a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: the name contains NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{str(path)!r} cannot be read: {reason}.") from None
    mode = stat.S_IFMT(os.fstat(handle).st_mode)
    real = os.path.realpath(path)
    if mode == stat.S_IFREG and not any(real.startswith(f"{folder}/") for folder in KERNEL_FOLDERS):
        file = os.fdopen(handle, "rb")
        if command := next((POINTERS[begin] for begin in POINTERS if file.peek(64).startswith(begin)), ""):
            file.close()
            raise InputError(f"{path} only points to a file that is not here; fetch it with {command}.")
        return file
    os.close(handle)
    raise InputError(f"{path} is {KINDS.get(mode, 'a file of the kernel')}; only regular files can be read.")


def regular(path: Path) -> Path:
    """Returns the path, for a library that opens it itself; raises `InputError` as `open_regular` does."""
    open_regular(path).close()
    return path


def parsed_json(content: str | bytes, place: str) -> Any:
    """Parses JSON; raises `InputError`, also for deep nesting and numbers with thousands of digits."""
    try:
        return json.loads(content)
    except RecursionError:
        raise InputError(f"{place} is not readable JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise InputError(f"{place} is not valid JSON ({error!s:.200}).") from None


@contextlib.contextmanager
def foreign_errors(what: str) -> Iterator[None]:
    """Turns any error of a native library into `InputError`, also Rust panics, which are not an `Exception`."""
    try:
        yield
    except (InputError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise InputError(f"{what} ({error_line(error):.200}).") from None
