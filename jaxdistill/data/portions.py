"""Lists the portions of a text: its sources, or, if it is split into chunks, each column of each source."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.data.formats import MissingColumn
from jaxdistill.data.roles import Roles
from jaxdistill.files.reading import LINE_BYTES


class Portion(NamedTuple):
    """Some columns of a source."""

    source: int
    """Index of its spec."""
    columns: Mapping[str, str]
    """Maps our column names to the file's."""
    roles: Sequence[str]
    """The role of each column; empty for none."""


def portions(
    specs: Sequence[str], columns: Mapping[str, str], roles: Roles, *, separate: bool, line_bytes: int = LINE_BYTES
) -> list[Portion]:
    """The portions of a text, in its order.

    Args:
      specs: see `sources`.
      columns: the result of `sources.column_map`.
      roles: maps columns to roles, for each spec.
      separate: make each column of a source its own portion.
      line_bytes: maximum bytes of a line or cell.

    Raises:
      InputError: no source has one of the columns.
    """
    if not separate:
        whole = ((source, roles[source]) for source in range(len(specs)))
        return [Portion(source, columns, [of[name] for name in columns]) for source, of in whole]
    chosen = [
        Portion(source, {name: theirs}, [roles[source][name]])
        for source, spec in enumerate(specs)
        for name, theirs in columns.items()
        if name == sources.TEXT or _has(spec, {name: theirs}, line_bytes)
    ]
    for name, theirs in columns.items():
        if all(name not in portion.columns for portion in chosen):
            raise InputError(f"no source of data.text has a column {theirs!r}; correct --config.data.columns.")
    return chosen


def _has(spec: str, column: Mapping[str, str], line_bytes: int) -> bool:
    try:
        next(sources.read([spec], column, line_bytes), None)
    except MissingColumn:
        return False
    return True
