"""Notes beside outputs that say what they were made from, so that none is made twice or overwritten; and `.tsv` tables."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxdistill.core import InputError
from jaxdistill.core.files import drafted, write_atomic, writing


def finished(path: Path, origin: Mapping[str, object]) -> Mapping[str, int] | None:
    """The counts in an existing file's note; None if the file does not exist yet.

    Args:
      origin: everything that determines the content, as JSON values.

    Raises:
      InputError: the file was made from other inputs or by another program.
    """
    if not path.exists():
        return None
    if not _note(path).exists():
        raise InputError(f"{path} exists without a valid {_note(path).name}; move it, or choose another file.")
    note = json.loads(_note(path).read_text("utf-8"))
    refuse_changes(path, note["origin"], origin)
    return note["counts"]


def refuse_changes(path: Path | str, made_from: Mapping[str, object], origin: Mapping[str, object]) -> None:
    """Raises `InputError` if the file at `path` was made from other inputs."""
    now = json.loads(json.dumps(origin))
    names = [name for name in {**made_from, **now} if made_from.get(name) != now.get(name)]
    if differ := ", ".join(f"{name} was {made_from.get(name)!s:.60}, is {now.get(name)!s:.60}" for name in names):
        raise InputError(f"{path} was made from other inputs ({differ}); move it, or choose another file.")


def write_note(path: Path, origin: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Writes the note of `path`, before the file itself appears; raises `OSError`."""
    write_atomic(_note(path), json.dumps({"origin": origin, "counts": counts}, indent=1) + "\n")


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    origin: Mapping[str, object],
    counts: Mapping[str, int],
) -> None:
    """Writes a `.tsv` table and its note; raises `InputError` if they cannot be written.

    Args:
      rows: runs of tabs and line ends in their cells become one space.
      origin, counts: stored in the note, see `finished`.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            with open(draft, "w", encoding="utf-8", newline="\n") as file:
                for row in (columns, *rows):
                    file.write("\t".join(re.sub(r"[\t\r\n]+", " ", cell) for cell in row) + "\n")
            write_note(path, origin, counts)


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".json")
