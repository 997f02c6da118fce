"""Text in memory (strings, rows, columns, tables) as a file in the cache that every program can read.

Tables are recognised by their members, so pandas, polars and `datasets` need not be imported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jaxdistill.core import InputError, errors_of
from jaxdistill.data.cached import cached_table
from jaxdistill.data.columns import TEXT, chosen_columns, requested_names, top_columns
from jaxdistill.data.sources import BUILDERS, PACKED

if TYPE_CHECKING:
    import pyarrow

Text = str | Path | Iterable[Any]
"""A source as on the command line (path, glob, `hf:...`), paths of files, or text in memory: strings, tuples, mappings, a
column or a table."""
BATCH_ROWS = 4096
"""Rows that are converted at a time."""
SHOWN = 60
"""Characters of a value in an error."""
ADVICE = "Name the column: columns={{{!r}: NAME}}."


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
      InputError: no text, a value that is not a string, or a missing column; names the argument.
    """
    if type(text).__name__ == "LazyFrame":
        text = cast(Any, text).collect()
    if isinstance(text, str | Path):
        return [str(text)] if str(text) else []
    is_table = hasattr(text, "column_names") or hasattr(text, "columns")
    if (
        isinstance(text, bytes | set | frozenset)
        or getattr(text, "shape", None) == ()
        or not (is_table or isinstance(text, Iterable))
    ):
        kind = type(text).__name__
        raise InputError(f"{argument}={text!r:.{SHOWN}} has type {kind}; give strings, a table, or the path of a file.")
    if isinstance(text, Sequence) and text and all(isinstance(item, Path) for item in text):
        return list(map(str, text))
    if isinstance(text, Sequence) and text and all(map(_is_file_name, text)):
        raise InputError(
            f"{argument} is a list of file names, which would be read as sentences; give [pathlib.Path({text[0]!r}), ...]."
        )
    with errors_of(argument):
        source = str(cached_table(_tables(text, dict(columns) or {TEXT: TEXT}, numbers)))
    return [source]


def _tables(text: Any, columns: Mapping[str, str], numbers: Sequence[str]) -> Iterator["pyarrow.Table"]:
    """Yields the text piece by piece as tables of the columns that are read."""
    import pyarrow

    def table(named: Mapping[str, Any]) -> "pyarrow.Table":
        read = top_columns(list(named), [*requested_names(columns), *numbers]) or list(named)
        arrays = {name: _array(named[name], name) for name in read}
        if len({len(array) for array in arrays.values()}) > 1:
            raise InputError(f"the columns {', '.join(arrays)} differ in length.")
        return _chosen(pyarrow.table(arrays), columns, numbers)

    if (named := _columns_of(text)) is not None:
        yield table(named)
        return
    rows, names = iter(text.tolist() if hasattr(text, "tolist") else text), [*columns.values(), *numbers]
    while piece := list(islice(rows, BATCH_ROWS)):
        if isinstance(piece[0], Mapping):
            try:
                yield table({name: [row[name] for row in piece] for name in piece[0]})
            except KeyError as error:
                raise InputError(f"a row has no {error}; every row needs the columns of the first.") from None
            continue
        cells = [row if isinstance(row, tuple | list) else (row,) for row in piece]
        if wrong := next((row for row in cells if len(row) != len(names)), None):
            raise InputError(
                f"a row has {len(wrong)} values ({wrong!r:.{SHOWN}}), but there are {len(names)} columns ({', '.join(names)}); "
                "name each in order, such as columns=['text', 'second']."
            )
        yield table(dict(zip(names, zip(*cells, strict=True), strict=True)))


def _columns_of(text: Any) -> Mapping[str, Any] | None:
    """The columns of a table or a single column, by name; None for rows."""
    if isinstance(text, Mapping):
        if any(hasattr(column, "column_names") for column in text.values()):
            raise InputError(f"it has the splits {', '.join(map(str, text))}; give one of them.")
        return text
    names = getattr(text, "column_names", None)  # first: pyarrow's `columns` are the arrays
    names = getattr(text, "columns", None) if names is None else names
    if isinstance(names, Iterable) and hasattr(type(text), "__getitem__"):
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise InputError(f"it has the column {twice!r} twice; rename one of them.")
        return {name: text[name] for name in names}
    return {TEXT: text} if hasattr(text, "to_pandas") or hasattr(text, "to_arrow") else None


def _array(values: Any, name: str) -> Any:
    """The values of a column as an array of Arrow, NaN and similar values as nulls."""
    import pyarrow

    if isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
        return values
    try:
        return values.to_arrow() if hasattr(values, "to_arrow") else pyarrow.array(_listed(values), from_pandas=True)
    except pyarrow.ArrowException as error:
        raise InputError(f"column {name!r} is not text: {error}.") from None


def _listed(values: Any) -> Any:
    """The values as an array or a list, which Arrow needs."""
    return values if hasattr(values, "__array__") else list(values)


def _chosen(table: "pyarrow.Table", columns: Mapping[str, str], numbers: Sequence[str]) -> "pyarrow.Table":
    """The columns that are read: texts, and numbers in `numbers`."""
    import pyarrow

    while any(pyarrow.types.is_struct(kind) for kind in table.schema.types):
        table = table.flatten()
    chosen = [
        name for names in chosen_columns(table.column_names, columns, "the text", advice=ADVICE) for name in names
    ]
    if lacking := next((name for name in numbers if name not in table.column_names), None):
        raise InputError(f"the text has no column {lacking!r}; it has {', '.join(map(repr, table.column_names))}.")
    arrays = {}
    for name in dict.fromkeys([*chosen, *numbers]):
        array, kind = table[name], table[name].type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        is_number = name in numbers and (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind))
        if not (is_number or "string" in str(kind) or pyarrow.types.is_null(kind)):
            raise InputError(f"column {name!r} holds {kind}, not text.")
        arrays[name] = array.cast(pyarrow.float64() if is_number else pyarrow.large_string())
    return pyarrow.table(arrays)


def _is_file_name(item: Any) -> bool:
    return (
        isinstance(item, str)
        and len(item) < 4096
        and item.lower().endswith(tuple(f"{end}{packed}" for end in BUILDERS for packed in ("", *PACKED)))
        and Path(item).is_file()
    )
