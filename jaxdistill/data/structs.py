"""Fields of structs as columns of a table: `translation.en` is the field `en` of the column `translation`."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any


def with_fields(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """The row, with the fields of structs as `translation.en` and so on; a column of that name itself comes first."""
    structs = [(name, with_fields(cell)) for name, cell in row.items() if isinstance(cell, Mapping)]
    return {**{f"{name}.{field}": value for name, cells in structs for field, value in cells.items()}, **row}


def cells_of(name: Any, own: Collection[Any], column: Callable[[Any], Iterable[Any]]) -> Iterable[Any]:
    """The cells of a table's column, or of a field of a struct; None where the struct is missing.

    Args:
      own: the table's columns; `column` maps one to its cells.
    """
    if name in own:
        return column(name)
    struct = max((one for one in own if name.startswith(f"{one}.")), key=len)
    return (with_fields({struct: cell}).get(name) for cell in column(struct))


def field_names(fields: Iterable[Any]) -> list[str]:
    """Names of the columns of a schema, structs replaced by their fields."""
    of_structs = (
        (each.name, field_names(each.type) if str(each.type).startswith("struct<") else []) for each in fields
    )
    return [f"{name}.{inner}" if inner else name for name, inners in of_structs for inner in inners or [""]]
