"""Writes long files in chunks, with a note of what is complete, so that a killed program continues.

The note holds what determines the content, how many bytes of it are sound and their checksum, and counts for a summary. It
is replaced in one move after a chunk is on the disk; what lies behind the sound bytes is written again. One program writes
at a time: another one that wants the same file waits, and takes up what the first has left.
"""

import contextlib
import json
import logging
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from jaxdistill.core import InputError
from jaxdistill.files import unwritable, write_atomic

READ_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Note(NamedTuple):
    """What is said of a file that grows."""

    origin: dict[str, object]
    """Everything that determines the content."""
    counts: Counter[str]
    """What the chunks so far add up to; `rows` and `bytes` among it."""
    checksum: int
    """CRC-32 of so many bytes."""


class GrowingFile:
    """A file that grows chunk by chunk, and its note."""

    def __init__(self, path: Path, note: Path, origin: Mapping[str, object]):
        """
        Args:
          path: of the file.
          note: of its note.
          origin: everything that determines the content, as JSON can hold it.
        """
        self.path, self.note, self.origin = path, note, dict(origin)
        self.counts: Counter[str] = Counter()
        self._checksum = 0
        # One lock a path in this process, which would otherwise wait for itself after an error.
        self._lock = FileLock(path.with_name(path.name + ".lock"), is_singleton=True, thread_local=False)

    def noted(self) -> Note | None:
        """What the run before noted; None without a sound note."""
        try:
            noted = json.loads(self.note.read_text("utf-8"))
            return Note(dict(noted["origin"]), Counter(noted["counts"]), int(noted["checksum"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def lock(self) -> None:
        """Waits until no other program writes the file; until `unlock`, none can."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # NOTE the lock waits for ever in a folder that takes no files, such as /proc.
            tempfile.TemporaryFile(dir=self.path.parent).close()
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                log.warning("another program is writing %s; waiting for it", self.path)
                self._lock.acquire()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def unlock(self) -> None:
        """Lets other programs write."""
        self._lock.release(force=True)
        with contextlib.suppress(OSError):
            Path(self._lock.lock_file).unlink()

    def take_up(self, noted: Note, path: Path) -> bool:
        """Goes on behind what was noted, if `path` begins with just those bytes."""
        checksum, missing = 0, noted.counts["bytes"]
        try:
            with open(path, "rb") as file:
                while block := file.read(min(missing, READ_BYTES)):
                    checksum, missing = zlib.crc32(block, checksum), missing - len(block)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        if missing or checksum != noted.checksum:
            return False
        self.counts, self._checksum = noted.counts, checksum
        return True

    def changes(self, origin: Mapping[str, object]) -> str:
        """What sets another origin apart from this one, for a reader; empty if nothing does."""
        names = [name for name in {**origin, **self.origin} if origin.get(name) != self.origin.get(name)]
        return ", ".join(f"{name} was {origin.get(name)!s:.12}, is {self.origin.get(name)!s:.12}" for name in names)

    def begin(self) -> None:
        """Makes file and note where there is no row yet, so that it shows early when they cannot be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write_note()
            self.path.write_bytes(b"")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def append(self, content: bytes, counts: Mapping[str, int]) -> None:
        """Writes a chunk behind those that are there, and notes it once it is on the disk.

        NOTE written, not mapped: a map onto a disk that runs full ends the process, without an error.
        """
        try:
            with open(self.path, "r+b") as file:
                file.seek(self.counts["bytes"])
                file.truncate()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self.counts.update({"bytes": len(content), **counts})
            self._checksum = zlib.crc32(content, self._checksum)
            self._write_note()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def _write_note(self) -> None:
        content = {"origin": self.origin, "counts": self.counts, "checksum": self._checksum}
        write_atomic(self.note, json.dumps(content, indent=1) + "\n")


class ResumableTable:
    """A `.tsv` file that grows chunk by chunk: as far as it was written, or a new one.

    Rows gather in `FILE.partial`, which becomes `FILE` at the end; the note `FILE.json` stays beside it.
    """

    def __init__(self, path: Path, columns: Sequence[str], origin: Mapping[str, object]):
        """
        Args:
          path: of the finished table.
          columns: the header.
          origin: everything that determines the rows, as JSON can hold it.

        Raises:
          InputError: something else is there under that name, or it was begun with another origin.
        """
        self.path, self.columns = path, columns
        self.partial, note = (path.with_name(path.name + suffix) for suffix in (".partial", ".json"))
        self.file = GrowingFile(self.partial, note, origin)
        if not path.exists():
            self.file.lock()
        self.complete = path.exists()
        if self.complete or self.partial.exists():
            self._take_up()
        if self.complete:
            self.file.unlock()

    @property
    def counts(self) -> Counter[str]:
        """What the chunks so far add up to; `rows` and `bytes` among it."""
        return self.file.counts

    def begin(self) -> None:
        """Makes the files where there is no row yet, so that it shows early when they cannot be written."""
        if not self.counts["rows"]:
            self.file.begin()

    def append(self, rows: Sequence[Sequence[str]], counts: Mapping[str, int]) -> None:
        """Writes a chunk behind those that are there, and notes it once it is on the disk."""
        lines = rows if self.counts["bytes"] else [self.columns, *rows]
        text = "".join("\t".join(map(one_line, line)) + "\n" for line in lines)
        self.file.append(text.encode(), {"rows": len(rows), **counts})

    def finish(self) -> None:
        """Gives the table its name."""
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.complete = True
        self.file.unlock()

    def _take_up(self) -> None:
        """Reads the note; refuses rows that are not those that are asked for."""
        there = self.path if self.complete else self.partial
        noted = self.file.noted()
        if noted is None:
            raise InputError(f"{there} exists, without a sound {self.file.note.name}; move it or name another file.")
        if not self.complete and not noted.counts["rows"]:
            return
        if changes := self.file.changes(noted.origin):
            raise InputError(f"{there} was made from something else ({changes}); move it or name another file.")
        is_longer = self.complete and there.stat().st_size > noted.counts["bytes"]
        if is_longer or not self.file.take_up(noted, there):
            raise InputError(f"{there} was changed after it was written; delete it to have it made again.")


def one_line(text: str) -> str:
    """`text` as a cell: what would end it or its row becomes one space."""
    return re.sub(r"[\t\r\n]+", " ", text)
