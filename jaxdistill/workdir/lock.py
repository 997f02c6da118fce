"""Locks a folder for one run at a time, among all programs on this machine and on machines that share its file system."""

import contextlib
import datetime
import json
import logging
import os
import pathlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from filelock import FileLock, Timeout

from jaxdistill.cluster import processes
from jaxdistill.cluster.spread import folder_owner
from jaxdistill.core import InputError, InUseError
from jaxdistill.files import writing
from jaxdistill.workdir.folder import LOCK, read_note

log = logging.getLogger(__name__)


@contextlib.contextmanager
def held(folder: pathlib.Path, *, shared: bool = True) -> Iterator[None]:
    """Creates the folder, and holds its lock in the first process of the run.

    Args:
      shared: whether all processes must see the folder; otherwise each has its own.

    Raises:
      InUseError: another run holds it (names its host, pid and start).
      InputError: a process does not see the folder of the first.
    """
    with locked(folder) if processes.is_first() else contextlib.nullcontext():
        if shared and processes.count() > 1 and folder_owner(folder) != 0:
            raise InputError(
                f"{folder} is not the folder that the first process writes; it must be on a file system that all hosts share."
            )
        processes.wait("the folder is locked")
        yield


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Creates the folder and holds its lock; raises `InUseError` as `held` does, and `InputError` if it cannot be written."""
    path, lock = folder / LOCK, FileLock(folder / LOCK, fallback_to_soft=False)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InUseError(
            f"{folder} is in use by {described(read_note(path))}; wait until it ends, or give another folder."
        ) from None
    except OSError as error:
        log.warning("%s cannot be locked (%s): start no second run in it", folder, error.strerror)
    with writing(path):
        path.write_text(json.dumps(this_run()), encoding="utf-8")
    try:
        yield
    finally:
        lock.release()


def this_run() -> dict[str, Any]:
    """The note in a lock on the process that holds it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": now}


def described(note: Mapping[str, Any]) -> str:
    """Describes, from a lock's note, who holds it."""
    known = this_run().keys() <= note.keys()
    return f"another run (pid {note['pid']} on {note['host']}, started {note['started']})" if known else "another run"
