"""Lays out, locks and checks the workdir, the folder of a run on a disk or at `gs://`.

In a bucket, Orbax reads and writes the checkpoints itself. Each process has the other files in its cache folder. The first process
copies new files to the bucket before each checkpoint and at the end, and a start fetches them, so a killed run continues on an empty
machine. Stores have no locks, so a training rewrites a note there every few seconds, and refuses to start while another run does.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath
from filelock import FileLock, Timeout
from fsspec.config import conf

from jaxdistill.config import flat, nested, parse_config
from jaxdistill.config.options import EXTENSIONS, Config
from jaxdistill.core import InputError, InUseError, errors_of, first_few
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import MARK, UNFINISHED_SUFFIX, changed_files, is_remote, local, read_json, write_atomic
from jaxdistill.core.files.buckets import address_digest, checked_address, objects, store_errors
from jaxdistill.core.paths import cache_folder

EXPORT = "export"
STUDENT = "student"
"""Folder of the untrained student, whose parameters have the checkpoints' names and shapes."""
CHECKPOINTS = "checkpoints"
CONFIG, RESULTS, METRICS, LOG = "config.json", "results.json", "metrics.jsonl", "train.log"
"""Files with the options of the run, its final scores, its curves, and its output with times."""
LOCK = ".lock"
"""File that a run keeps locked, and whose content names the run. The lock ends with the process."""
RUNNING = "running.json"
"""Note of a run that uses a workdir in a bucket."""
INPUTS = "inputs.json"
"""File with digests of the run's inputs, and with the following entries."""
TEXT_FILES = "content of the files of data.text"
DEV_SCORE = "dev score"
"""The metric that chooses the best checkpoint."""
LENGTH = "data.max_length"
"""The maximum length, even if it was chosen from the text."""
STEPS = "run.steps"
"""The number of steps, only for `run.minutes`."""
RENEW_SECONDS, DEAD_SECONDS = 15.0, 60.0
"""Interval at which a run rewrites its note in a bucket, and the age of a note at which its run counts as dead."""
STAGE_NAME = re.compile(r"previous|stage(\d+)")
"""Names by which a stage refers to the export of an earlier one."""

log = logging.getLogger(__name__)


def stage_folder(workdir: Path, number: int) -> Path:
    """The workdir of one stage, counted from 1."""
    return workdir / f"stage{number}"


def stage_folders(workdir: Path, count: int) -> list[Path]:
    """The workdirs of `count` stages; a single stage has the training's own."""
    return [workdir] if count == 1 else [stage_folder(workdir, number) for number in range(1, count + 1)]


def stage_named(name: str, current: int) -> int:
    """The number of the stage that `previous` or `stage3` refers to from stage `current`; 0 for other names."""
    match = STAGE_NAME.fullmatch(name)
    return int(match[1] or current - 1) if match else 0


def stage_export(name: str, workdir: Path) -> str:
    """The export that `previous` or `stage3` refers to from the stage in `workdir`; other names are returned unchanged."""
    number = stage_named(name, stage_named(workdir.name, 0))  # the folders of stages have such names too
    return str(stage_folder(workdir.parent, number) / EXPORT) if STAGE_NAME.fullmatch(name) else name


def read_config(workdir: Path) -> Config | None:
    """The config of the run in a workdir; None for a new workdir."""
    path = workdir / CONFIG
    with errors_of(f"{path} was written by another version of this program; use another --workdir"):
        return parse_config(read_note(path)) if path.exists() else None


def read_note(path: Path) -> dict[str, Any]:
    """The content of a JSON file; an empty mapping if the file does not exist."""
    return read_json(path) if path.is_file() else {}


def check_workdir(workdir: Path, config: Config) -> Config | None:
    """Raises `InputError` if the workdir belongs to a training with other options, or holds other files. Returns the config of the
    last start in it; None for a new workdir."""
    if any(character in str(workdir.absolute()) for character in "[\\"):
        raise InputError(f"--workdir={workdir}: Orbax takes [ and \\ for patterns, finds nothing; name another folder.")
    before = read_config(workdir)
    if before is not None:
        then = flat(before)
        now = flat(config)
        changed = [key for key in sorted({*then, *now}) if then.get(key) != now.get(key) and key not in EXTENSIONS]
        if changed:
            shown = first_few([f"{key}: {then.get(key)!r} there, {now.get(key)!r} now" for key in changed])
            raise InputError(f"{workdir} has another config ({shown}); use the same options or another --workdir.")
    elif workdir.exists() and any(path.name != LOCK and path.suffix != UNFINISHED_SUFFIX for path in workdir.iterdir()):
        # A start that was killed before it wrote its config may have left its lock and an unfinished file.
        raise InputError(f"{workdir} is not empty and not a workdir of this program; use another --workdir.")
    return before


def write_config(workdir: Path, config: Config) -> None:
    """Creates the workdir, and writes the config of a start to it; raises `InputError` like `check_workdir`. Call it under the lock."""
    check_workdir(workdir, config)  # again, because another training may have begun here since the first check
    workdir.mkdir(parents=True, exist_ok=True)
    write_atomic(workdir / CONFIG, json.dumps(nested(config), indent=2))


def refuse_other_inputs(workdir: Path, inputs: Mapping[str, str]) -> None:
    """Raises `InputError` if the run in the workdir began with other inputs."""
    before = read_note(workdir / INPUTS)
    for name, value in inputs.items():
        if before.get(name, value) != value:
            reason = " (JAXDISTILL_DATA decides it)" if name == DEV_SCORE else ""
            raise InputError(
                f"the {name} has changed since {workdir} was started ({before[name]} then, {value} now); restore it{reason}, or give "
                "another --workdir."
            )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Creates the folder and holds its lock in the block; raises `InUseError`, with host, pid and start, if another run holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = path.read_text(encoding="utf-8") or "another run"
        raise InUseError(f"{folder} is in use by {holder}; wait until it ends, or give another folder.") from None
    except OSError as error:  # a file system without locks
        log.warning("%s cannot be locked (%s): start no second run in it", folder, error.strerror)
    path.write_text(this_run(), encoding="utf-8")
    try:
        yield
    finally:
        lock.release()


def this_run() -> str:
    """Names this process in messages of other runs."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return f"another run (pid {os.getpid()} on {socket.gethostname()}, started {now})"


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The folder of a training or of one of its stages."""

    folder: Path
    """Local files; for a workdir in a bucket, this process's copy of all but the checkpoints."""
    bucket: epath.Path | None = None
    """The workdir's address; None for a local one."""
    copied: dict[Path, tuple[int, int]] = dataclasses.field(default_factory=dict)
    """Size and modification time of each local file that is also in the bucket."""

    @property
    def checkpoints(self) -> epath.Path:
        """Folder of the checkpoints, on the disk or in the bucket."""
        return (self.bucket or epath.Path(self.folder.absolute())) / CHECKPOINTS

    def stage(self, number: int) -> "Workdir":
        """The workdir of one stage, counted from 1."""
        folder = stage_folder(self.folder, number)
        return dataclasses.replace(self, folder=folder, bucket=self.bucket and self.bucket / folder.name)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder, in the first process, for the block. Raises `InputError` if another process sees another folder, unless the
        workdir is in a bucket, of which each process has its own copy."""
        with locked(self.folder) if processes.is_first() else contextlib.nullcontext():
            processes.wait("the folder is locked")
            path = self.folder / LOCK
            holders = processes.gathered(path.read_text(encoding="utf-8") if path.exists() else "")
            if self.bucket is None and len({*holders}) > 1:
                raise InputError(f"{self.folder} must be one folder for all processes, on a shared file system.")
            yield

    def upload(self) -> None:
        """Copies new and changed files to the bucket, in the first process only; does nothing for a local workdir."""
        if self.bucket is None or not processes.is_first():
            return
        states = _states(self.folder)
        changed = [path for path, state in states.items() if self.copied.get(path) != state]
        with store_errors(str(self.bucket)):
            # First the config, which claims the bucket; then markers, by which `download` finds incomplete exports; then by time.
            for path in sorted(changed, key=lambda path: (path.name != CONFIG, path.name != MARK, states[path][1])):
                _copy(path, self.bucket / path.relative_to(self.folder).as_posix())
        self.copied.update(states)

    def download(self) -> None:
        """Replaces the local files by those in the bucket, without incomplete exports; does nothing for a local workdir."""
        if self.bucket is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        _, versions_by_address = objects(str(self.bucket))
        for address in versions_by_address:
            name = address.removeprefix(f"{self.bucket}/")
            if not {CHECKPOINTS, RUNNING} & {*name.split("/")}:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                with store_errors(address):
                    _copy(epath.Path(address), self.folder / name)
        for export in [path.parent for path in self.folder.rglob(MARK)]:
            if changed_files(export):
                shutil.rmtree(export)
        self.copied.update(_states(self.folder))

    def share(self) -> None:
        """Gives the first process's files to the others, if the workdir is in a bucket; all processes call it together."""
        self.upload()
        processes.wait("the files are in the bucket")
        if not processes.is_first():
            self.download()
        processes.wait("all have fetched them")


@contextlib.contextmanager
def opened(workdir: str | Path, *, dry_run: bool) -> Iterator[Workdir]:
    """Yields the workdir of a run; one in a bucket is reserved, and its files are fetched first and uploaded at the end. All
    processes enter it together. Raises `InUseError` if another run uses the bucket, `InputError` if it holds other objects."""
    files = fetched(workdir) if dry_run else Workdir(local_folder(workdir), address_of(workdir))
    if dry_run or files.bucket is None:
        yield files
        return
    with _reserved(files.bucket) if processes.is_first() else contextlib.nullcontext():
        processes.wait("the bucket is reserved")
        files.download()
        try:
            yield files
        except BaseException:
            with contextlib.suppress(InputError):  # the error already raised is more informative
                files.upload()
            raise
        files.share()


def fetched(workdir: str | Path) -> Workdir:
    """A workdir for reading; its files in a bucket are copied first."""
    files = Workdir(local_folder(workdir, cache="fetched"), address_of(workdir))
    files.download()
    return files


def local_folder(workdir: str | Path, cache: str = "workdirs") -> Path:
    """The folder in which this process works; for a workdir in a bucket, this process's copy, below `cache` in the cache folder."""
    if not is_remote(workdir):
        return local(workdir, "--workdir")
    address = checked_address(str(workdir))
    return cache_folder() / cache / f"{address_digest(address)}-{processes.index()}" / Path(address).name


def address_of(workdir: str | Path) -> epath.Path | None:
    """The address of a workdir in a bucket, None for a local one; raises `InputError` for other stores than Google's."""
    if not is_remote(workdir):
        return None
    address = checked_address(str(workdir))
    if not address.startswith("gs://"):
        raise InputError(
            f"--workdir={address}: checkpoints are written to a disk or to gs://; give one of these, and copy the folder afterwards "
            "(`aws s3 sync`). Text and models may be in s3://."
        )
    # Cached listings would hide what other processes, and TensorStore, have written.
    conf.setdefault("gcs", {})["use_listings_cache"] = False
    return epath.Path(address)


@contextlib.contextmanager
def _reserved(bucket: epath.Path) -> Iterator[None]:
    """Keeps a note in the bucket that this run uses it; raises `InUseError` if another run is still rewriting its note."""
    path = bucket / RUNNING
    run = this_run()
    has_ended = threading.Event()

    def read_running() -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {}

    def renew() -> None:
        # Whole seconds, so that all notes of a run have one length: a reader asks for the length first.
        path.write_text(json.dumps({"run": run, "renewed": int(time.time())}))

    def keep_renewing() -> None:
        while not has_ended.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # the next attempt is soon enough
                renew()

    with store_errors(str(bucket)):
        names = {path.name for path in bucket.iterdir()} - {RUNNING} if bucket.exists() else set[str]()
        if names and not names & {CONFIG, stage_folder(Path(), 1).name}:
            raise InputError(f"{bucket} holds {min(names)} and is not a workdir; use another --workdir.")
        # The note of a run that ended well is gone. A run that still works rewrites its note; that of a dead one only gets older.
        found = note = read_running()
        if found:
            log.info("%s: waiting up to %d s for a sign of the run before", bucket, DEAD_SECONDS)
        while note and note == found and time.time() - note["renewed"] < DEAD_SECONDS:
            time.sleep(1.0)
            note = read_running()
        if note and note != found:
            raise InUseError(f"{bucket} is in use by {note['run']}; wait until it ends, or give another --workdir.")
        renew()
    thread = threading.Thread(target=keep_renewing, daemon=True, name="note")
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        with contextlib.suppress(Exception):  # if this fails, the next run waits until this one counts as dead
            path.unlink()


def _copy(source: Path | epath.Path, target: Path | epath.Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 1 << 24)


def _states(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and modification time of the complete files of a workdir."""
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK and not any(part.endswith(UNFINISHED_SUFFIX) for part in path.parts)
    }
