"""Computes the missing parts of a folder; a signal stops it with a line that says how much is done."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from jaxdistill.bars import Advance, progress_bar
from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data.part_folder import PartFolder
from jaxdistill.data.sources import Watched
from jaxdistill.files.buckets import Bucket

Made = tuple[Callable[[Path], object], Mapping[str, int]]
"""The function that writes a part's file, and counts of its rows: arguments of `PartFolder.write`."""


def fill(
    parts: PartFolder,
    taken: Callable[[range], Sequence[Any]],
    make: Callable[[range, Sequence[Any], Advance], Made],
    *,
    unit: str,
    shown: bool | str,
) -> Mapping[str, int]:
    """Computes and writes the missing parts; returns the counts summed over all parts. All processes call this together.

    Args:
      taken: returns the input of a range of rows; called with rising ranges.
      make: computes a part from its rows' numbers and input. After a signal, its `advance` raises `Interrupted`.
      unit: what a row is, such as `sentences`, for the progress bar and the error.
      shown: as in `progress_bar`; the first process shows its own share.

    Raises:
      Interrupted: after a signal; parts already written stay.
    """
    if not parts.is_complete:
        total, shown = parts.rows_there + parts.rows_to_write, processes.is_first() and shown
        with Interrupts() as interrupts, progress_bar(total, unit, shown=shown) as bar:

            def advance(rows: int) -> None:
                bar.update(rows)
                if interrupts.status:
                    line = f"{parts.counts()['rows']:,} of {parts.rows:,} {unit} are done"
                    raise Interrupted(interrupts.status, f": {line}; give the same command again to continue")

            advance(parts.rows_there)
            for part in parts.missing():
                rows = parts.rows_of(part)
                parts.write(part, *make(rows, taken(rows), advance))
    return parts.finish()


def filled_from_text(
    place: Path | Bucket,
    origin: Mapping[str, Any],
    text: Watched,
    rows: Callable[[], Iterable[Any]],
    make: Callable[[range, Sequence[Any], Advance], Made],
    *,
    part_rows: int,
    shown: bool,
) -> PartFolder:
    """A folder of `.parquet` parts computed from a text; writes the missing ones.

    Args:
      rows: returns an iterator over the text's rows; called twice.
      make, shown: as in `fill`.

    Raises:
      InputError: the text has no rows or changes meanwhile, or the processes do not share the folder.
    """
    count = sum(1 for _ in rows())
    if not count:
        raise InputError("the text has only white space; give another --input.")
    parts = PartFolder(place, origin, rows=count, part_rows=part_rows, suffix=".parquet")
    if not parts.is_shared:
        raise InputError(f"{place} must be on a file system that all processes share; choose another --output.")

    def make_unchanged(numbers: range, taken: Sequence[Any], advance: Advance) -> Made:
        made = make(numbers, taken, advance)
        text.check()
        return made

    fill(parts, _taken_from(rows(), text), make_unchanged, unit="sentences", shown=shown)
    parts.discard_unless(text.check_content)
    return parts


def _taken_from(rows: Iterable[Any], text: Watched) -> Callable[[range], Sequence[Any]]:
    """Returns a function that takes ranges of rows, in rising order, from one pass over the text."""
    rest, at = iter(rows), 0

    def taken(wanted: range) -> Sequence[Any]:
        nonlocal at
        chosen = list(islice(rest, wanted.start - at, wanted.stop - at))
        at = wanted.stop
        if len(chosen) < len(wanted):
            text.check()
            raise InputError(f"the text has fewer than {wanted.stop:,} rows now; give the same command again.")
        return chosen

    return taken
