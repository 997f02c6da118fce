"""Reads a `ConfigDict` into frozen dataclasses: the only place where options are checked and converted."""

import contextlib
import dataclasses
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from ml_collections import ConfigDict

from jaxdistill.config.options import PLAIN, SECTIONS, Config, Sharding, ShardingRules, ShardingWord
from jaxdistill.core import InputError, Range, did_you_mean
from jaxdistill.core.kinds import KINDS
from jaxdistill.data.options import Columns


def parse_stages(config: ConfigDict | Mapping[str, Any]) -> list[Config]:
    """Reads every stage of a training; if there are several, errors begin with the number of the stage."""
    config = config.to_dict() if isinstance(config, ConfigDict) else config
    names = stage_names(config)
    if not names:
        return [parse_config(config)]
    stages = []
    for number, name in enumerate(names, start=1):
        with of_stage(number, names):
            stages.append(parse_config(config[name]))
    return stages


def stage_names(config: ConfigDict | Mapping[str, Any]) -> list[str]:
    """`stage1`, `stage2` and so on; none for a single training."""
    names = [name for name in config if re.fullmatch(r"stage[1-9]\d*", name)]
    return sorted(names, key=lambda name: int(name.removeprefix("stage")))


@contextlib.contextmanager
def of_stage(number: int, stages: Sequence[Any]) -> Iterator[None]:
    """Puts the number of the stage before an `InputError` inside, if there are several stages."""
    try:
        yield
    except InputError as error:
        raise InputError(f"stage {number}: {error}") if len(stages) > 1 else error from None


def parse_config(config: ConfigDict | Mapping[str, Any]) -> Config:
    """Reads a nested mapping, with defaults for missing options; raises `InputError` for unknown options and wrong values.

    `run.minutes` replaces `run.steps`, which most presets set.
    """
    config = config.to_dict() if isinstance(config, ConfigDict) else config
    _refuse_unknown(config, SECTIONS, prefix="")
    if "objective" not in config:
        raise InputError("the config names no objective; begin with jaxdistill.config.defaults(objective='congen').")
    read = {}
    for section, options in config.items():
        if section in PLAIN:
            read[section] = options_from(PLAIN[section], options, prefix=section)
            continue
        name = options.get("kind", KINDS[section].default)
        kind = KINDS[section].options_class(name)
        values = {option: value for option, value in options.items() if option != "kind"}
        if any(field.name == "kind" for field in dataclasses.fields(kind)):
            values["kind"] = name
        read[section] = options_from(kind, values, prefix=section)
    parsed = Config(**read)
    run = parsed.run
    return dataclasses.replace(parsed, run=dataclasses.replace(run, steps=0)) if run.minutes and run.steps else parsed


def options_from(kind: type, options: Mapping[str, Any], *, prefix: str) -> Any:
    """Reads options into the dataclass `kind`; missing fields have their defaults."""
    hints = typing.get_type_hints(kind, include_extras=True)
    _refuse_unknown(options, [field.name for field in dataclasses.fields(kind)], prefix=f"{prefix}.")
    return kind(**{name: typed(value, hints[name], f"{prefix}.{name}") for name, value in options.items()})


def _refuse_unknown(options: Mapping[str, Any], allowed: Sequence[str], *, prefix: str) -> None:
    for name in options:
        if name not in allowed:
            close = did_you_mean(name, list(allowed))
            raise InputError(f"config key {prefix}{name} is unknown.{close} Known: {', '.join(allowed)}.")


def typed(value: Any, kind: Any, name: str) -> Any:
    """Converts `value` to the type `kind` of a field; raises `InputError` if the type does not allow it.

    Args:
      name: name of the option, for errors.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _in_range(typed(value, arguments[0], name), arguments[1], name)
    if origin is Literal:
        if value not in arguments:
            raise InputError(f"{name}={value!r} is unknown; allowed: {', '.join(map(str, arguments))}.")
        return value
    if kind in (Columns, Sharding):
        # `config_flags` makes a tuple of a word.
        value = value[0] if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str) else value
        if isinstance(value, str):
            return typed(value, ShardingWord, name) if kind == Sharding else (("text", value),) if value else ()
        kind = ShardingRules if kind == Sharding else kind
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(value):
            raise InputError(f"{name}={value!r} has {len(value)} parts; it must have {len(kinds)}.")
        return tuple(typed(item, one, f"{name}[{i}]") for i, (item, one) in enumerate(zip(value, kinds, strict=True)))
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _in_range(float(value), Range(), name)
    plain = origin or kind
    if isinstance(kind, types.UnionType) or not isinstance(plain, type):
        return value
    if not isinstance(value, plain) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name}={value!r} has type {type(value).__name__}; it must have type {plain.__name__}.")
    return value


def _in_range(value: Any, allowed: Range, name: str) -> Any:
    """The value, if it, or the number of a tuple's parts, is in range."""
    number, parts = (len(value), f"has {len(value)} parts; their number ") if isinstance(value, tuple) else (value, "")
    if fault := allowed.fault(number):
        raise InputError(f"{name}={value} {parts}{fault}.")
    return value
