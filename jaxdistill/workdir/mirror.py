"""A workdir in a bucket: a run works in a local copy, which is published whenever a checkpoint or another file is complete.

Each run has a record in the bucket, which lists the published files with their sizes and modification times. It is written
after these files and before obsolete ones are removed, so a run killed at any moment leaves a complete workdir. A starting
run downloads the files of the latest record, unless an earlier run with the same local copy wrote it.

The record is also the lock. Stores have no locks, but can create an object for exactly one of several callers. So records are
numbered: the run that creates the next one rewrites it every few seconds, and checks before each publication that there is no
later one. A run whose record is not rewritten for a minute is dead.

The first of several processes downloads and publishes. Processes that do not see its folder download what it has published,
except checkpoints, which only the first one reads and writes.
"""

import contextlib
import json
import logging
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.cluster import processes
from jaxdistill.cluster.shared_folder import folder_owner
from jaxdistill.core import InputError, InUseError
from jaxdistill.files import UNFINISHED_SUFFIX, is_remote, local, write_atomic
from jaxdistill.files.buckets import Bucket, MissingObject, address_digest, marker_first, safe_name
from jaxdistill.files.folders import WORKING
from jaxdistill.files.reading import parsed_json
from jaxdistill.paths import cache_folder, fetched_folder
from jaxdistill.workdir import lock
from jaxdistill.workdir.folder import CHECKPOINTS, read_note

RECORD = "jaxdistill-workdir-{:06}.json"
NAME = re.compile(r"jaxdistill-workdir-\d{6}\.json")
LOOK_SECONDS, RENEW_SECONDS, DEAD_SECONDS = 1.0, 15.0, 60.0
"""How often a run looks for new files or another run's record, how often it rewrites its own, and when it counts as dead."""
NOT_PUBLISHED = re.compile(
    rf"(^|/)(\.lock|\.[^/]*{re.escape(UNFINISHED_SUFFIX)}|\.[^/]*{re.escape(WORKING)}|[^/]*\.orbax-checkpoint-tmp[^/]*)(/|$)"
)
"""Patterns of files that are not published: this machine's own, and incomplete ones."""
IN_CHECKPOINTS = re.compile(rf"(^|/){CHECKPOINTS}/")

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """The folder in which a process works."""

    folder: Path
    shared: bool = True
    """Whether all processes of the run must see the folder; otherwise some have copies without checkpoints."""
    hand_on: Callable[[], None] = lambda: None
    """Updates these copies; all processes call it together."""


@contextlib.contextmanager
def opened(workdir: str | Path, *, dry_run: bool) -> Iterator[Opened]:
    """Yields the folder in which to work. A workdir in a bucket is downloaded first, and published until the end.

    Every process of a run enters it. A dry run publishes nothing.

    Raises:
      InUseError: another run uses the workdir (names its host, pid and start).
      InputError: the address holds objects of other programs.
      TemporaryError: the bucket could not be reached; the same command continues.
    """
    folder = local_folder(workdir)
    if not is_remote(workdir):
        yield Opened(folder)
        return
    owner = 0 if processes.count() == 1 else folder_owner(folder.parent)
    shared, mirror = not any(processes.gathered(owner)), Mirror(Bucket(workdir), folder)

    def hand_on() -> None:
        if processes.is_first() and not (shared or dry_run):
            mirror.publish()
        processes.wait("the workdir is in the bucket")
        if processes.index() == owner > 0:
            mirror.fetch(checkpoints=False)
        processes.wait("all copies are made")

    with lock.held(folder.parent, shared=shared), contextlib.ExitStack() as stack:
        if processes.is_first():
            mirror.fetch() if dry_run else stack.enter_context(mirror.writing())
        hand_on()
        yield Opened(folder, shared, hand_on)


def local_folder(workdir: str | Path) -> Path:
    """The folder in which a run works: the workdir, or the local copy of a workdir in a bucket."""
    return _copy(Bucket(workdir), cache_folder() / "workdirs") if is_remote(workdir) else local(workdir, "--workdir")


def fetched_copy(workdir: str | Path) -> Path:
    """A local copy of a workdir in a bucket, for reading; returns a local workdir unchanged."""
    if not is_remote(workdir):
        return local(workdir, "--workdir")
    bucket = Bucket(workdir)
    mirror = Mirror(bucket, _copy(bucket, fetched_folder()))
    if not mirror.fetch():
        raise InputError(f"{bucket.address} is not the workdir of a training: no run has published there.")
    return mirror.folder


class Mirror:
    """A local folder and its publication in a bucket."""

    def __init__(self, bucket: Bucket, folder: Path):
        self.bucket, self.folder = bucket, folder
        self._own = folder.parent / "record.json"
        """Names the run that last published from this local copy."""
        self._run = lock.this_run() | {"key": uuid.uuid4().hex}
        self._record: dict[str, Any] = self._run | {"renewed": 0.0, "ended": False, "files": None}
        """This run's record in the bucket; `files` is a result of `_states`, None until the run has downloaded the workdir."""
        self._number, self._warned = 0, False
        self._publishing, self._writing = threading.Lock(), threading.Lock()

    def fetch(self, *, checkpoints: bool = True) -> bool:
        """Downloads the last publication if the local copy is older; returns whether there is a publication.

        Args:
          checkpoints: whether to download them too.
        """
        said = next((one for name in self._names() if (one := self._read(name)) and one["files"] is not None), None)
        self._record["files"] = files = said["files"] if said else {}
        if checkpoints and self._is_own(said):
            return True
        log.info("fetching %s", self.bucket.address)
        self._own.unlink(missing_ok=True)
        wanted = {name: state for name, state in files.items() if checkpoints or not IN_CHECKPOINTS.search(name)}
        self.folder.mkdir(parents=True, exist_ok=True)
        here = _states(self.folder)
        for path in sorted(self.folder.rglob("*"), reverse=True):
            name = path.relative_to(self.folder).as_posix()
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif not path.is_dir() and here.get(name, "") != wanted.get(name):
                path.unlink()
        for name in dict(wanted.items() - here.items()):
            self._fetch_file(name, wanted[name])
        return said is not None

    def publish(self) -> None:
        """Uploads new files of the local folder, then writes the record, then removes obsolete files.

        Raises:
          InUseError: another run now publishes there.
        """
        with self._publishing:
            self._check()
            states, before = _states(self.folder), self._record["files"] or {}
            if states == self._record["files"]:
                return
            changed = [name for name, state in states.items() if before.get(name) != state]
            for name in sorted(changed, key=marker_first):
                self.bucket.upload(self.folder / name, name)
            self._write(files=states)
            cut_off = {name for name in self.bucket.versions() if IN_CHECKPOINTS.search(name)}
            self.bucket.remove((cut_off | before.keys()) - states.keys())

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Takes the lock, downloads the workdir, and publishes it until the `with` block ends."""
        earlier = self._take()
        try:
            with every(RENEW_SECONDS, self._write):
                self.fetch()
                self._write()
                write_atomic(self._own, json.dumps(self._run))
                self.bucket.remove(earlier)
                try:
                    with every(LOOK_SECONDS, self._publish_new):
                        yield
                finally:
                    self.publish()
                log.info("%s has all files of this run", self.bucket.address)
        finally:
            with contextlib.suppress(
                InputError
            ):  # best effort: otherwise the next run waits until this one counts as dead
                self._write(ended=True)

    def _take(self) -> list[str]:
        """Creates the next record once the last run has ended or is dead; returns the names of all earlier records."""
        while True:
            earlier = self._names()
            if earlier:
                self._await_end(earlier[0])
            self._number = int(earlier[0][-11:-5]) + 1 if earlier else 1
            with contextlib.suppress(FileExistsError):
                self._write(mode="create")
                self._check()  # this run may have been slow while others came and went
                return earlier

    def _await_end(self, name: str) -> None:
        first = said = self._read(name)
        deadline = time.monotonic() + DEAD_SECONDS
        if first and not first["ended"] and not self._is_own(first):
            log.info(
                "%s: waiting up to %d s for a sign of %s", self.bucket.address, DEAD_SECONDS, lock.described(first)
            )
            while said == first and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)
                said = self._read(name)
            if said and said != first and not said["ended"]:
                raise InUseError(
                    f"{self.bucket.address} is in use by {lock.described(said)}; wait until it ends, or give another --workdir."
                )

    def _check(self) -> None:
        """Raises `InUseError` if another run has created a later record."""
        latest = max(self._names(), default="")
        if latest > RECORD.format(self._number):
            raise InUseError(
                f"{self.bucket.address} was taken over by {lock.described(self._read(latest) or {})}; this run no longer "
                "publishes. Stop one of the two, or give another --workdir."
            )

    def _is_own(self, said: dict[str, Any] | None) -> bool:
        """Whether a record belongs to the last run with this local copy, which has ended, because this run holds its lock."""
        own = read_note(self._own)
        return bool(own) and said is not None and own.items() <= said.items()

    def _write(self, *, mode: str = "overwrite", **news: Any) -> None:
        """Writes this run's record. A run's last record is never removed, so that the numbers of records only grow."""
        with self._writing:
            self._record |= news | {"renewed": time.time()}
            self.bucket.write(RECORD.format(self._number), json.dumps(self._record, indent=1).encode(), mode=mode)

    def _names(self) -> list[str]:
        """The records, latest first; raises `InputError` if there are objects but no record."""
        names = self.bucket.versions()
        records = sorted(filter(NAME.fullmatch, names), reverse=True)
        if names and not records:
            raise InputError(
                f"{self.bucket.address} holds {next(iter(names))} and is not a workdir of this program; use another --workdir."
            )
        return records

    def _read(self, name: str) -> dict[str, Any] | None:
        """Reads a record; None if it does not exist. Raises `InputError` if another program wrote it."""
        content = self.bucket.read(name)
        if content is None:
            return None
        said = parsed_json(content, f"{self.bucket.address}/{name}")
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            states = {safe_name(file): state for file, state in (said["files"] or {}).items()}
            kinds = {str: [said["host"], said["started"], *states.values()], int: [said["pid"]], bool: [said["ended"]]}
            if all(type(one) is kind for kind, values in kinds.items() for one in values):
                return said
        raise InputError(
            f"{self.bucket.address}/{name} does not hold what this program writes there; remove it, or use another address."
        )

    def _publish_new(self) -> None:
        """Publishes if files were created or removed, but not if files were only written to."""
        try:
            if _states(self.folder).keys() != self._record["files"].keys():
                self.publish()
                self._warned = False
        except FileNotFoundError:  # an old checkpoint was removed meanwhile
            pass
        except (InputError, OSError) as error:
            if not self._warned and isinstance(error, InUseError):
                os.kill(os.getpid(), signal.SIGINT)  # the run saves and ends, and its last publication says why
            elif not self._warned:
                log.warning("not published yet; the run continues: %s", error)
            self._warned = True

    def _fetch_file(self, name: str, state: str) -> None:
        path, changed = self.folder / name, state.rpartition(" ")[2]
        try:
            self.bucket.download(name, path)
        except MissingObject as error:
            log.warning("%s; a damaged checkpoint is passed over", str(error).partition(";")[0])
        else:
            if changed.isdigit():
                os.utime(path, ns=(int(changed), int(changed)))


@contextlib.contextmanager
def every(seconds: float, work: Callable[[], None]) -> Iterator[None]:
    """Repeats `work` in the background."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(InputError):  # the last publication reports an error that persists
                work()

    thread = threading.Thread(target=repeat, daemon=True, name="storage")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _copy(bucket: Bucket, cache: Path) -> Path:
    return cache / address_digest(bucket.address) / bucket.name


def _states(folder: Path) -> dict[str, str]:
    """Maps the complete files of a workdir to their sizes and modification times."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for name, path in files.items()
        if not NOT_PUBLISHED.search(name) and path.is_file()
    }
