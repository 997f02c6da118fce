"""Locks a folder for one run at a time, among the programs of one machine and of all that share its file system."""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import pathlib
import socket
import time
from collections.abc import Iterator

from jaxdistill import processes
from jaxdistill.core import InputError, InUseError
from jaxdistill.training.workdir import LOCK

SEEN_SECONDS = 60.0
"""How long a file may take to appear on another host, whose NFS client may have cached that it does not exist."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(folder: pathlib.Path, *, shared: bool = True) -> Iterator[None]:
    """Makes the folder, and holds its lock in the first process of the run.

    Args:
      shared: whether all processes must see the folder; else each has one of its own.

    Raises:
      InUseError: another run holds it (names its host, pid and start).
      InputError: a process does not see the folder of the first.
    """
    with contextlib.ExitStack() as stack:
        token = stack.enter_context(locked(folder)) if processes.is_first() else ""
        token = processes.gathered(token)[0]
        if shared and not processes.is_first():
            _await(folder, token)
        yield


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[str]:
    """Holds the lock; yields what it says of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(
                f"{folder} is in use by {holder(folder)}; wait for its end, or give another folder."
            ) from None
        except OSError as error:
            log.warning("%s cannot be locked (%s): start no second run in it", folder, error.strerror)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        note = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "started": now})
        file.truncate(0)
        file.write(note)
        file.flush()
        os.fsync(file.fileno())  # an NFS client would keep the note to itself while the file is open
        yield note


def holder(folder: pathlib.Path) -> str:
    """Who holds the lock of a folder, for a reader."""
    try:
        noted = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        return f"another run (pid {noted['pid']} on {noted['host']}, started {noted['started']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another run"


def _await(folder: pathlib.Path, token: str) -> None:
    """Raises `InputError` unless the lock of the first process shows in this one's folder."""
    deadline = time.monotonic() + SEEN_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if (folder / LOCK).read_text(encoding="utf-8") == token:
                return
        time.sleep(0.2)
    raise InputError(
        f"{folder} is not the folder that the first process writes; it must be on a file system that all hosts share."
    )
