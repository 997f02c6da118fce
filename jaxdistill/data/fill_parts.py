"""Computes the missing parts of a folder; a signal stops it with a line that says how much is done."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill.bars import Advance, progress_bar
from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.cluster import processes
from jaxdistill.data.part_folder import PartFolder

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
