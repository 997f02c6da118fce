"""A lease on a workdir in a bucket: one run at a time publishes there.

Stores have no locks, but can create an object for exactly one of several callers. So leases are numbered: the run that creates
the object of the next number holds the lease, rewrites that object every few seconds, and checks before each
publication that there is no higher number. A lease that is not renewed for a minute belongs to a dead run.
"""

import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, InUseError
from jaxdistill.files.buckets import Bucket
from jaxdistill.workdir.lock import described, this_run

NAME = re.compile(r"jaxdistill-lease-(\d{6})\.json")
RENEW_SECONDS, LOOK_SECONDS, DEAD_SECONDS = 15.0, 2.0, 60.0
"""How often a lease is renewed, how often another run looks for that, and after how long without it a run counts as dead."""

log = logging.getLogger(__name__)


class LeaseLost(InUseError):
    """Raised when another run has taken the lease."""


class Lease:
    """The lease of this run on the workdir in a bucket."""

    def __init__(self, bucket: Bucket, folder: Path):
        """Takes the lease; waits where it cannot tell at once whether the run that holds it lives.

        Args:
          folder: one that this run has locked, so that an earlier run with a lease for it is dead.

        Raises:
          InUseError: another run holds it (names its host, pid and start).
        """
        self._bucket, self._note = bucket, this_run() | {"key": uuid.uuid4().hex}
        own = folder / ".lease"
        dead, taken = own.read_text(encoding="utf-8") if own.is_file() else "", False
        while not taken:
            numbers = self._numbers()
            self._number = max(numbers, default=0) + 1
            self._await_end(self._number - 1, dead)
            taken = bucket.create(_name(self._number), self._content())
        own.write_text(self._note["key"], encoding="utf-8")
        self.check()  # this run may have been slow, while others came and went
        bucket.remove(map(_name, numbers))

    def check(self) -> None:
        """Raises `LeaseLost` if another run has taken the lease."""
        highest = max(self._numbers(), default=0)
        if highest > self._number:
            raise LeaseLost(
                f"{self._bucket.address} was taken over by {described(self._read(highest))}; this run publishes no more. Stop "
                "one of the two, or give another --workdir."
            )

    def renew(self, *, released: bool = False) -> None:
        """Rewrites the object. That of a released lease stays, so that numbers only grow."""
        self._bucket.write(_name(self._number), self._content(released=released))

    def _await_end(self, number: int, dead: str) -> None:
        """Returns when the lease is released or dead; raises `InUseError` when it is renewed."""
        first = noted = self._read(number)
        deadline = time.monotonic() + DEAD_SECONDS
        if noted and noted.get("key") != dead:
            log.info("%s: waiting up to %d s for a sign of %s", self._bucket.address, DEAD_SECONDS, described(noted))
        while noted and noted.get("key") != dead and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            noted = self._read(number)
            if noted and noted != first:
                raise InUseError(
                    f"{self._bucket.address} is in use by {described(noted)}; wait for its end, or give another --workdir."
                )

    def _content(self, *, released: bool = False) -> bytes:
        return json.dumps(self._note | {"renewed": time.time(), "released": released}).encode()

    def _read(self, number: int) -> dict[str, Any] | None:
        """What a lease says; None if there is none, or it was released."""

        def fits(said: dict[str, Any]) -> bool:
            return all(type(said[entry]) is type(own) for entry, own in this_run().items())

        noted = self._bucket.read_note(_name(number), fits)
        return noted if noted and not noted.get("released") else None

    def _numbers(self) -> list[int]:
        return [int(found[1]) for name in self._bucket.versions() if (found := NAME.fullmatch(name))]


@contextmanager
def leased(bucket: Bucket, folder: Path) -> Iterator[Lease]:
    """Holds the lease, see `Lease`."""
    lease = Lease(bucket, folder)
    try:
        with every(RENEW_SECONDS, lease.renew):
            yield lease
    finally:
        with warned():
            lease.renew(released=True)


@contextmanager
def every(seconds: float, work: Callable[[], None]) -> Iterator[None]:
    """Repeats `work` in the background."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with warned(logging.DEBUG):  # what lasts, the last publication reports
                work()

    thread = threading.Thread(target=repeat, daemon=True, name="storage")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def warned(level: int = logging.WARNING) -> Iterator[None]:
    """Logs what its body cannot do."""
    try:
        yield
    except InputError as error:
        log.log(level, "%s", error)


def _name(number: int) -> str:
    return f"jaxdistill-lease-{number:06d}.json"
