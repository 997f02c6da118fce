"""Keeps a long table as a folder of parts, each written whole, so that a killed run goes on with the parts that are missing.

A folder holds files such as `part-00012-of-00340.npy`. All parts but the last have the same number of rows, and the bytes of
one depend on its rows alone. So nothing is appended, locked or merged: the processes of a run take every n-th part, and two
runs that write the same folder write the same files.

The hidden folder `.jaxdistill` inside, which readers of Parquet folders pass over, says what the parts are: `origin.json` what
determines their content, `part-00012.json` the rows, counts and checksum of one, and `index.json`, written last, of all.
"""

import json
import logging
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill import processes
from jaxdistill.core import InputError
from jaxdistill.files import unwritable, write_atomic

ABOUT = ".jaxdistill"
"""Folder, inside one of parts, of what is no part."""
INDEX, ORIGIN = "index.json", "origin.json"
READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Note(NamedTuple):
    """What is known of a complete part."""

    rows: int
    checksum: int
    """CRC-32 of its file."""
    counts: Mapping[str, int]
    """Of its rows, such as truncated ones; their sums are those of the folder."""


class PartFolder:
    """A folder of parts, complete, unfinished or new."""

    def __init__(
        self, folder: Path, origin: Mapping[str, Any], *, rows: int, part_rows: int, suffix: str, alone: bool = False
    ):
        """Keeps the intact parts of the same origin and removes others; all processes of a run call this together.

        Args:
          folder: holds the parts; made if it does not exist.
          origin: everything that determines the content, as JSON values.
          rows: of the whole table.
          part_rows: of each part but the last.
          suffix: of the parts' names.
          alone: whether this process writes all parts; otherwise the processes of the run, which see the folder, share them.

        Raises:
          InputError: the folder cannot be written.
        """
        self.folder, self.rows, self.part_rows, self.suffix = folder, rows, part_rows, suffix
        self.origin = json.loads(json.dumps({**origin, "rows": rows, "part_rows": part_rows}))
        self._turn, self._turns = (0, 1) if alone else (processes.index(), processes.count())
        self._alone = alone
        if self._turn == 0:
            try:
                self._begin()
            except OSError as error:
                raise unwritable(folder, error) from error
        self._wait("the folder is ready")

    @property
    def count(self) -> int:
        """Number of parts."""
        return -(-self.rows // self.part_rows)

    def path(self, part: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{part:05d}-of-{self.count:05d}{self.suffix}"

    def rows_of(self, part: int) -> range:
        """The rows of a part."""
        return range(part * self.part_rows, min((part + 1) * self.part_rows, self.rows))

    @cached_property
    def is_complete(self) -> bool:
        """Whether all parts were there and intact when the folder was opened."""
        return self._about(INDEX).exists()

    def missing(self) -> Iterator[int]:
        """Yields the parts that this process has to write; looks for each when its turn comes."""
        return (part for part in range(self._turn, self.count, self._turns) if not self.path(part).exists())

    def write(self, part: int, save: Callable[[Path], object], counts: Mapping[str, int] | None = None) -> None:
        """Writes a part whole, or not at all.

        Args:
          save: writes the file of the given path.
          counts: of its rows, for `finish`.

        Raises:
          InputError: it cannot be written.
        """
        path = self.path(part)
        # The writer's number keeps apart two runs that write the same part.
        draft = self._about(f"{path.stem}.{self._turn}.{os.getpid()}{self.suffix}")
        try:
            save(draft)
            note = Note(len(self.rows_of(part)), checksum(draft), dict(counts or {}))
            write_atomic(self._note(part), json.dumps(note._asdict()))
            draft.replace(path)  # after its note, so that a part that exists has one
        except OSError as error:
            raise unwritable(path, error) from error
        finally:
            draft.unlink(missing_ok=True)

    def finish(self) -> Counter[str]:
        """Writes the index when all processes have written their parts, which all call this; returns the sums of all counts."""
        self._wait("all parts are written")
        if self._turn == 0 and not self._about(INDEX).exists():
            notes = [self.noted(part) for part in range(self.count)]
            if lacking := [part for part, note in enumerate(notes) if note is None or not self.path(part).exists()]:
                raise InputError(f"{self.path(lacking[0])} is missing; give the same command again.")
            parts = [note._asdict() for note in notes if note]
            try:
                write_atomic(self._about(INDEX), json.dumps({"origin": self.origin, "parts": parts}, indent=1) + "\n")
                for part in range(self.count):
                    self._note(part).unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(self._about(INDEX), error) from error
        self._wait("the index is written")
        return self.counts()

    def counts(self) -> Counter[str]:
        """The sums of the counts of all complete parts, and `rows`."""
        total = Counter({"rows": 0})
        for part in range(self.count):
            if note := self.noted(part):
                total.update({"rows": note.rows, **note.counts})
        return total

    def noted(self, part: int) -> Note | None:
        """What is known of a part; None if it is not complete."""
        if self._about(INDEX).exists():
            return Note(**json.loads(self._about(INDEX).read_text("utf-8"))["parts"][part])
        try:
            return Note(**json.loads(self._note(part).read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _begin(self) -> None:
        """Removes parts of another origin, and damaged ones."""
        self._about("").mkdir(parents=True, exist_ok=True)
        noted = read_origin(self.folder)
        if noted != self.origin:
            if noted is not None:
                log.warning(
                    "%s was made from other inputs (%s); starting over", self.folder, changes(noted, self.origin)
                )
            for path in self.folder.glob("part-*"):
                path.unlink()
            shutil.rmtree(self._about(""))
            self._about("").mkdir()
            write_atomic(self._about(ORIGIN), json.dumps(self.origin, indent=1) + "\n")
        damaged = [part for part in range(self.count) if not self._is_intact(part)]
        if damaged and self._about(INDEX).exists():
            for part in {*range(self.count)} - {*damaged}:
                write_atomic(self._note(part), json.dumps(self.noted(part)._asdict()))  # type: ignore[union-attr]
            self._about(INDEX).unlink()
        for part in damaged:
            if self.path(part).exists():
                log.warning("%s is damaged; writing it again", self.path(part))
                self.path(part).unlink()

    def _is_intact(self, part: int) -> bool:
        note = self.noted(part)
        return note is not None and self.path(part).exists() and checksum(self.path(part)) == note.checksum

    def _note(self, part: int) -> Path:
        return self._about(f"part-{part:05d}.json")

    def _about(self, name: str) -> Path:
        return self.folder / ABOUT / name

    def _wait(self, what: str) -> None:
        if not self._alone:
            processes.gathered(what)


def read_origin(folder: Path) -> dict[str, Any] | None:
    """What the parts of a folder were made from; None if it is no folder of parts."""
    try:
        return dict(json.loads((folder / ABOUT / ORIGIN).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describes the differences of two origins."""
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return ", ".join(f"{name} was {old.get(name)!s:.12}, is {new.get(name)!s:.12}" for name in names)


def checksum(path: Path) -> int:
    """CRC-32 of a file."""
    found = 0
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            found = zlib.crc32(block, found)
    return found
