"""Columns of tables: which of them the user's names mean."""

from collections.abc import Collection, Mapping, Sequence

from jaxdistill.core import InputError

TEXT = "text"
"""The column of the sentence itself, which every source has."""


class MissingColumn(InputError):
    """A file lacks a requested column."""


def column_map(columns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Maps our column names to the file's; in a list of names, both are equal."""
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    return {name: source or name for name, source in named.items()}


def requested_names(columns: Mapping[str, str]) -> set[str]:
    """All names that the requested columns may have in a file."""
    return {name for source in columns.values() for choice in _choices(source) for name in choice}


def chosen_columns(
    available: Sequence[str], columns: Mapping[str, str], place: str, *, advice: str = ""
) -> list[tuple[str, ...]]:
    """The table's columns for each of ours: of `sentence1|premise`, the first that exists; of `subject+body`, both; a single
    column serves as `text`.

    Args:
      advice: ends the error about a missing column; a template for our name. Empty: how options name it.
    """
    selected = []
    for name, source in columns.items():
        chosen = next((choice for choice in _choices(source) if {*choice} <= {*available}), ())
        if not chosen and name == TEXT and len(available) == 1:
            chosen = (available[0],)
        if not chosen:
            raise MissingColumn(
                f"{place} has no column {source!r}; it has {', '.join(map(repr, available)) or 'none'}. "
                + (advice.format(name) or _how_to_name(columns, name, place))
            )
        if twice := [column for column in chosen if list(available).count(column) > 1]:
            raise InputError(f"{place} has the column {twice[0]!r} twice; rename one of them.")
        selected.append(chosen)
    return selected


def _how_to_name(columns: Mapping[str, str], name: str, place: str) -> str:
    """Says where the user names the column that a table lacks."""
    if place.startswith(("hf:", "tfds:")) and name == TEXT:
        return "End the spec with one of these names."
    pairs = [f'("{ours}", "{"COLUMN" if ours == name else theirs}")' for ours, theirs in columns.items()]
    named = f"({', '.join(pairs)}{',' * (len(pairs) == 1)})"
    return f"Name the column: data.columns={named} in a training, or another program's option that ends in column."


def _choices(source: str) -> list[tuple[str, ...]]:
    """The columns that may serve as `subject+body|text`, the preferred ones first; any string may be a column's whole name."""
    return [(source,), *(one for name in source.split("|") for one in ((name,), tuple(name.split("+"))))]


def top_columns(available: Sequence[str], names: Collection[str]) -> list[str]:
    """The columns that are among `names`, or of which `names` has a field, such as `translation.en`."""
    return [column for column in available if any(f"{name}.".startswith(f"{column}.") for name in names)]
