"""Reads tables of evaluations: `.tsv` without quoting or `.csv` with standard quoting, plain or compressed, in UTF-8."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import InputError

if TYPE_CHECKING:
    import pandas


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it is that part."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def cells(path: str | Path) -> "pandas.DataFrame":
    """All rows of a table, a header among them, as text without outer white space; raises `InputError`."""
    import pandas  # imported here: it takes a third of a second

    kind = Path(str(path).removesuffix(".gz")).suffix.lower()
    if kind not in (".tsv", ".csv"):
        raise InputError(f"{path}: a table is read from .tsv or .csv, plain or .gz; got {kind or 'no suffix'!r}.")
    how = {"sep": "\t", "quoting": csv.QUOTE_NONE, "lineterminator": "\n"} if kind == ".tsv" else {}
    try:
        table = pandas.read_csv(path, header=None, dtype=str, na_filter=False, encoding="utf-8-sig", **how)  # pyright: ignore
    except pandas.errors.EmptyDataError:
        return pandas.DataFrame()
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} is not a table in UTF-8: {' '.join(str(error).split())}") from error
    return table.apply(lambda column: column.str.strip())


def read_table(path: str | Path, names: Sequence[str], *, needs_header: bool = True) -> "pandas.DataFrame":
    """The rows of a table with a header.

    Args:
      names: the columns that the table must have, in any case; their cells must not be empty.
      needs_header: False: a table without these names has no header, and exactly these columns.
    """
    table = cells(path)
    header = [name.lower() for name in table.iloc[0]] if len(table) else []
    if {*names} <= {*header} and len({*header}) == len(header):
        table = table[1:].set_axis(header, axis=1)
    elif needs_header or table.shape[1] != len(names):
        raise InputError(
            f"{path}: the columns are {', '.join(header) or 'none':.200}; {' and '.join(names)} are needed, once."
        )
    else:
        table = table.set_axis(list(names), axis=1)
    if not len(table):
        raise InputError(f"{path}: the table has no rows; at least one is needed.")
    if (empty := (table[list(names)] == "").any(axis=1)).any():
        raise InputError(
            f"{path}: row {int(empty.to_numpy().argmax()) + 1} has an empty cell; {' and '.join(names)} are needed."
        )
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
    if wrong := [name for name in table["label"].unique() if name not in classes]:
        raise InputError(f"{path}: label {wrong[0]!r:.40} is not one of {', '.join(classes)}.")
    labels = np.array([classes.index(name) for name in table["label"]])
    return labels, list(table[list(sentences)].itertuples(index=False, name=None))
