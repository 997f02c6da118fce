"""Parses which sentences of a text are queries and which are documents.

Retrieval encoders prepend different prompts to queries and documents. `data.roles` gives a role to the whole text, to each
source, or to each column; a model then prepends its prompt for that role.
"""

from collections.abc import Mapping, Sequence

from jaxdistill.core import ROLES, InputError

NONE = "none"
"""The word for no role."""

Roles = tuple[Mapping[str, str], ...]
"""For each source, a mapping of its columns to their roles; an empty string for no role."""


def parse_roles(given: str, *, columns: Sequence[str], sources: int) -> Roles:
    """Parses `data.roles`.

    Args:
      given: a role for the whole text, roles for all sources in their order (`query,document`), or roles for columns
        (`text=query,second=document`); empty: no role.
      columns: names of the text's columns.
      sources: number of sources.
    """
    parts = [part.strip() for part in given.split(",")] if given.strip() else [NONE]
    if any("=" in part for part in parts):
        named = _of_columns(parts, columns)
        return ({column: named.get(column, "") for column in columns},) * sources
    roles = [_role(part) for part in parts]
    if len(roles) == 1:
        roles *= sources
    if len(roles) != sources:
        raise InputError(
            f"data.roles has {len(roles)} roles for {sources} source{'s' * (sources != 1)}; give one for all, one for each "
            "source, or one for each column, such as --config.data.roles=text=query,second=document"
        )
    return tuple(dict.fromkeys(columns, role) for role in roles)


def used_roles(roles: Roles) -> tuple[str, ...]:
    """The roles that occur, in the order of `ROLES`."""
    used = {role for source in roles for role in source.values()}
    return tuple(role for role in ROLES if role in used)


def _of_columns(parts: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for part in parts:
        column, equals, role = (word.strip() for word in part.partition("="))
        if not equals or column in named:
            raise InputError(
                f"data.roles has {part!r}; name each column once, such as --config.data.roles=text=query,second=document"
            )
        if column not in columns:
            raise InputError(
                f"data.roles names the column {column!r}; the text has {', '.join(columns)}. Set --config.data.columns."
            )
        named[column] = _role(role)
    return named


def _role(word: str) -> str:
    if word not in (*ROLES, NONE):
        raise InputError(
            f"data.roles has the role {word!r}; allowed: {', '.join(ROLES)}, {NONE} (--config.data.roles)."
        )
    return "" if word == NONE else word
