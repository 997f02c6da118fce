"""Writes a caller's text in memory (strings, rows, columns, tables) to a cache file that every program can read.

Tables are recognised by their members, so pandas, polars, pyarrow and `datasets` need not be imported.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, cast

from jaxdistill.calls import OWN_FILES
from jaxdistill.core import InputError
from jaxdistill.data.formats import SUFFIXES, checked_text, chosen_columns
from jaxdistill.data.sources import TEXT
from jaxdistill.data.structs import cells_of, with_fields
from jaxdistill.files import UNFINISHED_SUFFIX, reading, writing
from jaxdistill.paths import cache_folder, other_cache

Text = str | Path | Iterable[Any]
"""A source as on the command line (path, glob, `hf:...`), paths of files, or text in memory: strings, tuples, mappings, a
column or a table."""
MISSING_TYPES = ("NAType", "NaTType")
"""Types of pandas' missing values."""
SHOWN = 60
"""Characters of a value in an error."""


def columns_of(columns: str | Mapping[str, str] | Sequence[str] | Sequence[tuple[str, str]] | None) -> dict[str, str]:
    """Maps views to columns; takes a mapping, pairs, names that serve as both, or the name of the sentences' column.

    >>> columns_of("body"), columns_of(["text", "second"])
    ({'text': 'body'}, {'text': 'text', 'second': 'second'})
    """
    if isinstance(columns, str):
        return {TEXT: columns} if columns else {}
    if isinstance(columns, Mapping):
        named = dict(columns)
    else:
        listed = columns if isinstance(columns, Iterable) else [] if columns is None else [columns]
        pairs = [(column, column) if isinstance(column, str) else column for column in listed]
        if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
            raise InputError(f"columns={columns!r:.{SHOWN}} must be a name, names, or a mapping of a view to a column.")
        named = {name: column for name, column in pairs}
    if not all(isinstance(name, str) for name in (*named, *named.values())):
        raise InputError(f"columns={columns!r:.{SHOWN}} must have names that are strings.")
    return named


def sources_of(
    text: Text, columns: Mapping[str, str], *, argument: str = "text", numbers: Sequence[str] = ()
) -> list[str]:
    """The sources of a text as the command line takes them; text in memory becomes a cache file named by its content.

    `None`, NaN and similar values become empty sentences, which training leaves out and counts, as in a file.

    Args:
      columns: maps views to columns; for tuples, in their order. Empty: the text has only sentences.
      argument: the argument's name, for errors.
      numbers: further columns, which may hold numbers.

    Raises:
      InputError: no text, a value that is not a string, or a missing column; names the place and the value.
    """
    if type(text).__name__ == "LazyFrame":
        text = cast(Any, text).collect()
    if isinstance(text, str | Path):
        return [str(text)] if str(text) else []
    if isinstance(text, bytes) or not (isinstance(text, Iterable) or _names_of(text) is not None):
        raise InputError(
            f"{argument}={text!r:.{SHOWN}} has type {type(text).__name__}; give strings, a table, or the path of a file."
        )
    if isinstance(text, Sequence) and text and all(isinstance(item, Path) for item in text):
        return list(map(str, text))
    if isinstance(text, Sequence) and text and all(map(_is_file_name, text)):
        raise InputError(
            f"{argument} is a list of file names, which would be read as sentences; give [pathlib.Path({text[0]!r}), ...]."
        )
    source = str(_written(_Rows(argument, dict(columns), tuple(numbers)).of(text), argument))
    OWN_FILES[source] = f"the {type(text).__name__} given as {argument}"
    return [source]


class _Rows:
    """Converts a text in memory to rows that map columns to cells."""

    def __init__(self, argument: str, columns: dict[str, str], numbers: tuple[str, ...]):
        self.argument, self.columns, self.numbers = argument, columns, numbers

    def of(self, text: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Yields the rows of a text; consumes an iterator."""
        if isinstance(text, Mapping) or _names_of(text) is not None:
            yield from self._of_table(text)
            return
        names: list[str] = []
        for index, item in enumerate(values_of(text, self.argument)):
            place = f"{self.argument}[{index}]"
            if isinstance(item, Mapping):
                item = with_fields(item)
                names = names or self._chosen(list(item), place)
                if lacking := [name for name in names if name not in item]:
                    raise InputError(f"{place} has no {lacking[0]!r}: {item!r:.{SHOWN}}; every row needs it.")
                cells = [item[name] for name in names]
            else:
                whole = isinstance(item, tuple | list)
                cells = list(item) if whole else [item]
                names = names or self._by_place(cells, place)
                if len(cells) != len(names):
                    raise InputError(
                        f"{place}={item!r:.{SHOWN}} has {len(cells)} of {len(names)} values ({', '.join(names)}); give all."
                    )
            yield self._row(names, cells, place)

    def _of_table(self, table: Any) -> Iterator[dict[str, Any]]:
        available = list(table) if isinstance(table, Mapping) else _names_of(table) or []
        if isinstance(table, Mapping) and any(_names_of(value) is not None for value in table.values()):
            raise InputError(f"{self.argument} has the splits {', '.join(map(str, table))}; give one of them.")

        def column(name: Any) -> Iterable[Any]:
            return values_of(table[name], f"{self.argument}[{name!r}]")

        asked = " ".join((*self.columns.values(), *self.numbers))
        first = with_fields({name: next(iter(column(name)), None) for name in available if f"{name}." in asked})
        names = self._chosen([*available, *(first.keys() - {*available})], self.argument)
        columns = [cells_of(name, available, column) for name in names]
        try:
            for index, cells in enumerate(zip(*columns, strict=True)):
                yield self._row(names, cells, f"{self.argument} row {index}")
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.argument}: the columns {', '.join(names)} differ in length.") from None

    def _chosen(self, available: Sequence[Any], place: str) -> list[str]:
        """The columns to write: those asked for, or the only one."""
        selected = chosen_columns(
            available, self.columns or {TEXT: TEXT}, place, advice="Name the column: columns={{{!r}: NAME}}."
        )
        if lacking := [name for name in self.numbers if name not in available]:
            raise InputError(f"{place} has no column {lacking[0]!r}; it has {', '.join(map(repr, available))}.")
        return list(dict.fromkeys([*selected.names, *self.numbers]))

    def _by_place(self, cells: list[Any], place: str) -> list[str]:
        """Column names for the values of a tuple, or for a single string."""
        names = [*self.columns.values(), *self.numbers] or [TEXT]
        if len(names) != len(cells):
            raise InputError(
                f"{place} has {len(cells)} values, but columns={list(self.columns or {TEXT: TEXT})} names {len(names)}; "
                "name each in order, such as columns=['text', 'second']."
            )
        return names

    def _row(self, names: Sequence[str], cells: Iterable[Any], place: str) -> dict[str, Any]:
        return {name: self._cell(name, cell, place) for name, cell in zip(names, cells, strict=True)}

    def _cell(self, name: str, cell: Any, place: str) -> Any:
        if _is_missing(cell):
            return None
        if name in self.numbers and isinstance(cell, Real) and not isinstance(cell, bool):
            return float(cell)
        return checked_text(cell, place, name, sys.maxsize)


def _names_of(table: Any) -> list[Any] | None:
    """Names of a table's columns; None for anything else, such as a streamed data set, which only yields rows."""
    names = getattr(table, "column_names", None)  # first: pyarrow's `columns` are the arrays
    names = getattr(table, "columns", None) if names is None else names
    return list(names) if isinstance(names, Iterable) and hasattr(type(table), "__getitem__") else None


def values_of(column: Any, argument: str) -> Iterable[Any]:
    """A column's values as Python objects, in order; iterating over pyarrow's columns would give its own scalars.

    Raises:
      InputError: a set, or an array without an axis; names the argument.
    """
    if isinstance(column, set | frozenset) or getattr(column, "shape", None) == ():
        raise InputError(f"{argument} has type {type(column).__name__}, which has no order or rows; give a list.")
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def _is_missing(cell: Any) -> bool:
    is_nan = isinstance(cell, Real) and cell != cell
    return cell is None or is_nan or type(cell).__name__ in MISSING_TYPES


def _is_file_name(item: Any) -> bool:
    return (
        isinstance(item, str)
        and reading.unpacked_name(item).endswith(SUFFIXES)
        and len(item) < 4096
        and Path(item).is_file()
    )


def _written(rows: Iterable[Mapping[str, Any]], argument: str) -> Path:
    """Writes the rows to a cache file, one at a time, so that a generator's rows need not fit in memory."""
    folder, digest, count = cache_folder() / "texts", hashlib.sha256(), 0
    unfinished = folder / f".{os.getpid()}-{id(rows):x}{UNFINISHED_SUFFIX}"
    with writing(folder, other_cache(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as file:
                for row in rows:
                    line = json.dumps(row).encode() + b"\n"
                    digest.update(line)
                    file.write(line)
                    count += 1
            if not count:
                raise InputError(f"{argument} is empty; give strings, a table, or the path of a file.")
            return unfinished.replace(folder / f"{digest.hexdigest()[:16]}.jsonl")
        finally:
            unfinished.unlink(missing_ok=True)
