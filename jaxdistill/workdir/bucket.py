"""The folder of a run, on a disk or at `gs://`.

In a bucket, Orbax reads and writes the checkpoints itself, each process the arrays of its devices. The other files are few, and
libraries write them to local paths: each process has them in its cache folder. The first one copies new ones to the bucket before
each checkpoint and at the end, and a start fetches them, so a killed run continues on an empty machine.

Stores have no locks. A running training rewrites a note every few seconds, and a start is refused while another run does.
"""

import contextlib
import dataclasses
import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from etils import epath
from fsspec.config import conf

from jaxdistill.cluster import processes
from jaxdistill.core import InputError, InUseError
from jaxdistill.files import MARK, UNFINISHED_SUFFIX, is_remote, is_unchanged, is_unfinished, local, marked_files
from jaxdistill.files.buckets import address_digest, checked_address, store_errors
from jaxdistill.paths import cache_folder, fetched_folder
from jaxdistill.workdir import lock
from jaxdistill.workdir.folder import CHECKPOINTS, CONFIG, LOCK, STUDENTS, stage_folder

RUNNING = "running.json"
"""The note on the run that uses a workdir in a bucket."""
RENEW_SECONDS, DEAD_SECONDS = 15.0, 60.0
"""How often a run rewrites its note, and the age of a note at which its run counts as dead."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The folder of a training or of one of its stages."""

    folder: Path
    """Local files; for a workdir in a bucket, this process's copy of all but the checkpoints."""
    bucket: epath.Path | None = None
    copied: dict[Path, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Size and modification time of each local file that is also in the bucket."""

    @property
    def checkpoints(self) -> epath.Path:
        return (self.bucket or epath.Path(self.folder.absolute())) / CHECKPOINTS

    def stage(self, number: int) -> "Workdir":
        """The workdir of one stage, counted from 1."""
        folder = stage_folder(self.folder, number)
        return dataclasses.replace(self, folder=folder, bucket=self.bucket and self.bucket / folder.name)

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Holds the lock of the local folder, see `lock.held`."""
        return lock.held(self.folder, shared=self.bucket is None)

    def upload(self) -> None:
        """Copies new and changed files to the bucket; the first process does, for all."""
        if self.bucket is None or not processes.is_first():
            return
        states = _states(self.folder)
        changed = [path for path, state in states.items() if self.copied.get(path) != state]
        with store_errors(str(self.bucket)):
            # The config shows whose folder it is, and an export's marker that it is incomplete; results come last.
            for path in sorted(changed, key=lambda path: (path.name != CONFIG, path.name != MARK, states[path][1])):
                _copy(path, self.bucket / path.relative_to(self.folder).as_posix())
        self.copied.update(states)

    def download(self) -> None:
        """Replaces the local files by those in the bucket, without exports whose upload was cut off."""
        assert self.bucket is not None
        shutil.rmtree(self.folder, ignore_errors=True)
        with store_errors(str(self.bucket)):
            _fetch(self.bucket, self.folder)
        for mark in [*self.folder.rglob(MARK)]:
            if not all(is_unchanged(mark.parent / name, digest) for name, digest in marked_files(mark.parent).items()):
                shutil.rmtree(mark.parent)
        self.copied.update(_states(self.folder))

    def share(self) -> None:
        """Gives the files of the first process to the others; all call it together."""
        self.upload()
        processes.wait("the files are in the bucket")
        if self.bucket is not None and not processes.is_first():
            self.download()
        processes.wait("all have fetched them")


@contextlib.contextmanager
def opened(workdir: str | Path, *, dry_run: bool) -> Iterator[Workdir]:
    """Yields the workdir of a run. Every process of the run enters it.

    Args:
      dry_run: fetch the files, but write nothing to a bucket.

    Raises:
      InUseError: another run uses the workdir in the bucket (names its host, pid and start).
      InputError: the address cannot be used, or holds objects of other programs.
      TemporaryError: the store does not answer; the same command continues.
    """
    if dry_run or not is_remote(workdir):
        yield fetched(workdir)
        return
    bucket = address_of(workdir)
    place = Workdir(local_folder(workdir), bucket)
    with _reserved(bucket) if processes.is_first() else contextlib.nullcontext():
        processes.wait("the bucket is reserved")
        place.download()
        try:
            yield place
        except BaseException:
            with contextlib.suppress(InputError):  # the error on its way says more
                place.upload()
            raise
        place.share()


def fetched(workdir: str | Path) -> Workdir:
    """A workdir for reading: a local one itself, or a copy of the files in a bucket."""
    if not is_remote(workdir):
        return Workdir(local(workdir, "--workdir"))
    place = Workdir(_copy_of(workdir, fetched_folder()), address_of(workdir))
    place.download()
    return place


def local_folder(workdir: str | Path) -> Path:
    """The folder in which this process works."""
    return _copy_of(workdir, cache_folder() / "workdirs") if is_remote(workdir) else local(workdir, "--workdir")


def address_of(workdir: str | Path) -> epath.Path:
    """The address of a workdir in a bucket; raises `InputError` for other stores than Google's."""
    address = checked_address(str(workdir))
    if not address.startswith("gs://"):
        raise InputError(
            f"--workdir={address}: checkpoints are written to a disk or to gs://; give one of these, and copy the folder afterwards "
            "(`aws s3 sync`). Text and models may be in s3://."
        )
    # Or a process would not see what others, and TensorStore, have written.
    conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(address)


@contextlib.contextmanager
def _reserved(bucket: epath.Path) -> Iterator[None]:
    """Keeps a note in the bucket that this run uses it; raises `InUseError` if another run rewrites its own meanwhile."""
    path, key = bucket / RUNNING, uuid.uuid4().hex
    with store_errors(str(bucket)):
        _refuse_foreign(bucket)
        first = note = _read(path)
        if first:
            log.info("%s: waiting up to %d s for a sign of %s", bucket, DEAD_SECONDS, lock.described(first))
        while note and note == first and time.time() - float(note.get("renewed", 0.0)) < DEAD_SECONDS:
            time.sleep(min(1.0, DEAD_SECONDS / 2))
            note = _read(path)

        def renew() -> None:
            path.write_text(json.dumps(lock.this_run() | {"key": key, "renewed": time.time()}))

        if note == first or not note:
            renew()
            note = _read(path)
        if note.get("key") != key:
            raise InUseError(
                f"{bucket} is in use by {lock.described(note)}; wait until it ends, or give another --workdir."
            )
    try:
        with _repeated(RENEW_SECONDS, renew):
            yield
    finally:
        with contextlib.suppress(Exception):  # otherwise the next run waits until this one counts as dead
            path.unlink()


def _refuse_foreign(bucket: epath.Path) -> None:
    names = {path.name for path in bucket.iterdir()} - {RUNNING} if bucket.exists() else set[str]()
    if names and not names & {CONFIG, STUDENTS, stage_folder(Path(), 1).name}:
        raise InputError(f"{bucket} holds {min(names)} and is not a workdir of this program; use another --workdir.")


def _read(path: epath.Path) -> dict[str, Any]:
    """Reads the note; empty without one."""
    try:
        return dict(json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return {}


@contextlib.contextmanager
def _repeated(seconds: float, work: Callable[[], None]) -> Iterator[None]:
    """Repeats `work` in the background, whether it succeeds or not."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(Exception):
                work()

    thread = threading.Thread(target=repeat, daemon=True, name="note")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _copy_of(workdir: str | Path, cache: Path) -> Path:
    """This process's copy of a workdir in a bucket; processes may share the cache folder."""
    address = checked_address(str(workdir))
    return cache / f"{address_digest(address)}-{processes.index()}" / Path(address).name


def _fetch(source: epath.Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir() if source.exists() else ():
        if path.name in (CHECKPOINTS, RUNNING) or path == source:
            continue
        if path.is_dir():
            _fetch(path, target / path.name)
        else:
            _copy(path, target / path.name)


def _copy(source: Path | epath.Path, target: Path | epath.Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 1 << 24)


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and modification time of the complete files of a workdir."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK and not is_unfinished(path)]
    files = [path for path in files if not any(part.endswith(UNFINISHED_SUFFIX) for part in path.parts)]
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files}
