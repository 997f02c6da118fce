"""How is a long table written so that a killed program goes on? In chunks, with a note of what is there.

Rows gather in `FILE.partial`, which becomes `FILE` at the end. `FILE.json` holds what determines the rows, how many
bytes of them are sound, and counts for a summary; it stays beside the finished table.
"""

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxdistill.core import InputError


class ResumableTable:
    """A `.tsv` file that grows chunk by chunk: as far as it was written, or a new one."""

    def __init__(self, path: Path, columns: Sequence[str], origin: Mapping[str, object]):
        """
        Args:
          path: of the finished table.
          columns: the header.
          origin: everything that determines the rows, as JSON can hold it.

        Raises:
          InputError: something else is there under that name, or it was begun with another origin.
        """
        self.path, self.columns, self.origin = path, columns, dict(origin)
        self.partial, self.note = (path.with_name(path.name + suffix) for suffix in (".partial", ".json"))
        self.counts: Counter[str] = Counter()
        """What the chunks so far add up to; `rows` and `bytes` among it."""
        self.complete = path.exists()
        if self.complete or self.partial.exists():
            self._take_up()

    def begin(self) -> None:
        """Makes the files where there is no row yet, so that it shows early when they cannot be written."""
        if self.counts["rows"]:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write_note()
            self.partial.write_bytes(b"")
        except OSError as error:
            raise self._unwritable(error) from error

    def append(self, rows: Sequence[Sequence[str]], counts: Mapping[str, int]) -> None:
        """Writes a chunk behind those that are there, and notes it once it is on the disk."""
        lines = rows if self.counts["bytes"] else [self.columns, *rows]
        text = "".join("\t".join(map(one_line, line)) + "\n" for line in lines).encode()
        try:
            with open(self.partial, "r+b") as file:
                file.seek(self.counts["bytes"])
                file.truncate()
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self.counts.update({"rows": len(rows), "bytes": len(text), **counts})
            self._write_note()
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self) -> None:
        """Gives the table its name."""
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise self._unwritable(error) from error
        self.complete = True

    def _take_up(self) -> None:
        """Reads the note; refuses rows that are not those that are asked for."""
        there = self.path if self.complete else self.partial
        try:
            noted = json.loads(self.note.read_text("utf-8"))
            origin, counts = dict(noted["origin"]), Counter(noted["counts"])
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"{there} exists, without a sound {self.note.name}; move it or name another file."
            ) from None
        if not self.complete and not counts["rows"]:
            return
        other = [name for name in {**origin, **self.origin} if origin.get(name) != self.origin.get(name)]
        if other:
            changes = ", ".join(
                f"{name} was {origin.get(name)!s:.12}, is {self.origin.get(name)!s:.12}" for name in other
            )
            raise InputError(f"{there} was made from something else ({changes}); move it or name another file.")
        size = there.stat().st_size
        if size < counts["bytes"] or (self.complete and size != counts["bytes"]):
            raise InputError(f"{there} was changed after it was written; delete it to have it made again.")
        self.counts = counts

    def _write_note(self) -> None:
        """Replaces the note in one move."""
        draft = self.note.with_name(self.note.name + ".new")
        draft.write_text(json.dumps({"origin": self.origin, "counts": self.counts}, indent=1) + "\n", "utf-8")
        draft.replace(self.note)

    def _unwritable(self, error: OSError) -> InputError:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        return InputError(f"{self.path} could not be written: {reason}.")


def one_line(text: str) -> str:
    """`text` as a cell: what would end it or its row becomes one space."""
    return re.sub(r"[\t\r\n]+", " ", text)
