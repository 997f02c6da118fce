"""A workdir in a bucket: a run works in a local copy, which is published whenever a checkpoint or another file is complete.

The manifest, one object, lists the published files with their sizes and times of change. It is written after these files and
before obsolete ones are removed, so a run that is killed at any moment leaves a complete workdir. A run that starts fetches
the listed files, unless its local copy was made from the same manifest.

Of several processes, the first one fetches and publishes. Those that do not see its folder fetch what it has published, except
checkpoints, which it alone reads and writes.
"""

import contextlib
import datetime
import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from jaxdistill.cluster import processes
from jaxdistill.cluster.shared_folder import folder_owner
from jaxdistill.core import InputError
from jaxdistill.files import UNFINISHED_SUFFIX, is_remote, write_atomic
from jaxdistill.files.buckets import Bucket, MissingObject, address_digest, marker_first, safe_name
from jaxdistill.files.folders import WORKING
from jaxdistill.paths import cache_folder, fetched_folder
from jaxdistill.workdir import lease, lock
from jaxdistill.workdir.folder import CHECKPOINTS

MANIFEST = "jaxdistill-workdir.json"
"""Object that lists the published files; the local copy of one, beside the workdir's, says what that was made from."""
LOOK_SECONDS = 1.0
"""How often the local copy is looked at for new files."""
NOT_PUBLISHED = re.compile(
    rf"(^|/)(\.lock|\.[^/]*{re.escape(UNFINISHED_SUFFIX)}|\.[^/]*{re.escape(WORKING)}|[^/]*\.orbax-checkpoint-tmp[^/]*)(/|$)"
)
"""Files of this machine, and those that are not complete."""
IN_CHECKPOINTS = re.compile(rf"(^|/){CHECKPOINTS}/")

log = logging.getLogger(__name__)


class Opened(NamedTuple):
    """Where a process works."""

    folder: Path
    shared: bool = True
    """Whether all processes of the run must see the folder; else some have copies without checkpoints."""
    hand_on: Callable[[], None] = lambda: None
    """Brings those copies up to date; all processes call it together."""


@contextlib.contextmanager
def opened(workdir: str | Path, *, dry_run: bool) -> Iterator[Opened]:
    """Yields the folder in which to work; one in a bucket is fetched first, and published from then on until the end.

    Every process of a run enters it. A dry run publishes nothing.

    Raises:
      InputError: another run uses the workdir, or the address has other objects.
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
            stack.enter_context(mirror.published(dry_run=dry_run))
        hand_on()
        yield Opened(folder, shared, hand_on)


def local_folder(workdir: str | Path) -> Path:
    """The folder in which a run works: the workdir, or the local copy of one in a bucket."""
    return _copy(Bucket(workdir), cache_folder() / "workdirs") if is_remote(workdir) else Path(workdir).expanduser()


def fetched_copy(workdir: str | Path) -> Path:
    """A local copy of a workdir in a bucket, to read; a local one is returned as it is."""
    if not is_remote(workdir):
        return Path(workdir).expanduser()
    bucket = Bucket(workdir)
    if bucket.read(MANIFEST) is None:
        raise InputError(f"{bucket.address} is no workdir of a training: it has no {MANIFEST}.")
    folder = _copy(bucket, fetched_folder())
    Mirror(bucket, folder).fetch()
    return folder


class Mirror:
    """A local folder and its publication in a bucket."""

    def __init__(self, bucket: Bucket, folder: Path):
        self.bucket, self.folder = bucket, folder
        self._note = folder.parent / MANIFEST
        self._listed: dict[str, str] = {}
        """The published files, as `_states`."""
        self._check: Callable[[], None] = lambda: None
        self._publishing, self._warned = threading.Lock(), False

    def fetch(self, *, checkpoints: bool = True) -> None:
        """Makes the local copy that of the last publication, unless it was made from that one and is as new or newer.

        Args:
          checkpoints: whether the copy has them; one without them counts as made from no publication.
        """
        content = self.bucket.read(MANIFEST)
        others = [name for name in self.bucket.versions() if not lease.NAME.fullmatch(name)] if content is None else []
        if others:
            raise InputError(
                f"{self.bucket.address} holds {others[0]} and is no workdir of this program; use another --workdir."
            )
        said = self.bucket.read_note(MANIFEST, lambda said: all(isinstance(one, str) for one in said["files"].values()))
        self._listed = {safe_name(name): state for name, state in said["files"].items()} if said else {}
        if checkpoints and self._note.is_file() and self._note.read_bytes() == content:
            return
        log.info("fetching %s", self.bucket.address)
        self._note.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name, state in self._listed.items():
            if checkpoints or not IN_CHECKPOINTS.search(name):
                self._fetch_file(name, state)
        if checkpoints and content:
            write_atomic(self._note, content.decode())

    def publish(self) -> None:
        """Writes what is new in the local folder to the bucket, then the manifest; removes what is no more.

        Raises:
          LeaseLost: another run publishes there now.
        """
        with self._publishing:
            self._check()
            states = _states(self.folder)
            if states == self._listed and self._note.is_file():
                return
            changed = [name for name, state in states.items() if self._listed.get(name) != state]
            for name in sorted(changed, key=marker_first):
                self.bucket.upload(self.folder / name, name)
            now = datetime.datetime.now(datetime.UTC).isoformat()
            content = json.dumps({"published": now, "files": states}, indent=1)
            self.bucket.write(MANIFEST, content.encode())
            cut_off = {name for name in self.bucket.versions() if IN_CHECKPOINTS.search(name)}
            self.bucket.remove((cut_off | self._listed.keys()) - states.keys())
            write_atomic(self._note, content)
            self._listed = states

    @contextlib.contextmanager
    def published(self, *, dry_run: bool) -> Iterator[None]:
        """Fetches the workdir; holds its lease and publishes it until the end, unless it is a dry run's."""
        if dry_run:
            self.fetch()
            yield
            return
        with lease.leased(self.bucket, self.folder.parent) as held:
            self._check = held.check
            self.fetch()
            if not self._note.is_file():
                self.publish()  # no files: what the first publication leaves if it is cut off is known as this program's
            try:
                with lease.every(LOOK_SECONDS, self._publish_new):
                    yield
            except Exception:
                with lease.warned():
                    self.publish()
                raise
            except KeyboardInterrupt:
                self.publish()
                raise
            self.publish()
            log.info("%s has all files of this run", self.bucket.address)

    def _publish_new(self) -> None:
        """Publishes if files were made or removed, not only written to."""
        try:
            if _states(self.folder).keys() != self._listed.keys():
                self.publish()
                self._warned = False
        except FileNotFoundError:  # an old checkpoint was removed meanwhile
            pass
        except (InputError, OSError) as error:
            if not self._warned and isinstance(error, lease.LeaseLost):
                os.kill(os.getpid(), signal.SIGINT)  # the run saves and ends, and its last publication says why
            elif not self._warned:
                log.warning("not published yet, the run goes on: %s", error)
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


def _copy(bucket: Bucket, cache: Path) -> Path:
    return cache / address_digest(bucket.address) / bucket.name


def _states(folder: Path) -> dict[str, str]:
    """The complete files of a workdir, each with its size and time of change."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for name, path in found.items()
        if not NOT_PUBLISHED.search(name) and path.is_file()
    }
