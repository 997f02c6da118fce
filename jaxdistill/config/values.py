"""Checks and converts the values of options by the types of their fields."""

import types
import typing
from typing import Annotated, Any, Literal

from jaxdistill.core import InputError, Range
from jaxdistill.data.options import Columns

ShardingWord = Literal["zero", "fsdp", "tensor"]
ShardingRules = tuple[tuple[str, tuple[str, ...]], ...]
Sharding = ShardingWord | ShardingRules


def typed(value: Any, kind: Any, name: str) -> Any:
    """Converts `value` to the type `kind` of a field; raises `InputError` if the type does not allow it.

    Args:
      name: name of the option, for errors.
    """
    origin = typing.get_origin(kind)
    if origin is Annotated:
        plain, allowed = typing.get_args(kind)
        return _in_range(typed(value, plain, name), allowed, name)
    if origin is Literal:
        if value not in typing.get_args(kind):
            raise InputError(f"{name}={value!r} is unknown; allowed: {', '.join(map(str, typing.get_args(kind)))}.")
        return value
    if kind in (Columns, Sharding):  # `config_flags` makes a tuple of a word
        value = value[0] if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str) else value
    if kind == Columns and isinstance(value, str):
        return (("text", value),) if value else ()
    if kind == Sharding:
        return typed(value, ShardingWord if isinstance(value, str) else ShardingRules, name)
    if origin is tuple:
        return _tuple(value, typing.get_args(kind), name)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _in_range(float(value), Range(), name)
    if isinstance(kind, types.UnionType) or not isinstance(kind, type):
        return value
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name}={value!r} has type {type(value).__name__}; it must have type {kind.__name__}.")
    return value


def _in_range(value: Any, allowed: Range, name: str) -> Any:
    """The value, if it, or the number of a tuple's parts, is in range."""
    number, parts = (len(value), f"has {len(value)} parts; their number ") if isinstance(value, tuple) else (value, "")
    if fault := allowed.fault(number):
        raise InputError(f"{name}={value} {parts}{fault}.")
    return value


def _tuple(value: Any, kinds: tuple[Any, ...], name: str) -> tuple:
    if not isinstance(value, (list, tuple)):
        raise InputError(
            f"{name}={value!r} has type {type(value).__name__}; it must be a tuple such as {_example(kinds)}."
        )
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise InputError(f"{name}={value!r} has {len(value)} parts; it must have {len(kinds)}.")
    return tuple(typed(item, kind, f"{name}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _example(kinds: tuple[Any, ...]) -> str:
    """An example of a tuple of these types, in command-line syntax."""
    parts = []
    for kind in (kind for kind in kinds if kind is not Ellipsis):
        plain = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
        inner = typing.get_args(plain)
        parts.append(_example(inner) if inner else {float: "1.0", int: "64"}.get(plain, '"name"'))
    return f"({', '.join(parts)}{',' * (len(parts) == 1)})"
