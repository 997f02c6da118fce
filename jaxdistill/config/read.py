"""Reads a `ConfigDict` into frozen dataclasses: the only place where options are checked and converted."""

import contextlib
import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from jaxdistill.config.options import PLAIN, SECTIONS, Config
from jaxdistill.config.values import typed
from jaxdistill.core import InputError, did_you_mean
from jaxdistill.files.kinds import KINDS


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
    read = {}
    for section, options in config.items():
        if not isinstance(options, Mapping):
            raise InputError(
                f"config section {section} has type {type(options).__name__}; it must map options to values."
            )
        read[section] = _parse_section(section, dict(options))
    if "objective" not in read:
        raise InputError("the config names no objective; begin with jaxdistill.config.defaults(objective='congen').")
    parsed = Config(**read)
    run = parsed.run
    return dataclasses.replace(parsed, run=dataclasses.replace(run, steps=0)) if run.minutes and run.steps else parsed


def _parse_section(section: str, options: dict[str, Any]) -> Any:
    if section in PLAIN:
        return options_from(PLAIN[section], options, prefix=section)
    kinds = KINDS[section]
    name = typed(options.pop("kind", kinds.default), str, f"{section}.kind")
    if not name:
        raise InputError(f"{section}.kind is missing; available: {', '.join(kinds.available())}.")
    kind = kinds.options_class(name)
    if "kind" in (field.name for field in dataclasses.fields(kind)):
        options["kind"] = name
    return options_from(kind, options, prefix=section)


def options_from(kind: type, options: Mapping[str, Any], *, prefix: str) -> Any:
    """Reads options into the dataclass `kind`; missing fields have their defaults."""
    types_ = typing.get_type_hints(kind, include_extras=True)
    types_ = {field.name: types_[field.name] for field in dataclasses.fields(kind)}
    _refuse_unknown(options, list(types_), prefix=f"{prefix}.")
    return kind(**{name: typed(value, types_[name], f"{prefix}.{name}") for name, value in options.items()})


def _refuse_unknown(options: Mapping[str, Any], allowed: Sequence[str], *, prefix: str) -> None:
    for name in options:
        if name not in allowed:
            close = did_you_mean(name, list(allowed))
            raise InputError(f"config key {prefix}{name} is unknown.{close} Known: {', '.join(allowed)}.")
