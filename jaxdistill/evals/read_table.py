"""Reads tables of evaluations; errors name the file and the line.

Tables are `.tsv` (quoted or not, see `text.table_rows`) or `.csv` (standard quoting), plain or `.gz`, in UTF-8.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import InputError
from jaxdistill.data.sources import errors_of_reading
from jaxdistill.data.text import opened
from jaxdistill.data.text import table_rows as rows_of_table

Row = tuple[int, list[str]]
"""Line and cells, without white space around them."""


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it is that part."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def table(path: Path, names: Sequence[str], *, without_header: bool = False) -> tuple[list[str], list[Row]]:
    """Names of a table's columns, and its rows.

    Args:
      names: columns that it needs.
      without_header: whether it may lack a header; it then has exactly these columns.

    Raises:
      InputError: a column is missing or appears twice, or a row has more or fewer cells than the table has columns.
    """
    rows = [(line, [cell.strip() for cell in cells]) for line, cells in table_rows(path)]
    header = [" ".join(cell.split()) for cell in rows[0][1]] if rows else []  # a quoted name may have several lines
    if without_header and not {*names} <= {name.lower() for name in header}:
        header = list(names)
    else:
        rows = rows[1:]
    header = [name.lower() for name in header] if without_header else header
    shown = ", ".join(header) or "none"
    if not {*names} <= {*header}:
        raise InputError(f"{path}: the columns are {shown:.200}; {' and '.join(names)} are needed.")
    if repeated := [name for name in names if header.count(name) > 1]:
        raise InputError(f"{path}: the column {repeated[0]!r} appears twice; rename one of them.")
    for line, cells in rows:
        if len(cells) != len(header):
            raise InputError(f"{path}:{line}: {len(cells)} fields, {len(header)} are expected ({shown:.200}).")
    return header, rows


def columns(path: str | Path, names: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line and cells of the named columns of each row; raises `InputError` like `table`, or if a cell is empty or no row."""
    header, rows = table(Path(path), names)
    order, chosen = [header.index(name) for name in names], []
    for line, cells in rows:
        chosen.append((line, tuple(cells[column] for column in order)))
        if "" in chosen[-1][1]:
            raise InputError(f"{path}:{line}: column {names[chosen[-1][1].index('')]} is empty.")
    if not chosen:
        raise InputError(f"{path}: the table has a header but no rows; at least one row is needed.")
    return chosen


def labelled(
    path: str | Path, sentences: Sequence[str], classes: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], list[tuple[str, ...]]]:
    """Class numbers and sentences of the rows of a table with a column `label` of class names.

    Args:
      sentences: names of the sentences' columns.
      classes: the class names; a class's number is its index.

    Raises:
      InputError: as `columns`, or a label that is not in `classes`.
    """
    rows = columns(path, ("label", *sentences))
    for line, (name, *_) in rows:
        if name not in classes:
            raise InputError(f"{path}:{line}: label {name!r:.40} is not one of {', '.join(classes)}.")
    return np.array([classes.index(name) for _, (name, *_) in rows]), [tuple(row) for _, (_, *row) in rows]


def table_rows(path: Path) -> Iterator[Row]:
    """Yields (line, cells) of each row of a `.tsv` or `.csv` file; skips blank rows."""
    suffix = table_suffix(path)
    if suffix not in (".tsv", ".csv"):
        raise InputError(f"{path}: a table is read from .tsv or .csv, plain or .gz; got {suffix or 'no suffix'!r}.")
    yield from ((line, cells) for line, cells in rows_of_table(path) if any(cell.strip() for cell in cells))


def table_suffix(path: Path) -> str:
    """The suffix in lower case, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each line of a text file, plain or `.gz`."""
    with errors_of_reading(path), opened(path) as file:
        for line, text in enumerate(file, start=1):
            yield line, text.rstrip("\r\n")
