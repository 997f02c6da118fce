"""Reads tables of evaluations: `.tsv` without quoting or `.csv` with standard quoting, plain or compressed, in UTF-8."""

import csv
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import InputError


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it is that part."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def cells(path: Path) -> list[list[str]]:
    """All rows of a table, a header among them, without outer white space and blank rows; all have the same number of cells."""
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in (".tsv", ".csv"):
        raise InputError(f"{path}: a table is read from .tsv or .csv, plain or .gz; got {kind or 'no suffix'!r}.")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            split = csv.reader(file, strict=True) if kind == ".csv" else (line.split("\t") for line in file)
            rows = [row for row in ([cell.strip() for cell in row] for row in split) if any(row)]
    except (ValueError, OSError, EOFError, csv.Error, zlib.error) as error:
        raise InputError(f"{path} is not a table in UTF-8: {error}") from error
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}: row {number} has {len(row)} cells, the first {len(rows[0])}: {row!r:.60}.")
    return rows


def read_table(path: str | Path, names: Sequence[str], *, needs_header: bool = True) -> dict[str, tuple[str, ...]]:
    """The columns of a table with a header, by name.

    Args:
      names: the columns that the table must have, in any case; their cells must not be empty.
      needs_header: False: a table without these names has no header, and exactly these columns.
    """
    rows = cells(Path(path))
    header = [name.lower() for name in rows[0]] if rows else []
    if all(header.count(name) == 1 for name in names):
        del rows[0]
    elif needs_header or len(header) != len(names):
        raise InputError(
            f"{path}: the columns are {', '.join(header) or 'none':.200}; {' and '.join(names)} are needed, once."
        )
    else:
        header = list(names)
    if not rows:
        raise InputError(f"{path}: the table has no rows; at least one is needed.")
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name in names:
        if "" in table[name]:
            raise InputError(f"{path}: row {table[name].index('') + 1} has an empty cell in the column {name}.")
    return table


def labelled(
    path: str | Path, sentences: Sequence[str], classes: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], list[tuple[str, ...]]]:
    """Class numbers and sentences of the rows of a table.

    Args:
      sentences: names of the sentences' columns.
      classes: names in the column `label`; a class's number is its index.
    """
    table = read_table(path, ("label", *sentences))
    if wrong := [name for name in table["label"] if name not in classes]:
        raise InputError(f"{path}: label {wrong[0]!r:.40} is not one of {', '.join(classes)}.")
    labels = np.array([classes.index(name) for name in table["label"]])
    return labels, list(zip(*(table[name] for name in sentences), strict=True))
