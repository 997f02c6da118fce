"""A lease on a workdir in a bucket: one run at a time publishes there.

Stores have no locks, but can create an object for exactly one of several callers. So leases are numbered: the run that creates
the object of the next number holds the lease, rewrites that object every few seconds, and checks before each
publication that there is no higher number. A lease that is not renewed for a minute belongs to a dead run.
"""

import datetime
import json
import logging
import os
import pathlib
import re
import socket
import threading
import time
from typing import Any

from jaxdistill.core import InputError, InUseError
from jaxdistill.files.buckets import Bucket, address_digest

NAME = re.compile(r"jaxdistill-lease-(\d{6})\.json")
RENEW_SECONDS, DEAD_SECONDS = 15.0, 60.0
"""How often a lease is renewed, and how long without it until its run counts as dead."""
LOOK_SECONDS = 2.0
"""How often a run looks whether the lease of another one is renewed."""

log = logging.getLogger(__name__)


class LeaseLost(InUseError):
    """Raised when another run has taken the lease."""


class Lease:
    """The lease of this run on the workdir in a bucket."""

    def __init__(self, bucket: Bucket):
        """Takes the lease; waits where it cannot tell at once whether the run that holds it lives.

        Raises:
          InUseError: another run holds it (names its host, pid and start).
        """
        self._bucket = bucket
        self._note = {"host": socket.gethostname(), "pid": os.getpid(), "space": _process_space(), "started": _now()}
        self._number = self._taken()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        self._thread.start()

    def check(self) -> None:
        """Raises `LeaseLost` if another run has taken the lease."""
        highest = max(_numbers(self._bucket), default=0)
        if highest > self._number:
            raise LeaseLost(
                f"{self._bucket.address} was taken over by {_holder(self._read(highest))}; this run publishes no more. "
                "Stop one of the two, or give another --workdir."
            )

    def release(self) -> None:
        """Ends the lease. The object stays, so that numbers only grow."""
        self._ended.set()
        self._thread.join()
        self._bucket.write(_name(self._number), self._content(released=True))

    def _taken(self) -> int:
        """The number of this run's lease."""
        while True:
            numbers = _numbers(self._bucket)
            highest = max(numbers, default=0)
            if highest:
                self._await_end(highest)
            if self._bucket.create(_name(highest + 1), self._content()):
                break
        if max(_numbers(self._bucket)) > highest + 1:  # this run was slow, and others came and went meanwhile
            self._bucket.remove([_name(highest + 1)])
            return self._taken()
        self._bucket.remove(map(_name, numbers))
        return highest + 1

    def _await_end(self, number: int) -> None:
        """Returns when the lease is released or dead; raises `InUseError` when it is renewed."""
        first = noted = self._read(number)
        if noted.get("released") or _is_dead(noted):
            return
        log.info("%s: waiting up to %d s for a sign of %s", self._bucket.address, DEAD_SECONDS, _holder(noted))
        deadline = time.monotonic() + DEAD_SECONDS
        while time.monotonic() < deadline and not noted.get("released"):
            time.sleep(LOOK_SECONDS)
            noted = self._read(number)
            if noted != first and not noted.get("released"):
                raise InUseError(
                    f"{self._bucket.address} is in use by {_holder(noted)}; wait for its end, or give another --workdir."
                )

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self._bucket.write(_name(self._number), self._content())
            except InputError as error:  # the publication reports it too, if it lasts
                log.debug("lease not renewed: %s", error)

    def _content(self, *, released: bool = False) -> bytes:
        return json.dumps(self._note | {"renewed": _now(), "released": released}).encode()

    def _read(self, number: int) -> dict[str, Any]:
        """What a lease says; one that was removed meanwhile is released.

        Raises:
          InputError: it is not what `_content` writes.
        """
        noted = self._bucket.note(_name(number), dict)
        if noted is None:
            return {"released": True}
        if any(type(noted.get(key, own)) is not type(own) for key, own in self._note.items()):
            raise self._bucket.no_note(_name(number))
        return noted


def is_lease(name: str) -> bool:
    """Whether an object of a workdir is a lease."""
    return NAME.fullmatch(name) is not None


def _numbers(bucket: Bucket) -> list[int]:
    return [int(found[1]) for name in bucket.versions() if (found := NAME.fullmatch(name))]


def _name(number: int) -> str:
    return f"jaxdistill-lease-{number:06d}.json"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def _holder(note: dict[str, Any]) -> str:
    return f"another run (pid {note.get('pid')} on {note.get('host')}, started {note.get('started', '')[:19]})"


def _process_space() -> str:
    """What tells where a process id is valid: a digest of the start of this machine and of the container."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return address_digest(f"{boot} {os.readlink('/proc/self/ns/pid')}")
    except OSError:
        return ""


def _is_dead(note: dict[str, Any]) -> bool:
    """Whether the run of a lease is known to be dead, because it was one of this machine."""
    if not note.get("space") or note["space"] != _process_space() or note.get("pid") in (None, os.getpid()):
        return False
    return not os.path.exists(f"/proc/{note['pid']}")
