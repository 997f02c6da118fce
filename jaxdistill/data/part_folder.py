"""Stores a long table as a folder of parts, each written atomically, so that a restarted run computes only missing parts.

A folder holds files such as `part-00012-of-00340.npy`. All parts but the last have the same number of rows, and a part's bytes
depend only on its rows. So nothing is appended, locked or merged: each of n processes takes every n-th part, and two runs that
write the same folder write the same files.

A hidden folder `.jaxdistill` describes the parts: `origin.json` has everything that
determines their content, `part-00012.json` the rows, counts and checksum of a complete part, and `index.json`, written last,
the same for all parts.
"""

import contextlib
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.cluster import processes
from jaxdistill.cluster.shared_folder import folder_owner
from jaxdistill.core import InputError
from jaxdistill.files import write_atomic, writing
from jaxdistill.paths import other_cache

ABOUT = ".jaxdistill/"
"""Subfolder of a folder of parts for everything that is not a part."""
INDEX, ORIGIN = f"{ABOUT}index.json", f"{ABOUT}origin.json"
PART = re.compile(r"part-\d+-of-\d+\.\w+")
DRAFT = "draft-"
READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Note(NamedTuple):
    """Description of a complete part."""

    rows: int
    checksum: int
    """CRC-32 of its file."""
    counts: Mapping[str, int]
    """Counts of its rows, such as truncated ones; the folder's counts are sums over its parts."""


class PartFolder:
    """A folder of parts, complete, unfinished or new."""

    def __init__(
        self,
        folder: Path,
        origin: Mapping[str, Any],
        *,
        rows: int,
        part_rows: int,
        suffix: str,
    ):
        """Keeps intact parts of the same origin and removes all others; all processes of a run call this together.

        Processes that see the same folder share its parts. If hosts have separate folders, each folder gets all parts.

        Args:
          folder: holds the parts; made if it does not exist.
          origin: everything that determines the content, as JSON values.
          rows: rows of the whole table.
          part_rows: rows of each part but the last.
          suffix: suffix of the parts' names.

        Raises:
          InputError: the folder cannot be written, or holds files that are not parts.
        """
        self.folder, self.rows, self.part_rows, self.suffix = folder, rows, part_rows, suffix
        self.origin = json.loads(json.dumps({**origin, "rows": rows, "part_rows": part_rows}))
        group = self._group()
        self.is_shared = len(group) == processes.count()
        """Whether all processes of the run see the folder."""
        self._turn, self._turns = group.index(processes.index()), len(group)
        if self.is_first:
            with self._writing(ORIGIN):
                self._begin()
        processes.wait("the folder is ready")
        self.is_complete = (folder / INDEX).exists()
        """Whether all parts were there and intact when the folder was opened."""
        self._there = {part for part, note in enumerate(self._notes()) if note}

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that are not parts."""
        return self._turn == 0

    @property
    def count(self) -> int:
        """Number of parts."""
        return -(-self.rows // self.part_rows)

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / self._name(part)

    def rows_of(self, part: int) -> range:
        """The rows of a part."""
        return range(part * self.part_rows, min((part + 1) * self.part_rows, self.rows))

    @property
    def rows_there(self) -> int:
        """Rows of the parts that existed when the folder was opened."""
        return sum(len(self.rows_of(part)) for part in self._there)

    @property
    def rows_to_write(self) -> int:
        """Rows of the parts that this process had to write when the folder was opened."""
        return sum(len(self.rows_of(part)) for part in self._own())

    def missing(self) -> Iterator[int]:
        """Yields the parts that this process has to write; skips those that another run has written meanwhile."""
        return (part for part in self._own() if self.noted(part) is None)

    def write(self, part: int, save: Callable[[Path], object], counts: Mapping[str, int] | None = None) -> None:
        """Writes a part atomically.

        Args:
          save: writes the part to the given path.
          counts: counts of its rows, which `finish` sums.

        Raises:
          InputError: the part cannot be written.
        """
        name = self._name(part)
        # The writer's number keeps apart two runs that write the same part.
        draft = self.folder / f"{ABOUT}{DRAFT}{processes.index()}-{os.getpid()}-{name}"
        try:
            with self._writing(name):
                try:
                    save(draft)
                    note = Note(len(self.rows_of(part)), checksum(draft), dict(counts or {}))
                    draft.replace(self.path(part))
                except FileNotFoundError:
                    if self.noted(part) is None:
                        raise
                    return  # another run has finished the folder and removed all drafts
                # The note comes last: a part without one does not count as written.
                self._write_json(self._note(part), note._asdict())
        finally:
            draft.unlink(missing_ok=True)

    def finish(self) -> Counter[str]:
        """Writes the index after all processes have written their parts; all must call this. Returns the summed counts."""
        processes.wait("all parts are written")
        if self.is_first and not self.is_complete:
            notes = self._notes()
            if lacking := [part for part, note in enumerate(notes) if note is None]:
                raise InputError(f"{self.path(lacking[0])} is missing; give the same command again.")
            with self._writing(INDEX):
                parts = [{"name": self._name(part)} | note._asdict() for part, note in enumerate(notes) if note]
                self._write_json(INDEX, {"origin": self.origin, "parts": parts})
                self._remove(*(self.folder / ABOUT).glob(f"{DRAFT}*"))
        processes.wait("the index is written")
        return self.counts()

    def counts(self) -> Counter[str]:
        """Counts summed over all complete parts, and their `rows`."""
        total = Counter({"rows": 0})
        for note in self._notes():
            if note:
                total.update({"rows": note.rows, **note.counts})
        return total

    def noted(self, part: int) -> Note | None:
        """The note of a part; None if the part is not complete."""
        try:
            return Note(**json.loads((self.folder / self._note(part)).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def discard(self) -> None:
        """Removes all parts."""
        # Parts first: if this is killed, parts without a description would be refused as files of the user.
        self._remove(*self._parts_there(), *self._described())
        for folder in (self.folder / ABOUT, self.folder):
            with contextlib.suppress(OSError):  # it holds files of the user
                folder.rmdir()

    def discard_unless(self, check: Callable[[], None]) -> None:
        """Removes all parts if `check` raises an `InputError`: they may hold another text than their origin names."""
        try:
            check()
        except InputError:
            self.discard()
            raise

    def _own(self) -> list[int]:
        """The parts that this process had to write when the folder was opened."""
        return [part for part in range(self._turn, self.count, self._turns) if part not in self._there]

    def _group(self) -> list[int]:
        """The processes that see the same folder as this one."""
        everyone = [*range(processes.count())]
        if len(everyone) == 1:
            return everyone
        owners = processes.gathered(folder_owner(self.folder))
        if len({*owners}) > 1 and processes.is_first():
            said = (
                "not all processes see %s, so each folder of that name gets all parts; one that all see splits the work"
            )
            log.info(said, self.folder)
        return [number for number in everyone if owners[number] == owners[processes.index()]]

    def _begin(self) -> None:
        """Removes parts of another origin and damaged ones; notes the origin."""
        noted = read_origin(self.folder)
        is_described, others = any(self._described()), self.folder.glob("[!.]*")
        if noted is None and not is_described and any(others):
            raise InputError(f"{self.folder} holds files that are not parts of this program; name another folder.")
        if noted != self.origin:
            if self._parts_there():
                other = noted and f"was made from other inputs ({changes(noted, self.origin)})"
                log.warning("%s %s; starting over", self.folder, other or f"has no readable {ORIGIN}")
            self.discard()
            (self.folder / ABOUT).mkdir(parents=True, exist_ok=True)
            self._write_json(ORIGIN, self.origin)
            return
        lacking, damaged = False, []
        for part, note in enumerate(self._notes()):
            lacking |= note is None
            if note and not (self.path(part).is_file() and checksum(self.path(part)) == note.checksum):
                log.warning("%s is damaged; writing it again", self.path(part))
                damaged += [self.folder / self._note(part), self.path(part)]
        if lacking or damaged:
            self._remove(self.folder / INDEX, *damaged)

    def _notes(self) -> list[Note | None]:
        """The note of each part; None for a part without one."""
        return list(map(self.noted, range(self.count)))

    def _parts_there(self) -> list[Path]:
        return [path for path in self.folder.glob("*") if PART.fullmatch(path.name)]

    def _described(self) -> list[Path]:
        return list((self.folder / ABOUT).glob("*"))

    @staticmethod
    def _remove(*paths: Path) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def _name(self, part: int) -> str:
        return f"part-{part:05d}-of-{self.count:05d}{self.suffix}"

    def _note(self, part: int) -> str:
        return f"{ABOUT}part-{part:05d}.json"

    def _write_json(self, name: str, content: object) -> None:
        write_atomic(self.folder / name, json.dumps(content, indent=1) + "\n")

    def _writing(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Turns OS errors into an `InputError` of one line."""
        return writing(self.folder / name, other_cache(self.folder))


def read_origin(folder: Path) -> dict[str, Any] | None:
    """What the parts of a folder were made from; None if it is not a folder of parts."""
    try:
        return dict(json.loads((folder / ORIGIN).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describes how two origins differ."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {_shown(old.get(name))}, is {_shown(new.get(name))}" for name in names)


def _shown(value: Any) -> str:
    """A value of an origin: names in full, and the start of a digest."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else f"{value!s:.12}"


def checksum(path: Path) -> int:
    """CRC-32 of a file; also flushes the file to disk, so that a note never outlives its part."""
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            crc = zlib.crc32(block, crc)
        os.fsync(file.fileno())
    return crc
