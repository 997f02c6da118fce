"""Reads tables of evaluations; errors name the file and the line.

Tables are `.tsv` (quoted or not, see `formats.tsv_rows`) or `.csv` (standard quoting), plain or `.gz`, in UTF-8.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import InputError
from jaxdistill.data.formats import quoted_rows, tsv_rows
from jaxdistill.files import reading


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it is that part."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def columns(path: str | Path, names: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yields (line, cells) of the named columns of a table with a header, without white space around cells.

    Raises:
      InputError: a column is missing, a line has more or fewer fields than the header or an empty cell, or the table has
        no row.
    """
    rows = table_rows(Path(path))
    header = [field.strip() for field in next(rows, (0, []))[1]]
    shown = ", ".join(" ".join(field.split()) for field in header)  # a quoted name may have several lines
    absent = [name for name in names if name not in header]
    if absent:
        raise InputError(f"{path}: the columns are {shown or 'none':.200}; {' and '.join(names)} are needed.")
    repeated = [name for name in names if header.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]!r} appears twice; rename one of them.")
    places, line = [header.index(name) for name in names], 0
    for line, fields in rows:
        if len(fields) != len(header):
            raise InputError(f"{path}:{line}: {len(fields)} fields, {len(header)} are expected ({shown:.200}).")
        cells = tuple(fields[place].strip() for place in places)
        if not all(cells):
            raise InputError(f"{path}:{line}: column {names[cells.index('')]} is empty.")
        yield line, cells
    if not line:
        raise InputError(f"{path}: the table has a header but no rows; at least one row is needed.")


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
    number: Mapping[str, int] = {name: place for place, name in enumerate(classes)}
    labels, texts = [], []
    for line, (name, *row) in columns(path, ("label", *sentences)):
        if name not in number:
            raise InputError(f"{path}:{line}: label {name!r:.40} is not one of {', '.join(classes)}.")
        labels.append(number[name])
        texts.append(tuple(row))
    return np.array(labels), texts


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, fields) of each row of a `.tsv` or `.csv` file; skips blank rows."""
    suffix = table_suffix(path)
    if suffix not in (".tsv", ".csv"):
        raise InputError(f"{path}: a table is read from .tsv or .csv, plain or .gz; got {suffix or 'no suffix'!r}.")
    csv.field_size_limit(reading.LINE_BYTES)
    with reading.opened_text(path) as file:
        rows = (quoted_rows if suffix == ".csv" else tsv_rows)(path, reading.lines(path, file))
        yield from ((line, fields) for line, fields in rows if any(field.strip() for field in fields))


def table_suffix(path: Path) -> str:
    """The suffix in lower case, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, text) of each line of a text file, plain or `.gz`."""
    with reading.opened_text(path) as file:
        for line, text in reading.lines(path, file):
            yield line, text.rstrip("\r\n")
