"""Writes long files in chunks, with a note of what is complete, so that a killed program continues.

The note holds everything that determines the content, the number of complete bytes, their checksum, and counts for a
summary. It is replaced atomically after a chunk is on disk; bytes after the complete ones are overwritten. One program
writes at a time: another one that needs the same file waits, and continues from where the first stopped.
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
    """Description of a growing file."""

    origin: dict[str, object]
    """Everything that determines the content."""
    counts: Counter[str]
    """Totals over all chunks so far, among them `rows` and `bytes`."""
    checksum: int
    """CRC-32 of the complete bytes."""


class GrowingFile:
    """A file that grows in chunks, and its note."""

    def __init__(self, path: Path, note: Path, origin: Mapping[str, object]):
        """
        Args:
          path: path of the file.
          note: path of its note.
          origin: everything that determines the content, as JSON values.
        """
        self.path, self.note, self.origin = path, note, dict(origin)
        self.counts: Counter[str] = Counter()
        self._checksum = 0
        # One lock per path in this process; otherwise it could wait for itself after an error.
        self._lock = FileLock(path.with_name(path.name + ".lock"), is_singleton=True, thread_local=False)

    def noted(self) -> Note | None:
        """Reads the note of an earlier run; None without a valid one."""
        try:
            noted = json.loads(self.note.read_text("utf-8"))
            return Note(dict(noted["origin"]), Counter(noted["counts"]), int(noted["checksum"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def lock(self) -> None:
        """Acquires the write lock, and waits for another program that holds it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # NOTE: the lock would wait forever in a folder that accepts no files, such as /proc.
            tempfile.TemporaryFile(dir=self.path.parent).close()
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                log.warning("another program is writing %s; waiting for it", self.path)
                self._lock.acquire()
        except OSError as error:
            raise unwritable(self.path, error) from error

    def unlock(self) -> None:
        """Releases the write lock."""
        self._lock.release(force=True)
        with contextlib.suppress(OSError):
            Path(self._lock.lock_file).unlink()

    def take_up(self, noted: Note, path: Path) -> bool:
        """Continues after the noted bytes; returns False if `path` does not begin with them."""
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
        """Describes the differences to another origin; empty if there are none."""
        names = [name for name in {**origin, **self.origin} if origin.get(name) != self.origin.get(name)]
        return ", ".join(f"{name} was {origin.get(name)!s:.12}, is {self.origin.get(name)!s:.12}" for name in names)

    def begin(self) -> None:
        """Creates an empty file and note, so that write errors appear before long work."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write_note()
            self.path.write_bytes(b"")
        except OSError as error:
            raise unwritable(self.path, error) from error

    def append(self, content: bytes, counts: Mapping[str, int]) -> None:
        """Appends a chunk, and updates the note once the chunk is on disk.

        NOTE: not memory-mapped, because writing to a map on a full disk kills the process without an error.
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
    """A `.tsv` file that grows in chunks; continues an unfinished one.

    Rows are written to `FILE.partial`, which is renamed to `FILE` at the end; the note `FILE.json` stays beside it.
    """

    def __init__(self, path: Path, columns: Sequence[str], origin: Mapping[str, object]):
        """
        Args:
          path: path of the finished table.
          columns: names in the header.
          origin: everything that determines the rows, as JSON values.

        Raises:
          InputError: the path holds another file, or a table with another origin.
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
        """Totals over all chunks so far, among them `rows` and `bytes`."""
        return self.file.counts

    def begin(self) -> None:
        """Creates the files of a new table, so that write errors appear before long work."""
        if not self.counts["rows"]:
            self.file.begin()

    def append(self, rows: Sequence[Sequence[str]], counts: Mapping[str, int]) -> None:
        """Appends rows, and updates the note once they are on disk."""
        lines = rows if self.counts["bytes"] else [self.columns, *rows]
        text = "".join("\t".join(map(one_line, line)) + "\n" for line in lines)
        self.file.append(text.encode(), {"rows": len(rows), **counts})

    def finish(self) -> None:
        """Renames the finished table to its final name."""
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.complete = True
        self.file.unlock()

    def _take_up(self) -> None:
        """Reads the note; raises `InputError` for rows of another origin."""
        there = self.path if self.complete else self.partial
        noted = self.file.noted()
        if noted is None:
            raise InputError(f"{there} exists without a valid {self.file.note.name}; move it, or choose another file.")
        if not self.complete and not noted.counts["rows"]:
            return
        if changes := self.file.changes(noted.origin):
            raise InputError(f"{there} was made from other inputs ({changes}); move it, or choose another file.")
        is_longer = self.complete and there.stat().st_size > noted.counts["bytes"]
        if is_longer or not self.file.take_up(noted, there):
            raise InputError(f"{there} was changed after it was written; delete it to make it again.")


def one_line(text: str) -> str:
    """`text` as one table cell: runs of tabs and line ends become one space."""
    return re.sub(r"[\t\r\n]+", " ", text)
