"""A workdir in a bucket: a run works in a local copy, which is published whenever a checkpoint or another file is complete.

The manifest, one object, lists the files of the last publication with their digests. It is written after these files and before
obsolete ones are removed, so that a run that is killed at any moment leaves a complete workdir: files that it does not list
were not published. A run that starts fetches the listed files, unless its local copy was made from the same
manifest.

Of several processes, the first one fetches and publishes. Those that do not see its folder get copies of its files, except
checkpoints, which it alone reads and writes.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdistill import processes
from jaxdistill.core import InputError
from jaxdistill.files import UNFINISHED_SUFFIX, file_digest, is_remote, write_atomic
from jaxdistill.files.buckets import UNFINISHED, Bucket, MissingObject, address_digest, safe_name
from jaxdistill.files.folders import WORKING
from jaxdistill.files.reading import parsed_json
from jaxdistill.mesh import broadcast
from jaxdistill.paths import cache_folder, fetched_folder
from jaxdistill.shared_folder import folder_owner
from jaxdistill.training import lock
from jaxdistill.training.lease import Lease, LeaseLost, is_lease
from jaxdistill.training.workdir import CHECKPOINTS

MANIFEST = "jaxdistill-workdir.json"
"""Object that lists the published files; the local copy of one, beside the workdir's, says what that was made from."""
LOOK_SECONDS = 1.0
"""How often the local copy is looked at for new files."""
NOT_PUBLISHED = re.compile(
    rf"(^|/)(\.lock|\.[^/]*{re.escape(UNFINISHED_SUFFIX)}|\.[^/]*{re.escape(WORKING)}|[^/]*\.orbax-checkpoint-tmp[^/]*)(/|$)"
)
"""Files of this machine, and those that are not complete."""
OF_FIRST = re.compile(rf"(^|/){CHECKPOINTS}/|{NOT_PUBLISHED.pattern}")
"""Files that the first process alone has, where the others do not see its folder."""

log = logging.getLogger(__name__)


def local_folder(workdir: str | Path) -> Path:
    """The folder in which a run works: the workdir, or the local copy of one in a bucket."""
    if not is_remote(workdir):
        return Path(os.path.expanduser(workdir))
    bucket = Bucket(workdir)
    return cache_folder() / "workdirs" / address_digest(bucket.address) / bucket.name


class Opened(NamedTuple):
    """Where a process works."""

    folder: Path
    shared: bool = True
    """Whether all processes of the run must see the folder; else some have copies, see `copy_from_first`."""
    copies: bool = False
    """Whether this process makes the copy that it, and others of its host, see."""


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
    shared, copies = not any(processes.gathered(owner)), processes.index() == owner > 0
    with lock.held(folder.parent, shared=shared), contextlib.ExitStack() as stack:
        if processes.is_first():
            stack.enter_context(_published(Mirror(Bucket(workdir), folder), dry_run))
        processes.gathered("the workdir is fetched")
        if not shared:
            copy_from_first(folder, copies=copies)
        yield Opened(folder, shared, copies)


def copy_from_first(folder: Path, *, copies: bool) -> None:
    """Copies the files of the first process's folder, except `OF_FIRST`; all processes call this together.

    Args:
      copies: whether this process makes its folder such a copy, without other files. Others see that of the first process or of one
        that copies.
    """
    own = {name: file_digest(folder / name) for name in _names(folder) if not OF_FIRST.search(name)}
    sizes = {name: (folder / name).stat().st_size for name in own}
    digests, sizes = processes.gathered([own, sizes])[0]
    if copies:
        (folder.parent / MANIFEST).unlink(missing_ok=True)  # the copy is that of no publication
        for name in {*_names(folder)} - digests.keys():
            (folder / name).unlink()
        _drop_empty_folders(folder)
    lacks = [name for name in digests if copies and own.get(name) != digests[name]]
    for name in sorted(set().union(*processes.gathered(lacks))):
        content = np.fromfile(folder / name, np.uint8) if processes.is_first() else np.zeros(sizes[name], np.uint8)
        content = broadcast(content)
        if name in lacks:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            content.tofile(folder / name)
    processes.gathered("all files are copied")


def fetched_copy(workdir: str | Path) -> Path:
    """A local copy of a workdir in a bucket, to read; a local one is returned as it is."""
    if not is_remote(workdir):
        return Path(os.path.expanduser(workdir))
    bucket = Bucket(workdir)
    if bucket.read(MANIFEST) is None:
        raise InputError(f"{bucket.address} is no workdir of a training: it has no {MANIFEST}.")
    folder = fetched_folder() / address_digest(bucket.address) / bucket.name
    Mirror(bucket, folder).fetch()
    return folder


class Mirror:
    """A local folder and its publication in a bucket."""

    def __init__(self, bucket: Bucket, folder: Path):
        self.bucket, self.folder = bucket, folder
        self._note = folder.parent / MANIFEST
        self._digests: dict[str, str] = {}
        """Of the published files."""
        self._states: dict[str, tuple[int, int]] = {}
        """Size and time of change of the local files when they were published."""

    def fetch(self) -> None:
        """Makes the local copy that of the last publication, unless it was made from that one and is as new or newer."""
        content = self.bucket.read(MANIFEST)
        if content is None:
            self._refuse_others()
            shutil.rmtree(self.folder, ignore_errors=True)
            self._note.unlink(missing_ok=True)
            self.folder.mkdir(parents=True)
            return
        self._digests = self._listed(content)
        if self.folder.is_dir() and self._note.is_file() and self._note.read_bytes() == content:
            return
        log.info("fetching %s", self.bucket.address)
        self._note.unlink(missing_ok=True)
        for name in _names(self.folder):
            if name not in self._digests:
                (self.folder / name).unlink()
        for name, digest in self._digests.items():
            self._fetch_file(name, digest)
        _drop_empty_folders(self.folder)
        write_atomic(self._note, content.decode())

    def publish(self) -> None:
        """Writes what is new in the local folder to the bucket, then the manifest; removes what is no more."""
        states = {name: _state(self.folder / name) for name in _names(self.folder) if not NOT_PUBLISHED.search(name)}
        changed = [name for name in states if self._states.get(name) != states[name]]
        digests = {name: self._digests.get(name, "") for name in states}
        digests |= {name: file_digest(self.folder / name) for name in changed}
        changed = [name for name in changed if digests[name] != self._digests.get(name)]
        gone = [name for name in self._digests if name not in states]
        if changed or gone:
            with self.bucket.changing([*changed, *gone]):
                for name in changed:
                    self.bucket.upload(self.folder / name, name)
                content = json.dumps({"files": digests}, indent=1)
                self.bucket.write(MANIFEST, content.encode())
                self.bucket.remove({*self.bucket.unfinished(), *gone} - digests.keys())
            write_atomic(self._note, content)
        self._digests, self._states = digests, states

    def has_new_files(self) -> bool:
        """Whether files were made or removed since the last publication, not only written to."""
        return {name for name in _names(self.folder) if not NOT_PUBLISHED.search(name)} != self._states.keys()

    def _listed(self, content: bytes) -> dict[str, str]:
        """Files and digests of a manifest."""
        listed = parsed_json(content, f"{self.bucket.address}/{MANIFEST}")
        files = listed.get("files") if isinstance(listed, dict) else None
        if not isinstance(files, dict) or not all(isinstance(digest, str) for digest in files.values()):
            raise self.bucket.no_note(MANIFEST)
        return {safe_name(name): digest for name, digest in files.items()}

    def _fetch_file(self, name: str, digest: str) -> None:
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise InputError(f"{self.bucket.address}/{MANIFEST} lists {name!r}, which is outside of the workdir.")
        if path.is_file() and file_digest(path) == digest:
            return
        try:
            self.bucket.download(name, path)
        except MissingObject as error:
            log.warning("%s; a damaged checkpoint is passed over", str(error).partition(";")[0])

    def _refuse_others(self) -> None:
        """Raises `InputError` if there are objects under the address that no run has published."""
        unfinished = self.bucket.unfinished()
        others = [
            name for name in self.bucket.versions() if name not in (UNFINISHED, *unfinished) and not is_lease(name)
        ]
        if others:
            raise InputError(
                f"{self.bucket.address} holds {others[0]} and is no workdir of this program; use another --workdir."
            )


class _Publisher:
    """Publishes in the background what is new in the local copy, as long as this run has the lease."""

    def __init__(self, mirror: Mirror, lease: Lease):
        self._mirror, self._lease = mirror, lease
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="publisher")
        self._thread.start()

    def end(self) -> None:
        """Publishes the rest; raises `InputError` if that fails, or if another run has taken the lease."""
        self._ended.set()
        self._thread.join()
        self._publish()
        log.info("%s has all files of this run", self._mirror.bucket.address)

    def _publish(self) -> None:
        self._lease.check()
        self._mirror.publish()

    def _run(self) -> None:
        failed = False
        while not self._ended.wait(LOOK_SECONDS):
            if not self._mirror.has_new_files():
                continue
            try:
                self._publish()
                failed = False
            except LeaseLost:
                os.kill(os.getpid(), signal.SIGINT)  # the run saves and ends, and `end` says why
                return
            except FileNotFoundError:  # an old checkpoint was removed meanwhile
                continue
            except (InputError, OSError) as error:
                if not failed:
                    log.warning("not published yet, the run goes on: %s", error)
                failed = True


@contextlib.contextmanager
def _published(mirror: Mirror, dry_run: bool) -> Iterator[None]:
    """Fetches the workdir; holds its lease and publishes it until the end, unless it is a dry run's."""
    if dry_run:
        mirror.fetch()
        yield
        return
    lease = Lease(mirror.bucket)
    try:
        mirror.fetch()
        publisher = _Publisher(mirror, lease)
        try:
            yield
        except Exception:
            with _failure_logged():
                publisher.end()
            raise
        except KeyboardInterrupt:
            publisher.end()
            raise
        publisher.end()
    finally:
        with _failure_logged():
            lease.release()


@contextlib.contextmanager
def _failure_logged() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        log.warning("%s", error)


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _drop_empty_folders(folder: Path) -> None:
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        with contextlib.suppress(OSError):  # not empty
            inner.rmdir()
