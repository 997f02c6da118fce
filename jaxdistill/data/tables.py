"""Writes a `.tsv` table atomically, with a note of its inputs, so that it is neither made twice nor overwritten."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jaxdistill.core import InputError
from jaxdistill.data.part_folder import changes, checksum
from jaxdistill.files import drafted, write_atomic, writing


def finished(path: Path, origin: Mapping[str, object]) -> Mapping[str, int] | None:
    """The counts in an existing table's note; None if the table does not exist yet.

    Args:
      origin: everything that determines the content, as JSON values.

    Raises:
      InputError: the table was made from other inputs or by another program, or was changed.
    """
    if not path.exists():
        return None
    try:
        note = json.loads(_note(path).read_text("utf-8"))
        made_from, counts, noted = dict(note["origin"]), dict(note["counts"]), int(note["checksum"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} exists without a valid {_note(path).name}; move it, or choose another file."
        ) from None
    refuse_changes(path, made_from, origin)
    if checksum(path) != noted:
        raise InputError(f"{path} was changed after it was written; delete it to make it again.")
    return counts


def refuse_changes(path: Path | str, made_from: Mapping[str, object], origin: Mapping[str, object]) -> None:
    """Raises `InputError` if the file at `path` was made from other inputs."""
    if differ := changes(made_from, json.loads(json.dumps(origin))):
        raise InputError(f"{path} was made from other inputs ({differ}); move it, or choose another file.")


def write_table(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    origin: Mapping[str, object],
    counts: Mapping[str, int],
) -> None:
    """Writes a table and its note; raises `InputError` if they cannot be written.

    Args:
      origin, counts: stored in the note, see `finished`.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            with open(draft, "w", encoding="utf-8", newline="\n") as file:
                file.write("\t".join(columns) + "\n")
                file.writelines("\t".join(map(one_line, row)) + "\n" for row in rows)
            write_note(path, draft, origin, counts)


def write_note(path: Path, draft: Path, origin: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Writes the note of `path`, whose content is still in `draft`; raises `OSError`."""
    note = {"origin": origin, "counts": counts, "checksum": checksum(draft)}
    write_atomic(_note(path), json.dumps(note, indent=1) + "\n")


def one_line(text: str) -> str:
    """`text` as one table cell: runs of tabs and line ends become one space."""
    return re.sub(r"[\t\r\n]+", " ", text)


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".json")
