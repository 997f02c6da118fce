"""Overrides options of a config by dotted name, for the command line and the Python API."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdistill import objectives
from jaxdistill.cli import did_you_mean
from jaxdistill.config.kinds import KINDS, refuse_foreign_options, turned
from jaxdistill.core import InputError

ALL = "all."
"""Prefix of an option's name that sets it in every stage that has it."""
WORDS = {"true": True, "false": False, "1": True, "0": False}
ALLOWED = {bool: "true or false", int: "a whole number", float: "a number"}
"""Allowed values on the command line, by type of the option, for errors."""


def with_options(
    stages: Sequence[Mapping[str, Any]], given: Mapping[str, Any], *, text: bool = False
) -> list[dict[str, Any]]:
    """Overrides options of all stages by dotted name; raises `InputError` for an unknown name.

    `stage2.run.seed` is an option of one stage, and `all.run.seed` of every stage that has it; a value for one stage overrides
    a value for all. If there is only one stage, names need no prefix.

    A `student.kind`, `teacher.kind` or `objective.kind` applies first, because it determines the section's options. Options
    that both kinds have keep their values; all others get their defaults. `run.minutes` replaces a config's `run.steps`.

    Args:
      text: the values are strings from the command line.
    """
    changed: list[dict[str, Any]] = json.loads(json.dumps(stages))
    for name in sorted(
        given, key=lambda name: (name.rpartition(".")[2] not in ("kind", "minutes"), not name.startswith(ALL))
    ):
        shown = f"--config.{name}" if text else repr(name)
        option, numbers = placed(name, len(changed), flag="--config." if text else "")
        having = [changed[number] for number in numbers if option in option_names(changed[number])]
        if not having:
            raise _unknown(option, shown.removesuffix(option if text else f"{option}'"), changed[numbers[0]], text=text)
        for stage in having:
            _replace(stage, option, given[name], text=text)
    return changed


def placed(name: str, count: int, *, flag: str = "") -> tuple[str, Sequence[int]]:
    """The option that a name refers to, and the stages, counted from 0, in which it applies."""
    first, _, option = name.partition(".")
    if first == "all":
        return option, range(count)
    if named := re.fullmatch(r"stage([1-9]\d*)", first):
        if int(named[1]) > count:
            raise InputError(f"{flag}{name}: the config has {count} {'stage' if count == 1 else 'stages'}.")
        return option, [int(named[1]) - 1]
    if count > 1:
        raise InputError(
            f"{flag}{name}: the config has {count} stages; write {flag}all.{name} for every stage that has the option, or "
            f"{flag}stage1.{name} for one stage."
        )
    return name, [0]


def _replace(stage: dict[str, Any], name: str, value: Any, *, text: bool) -> None:
    section, option = name.split(".")
    place = stage[section]
    value = typed_text(place[option], value, name) if text else value
    if option == "kind" and value != place[option]:
        stage[section] = turned(section, place, value) if section in KINDS else objectives.default_options(value)
    elif name == "run.minutes" and value:
        place["steps"] = 0
    stage[section][option] = value


def _unknown(name: str, before: str, stage: Mapping[str, Any], *, text: bool) -> InputError:
    """The error for an option that no stage has; names the kinds that have it, or a similar option.

    Args:
      before: prefix of the option as the user gave it.
    """
    section, _, option = name.partition(".")
    end = "" if text else "'"
    if name == "objective.name":
        return InputError(f"{before}{name}{end} is called {before}objective.kind{end}.")
    if section in KINDS and section in stage:
        try:
            refuse_foreign_options(section, stage[section]["kind"], [option])
        except InputError as error:
            return error
    close = _likely(name, option_names(stage), flag=before.lstrip("'"))
    return InputError(f"unknown option {before}{name}{end}.{close}{' --help lists the options.' * text}")


def typed_text(default: Any, text: str, name: str) -> Any:
    """Parses an option's text on the command line; the default determines the type."""
    shown = f"--config.{name}={text!r}"
    if isinstance(default, bool):
        if text.lower() not in WORDS:
            raise InputError(f"{shown} must be {ALLOWED[bool]}.")
        return WORDS[text.lower()]
    if isinstance(default, int | float):
        try:
            return type(default)(text.replace("_", "?"))
        except ValueError:
            raise InputError(f"{shown} must be {ALLOWED[type(default)]}.") from None
    if isinstance(default, list | tuple):
        return _tuple(text, shown)
    return text


def _tuple(text: str, shown: str) -> Any:
    """Parses `(1.0,2.0)` to a tuple; returns a single word unchanged, because some options accept one instead."""
    if not text.startswith(("(", "[", "'", '"')):
        try:
            number = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text
        return number if isinstance(number, tuple) else (number,)
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise InputError(f'{shown} is not a tuple; write one such as "(1.0,2.0)" or "(\'name\',)".') from None
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _likely(name: str, known: list[str], *, flag: str) -> str:
    """` Did you mean X?` for a similar option of the same section, or else of another section."""
    section, _, option = name.rpartition(".")
    for names in ([other for other in known if other.rpartition(".")[0] == section], known):
        if meant := did_you_mean(option, list({other.rpartition(".")[2]: None for other in names})):
            word = meant.removeprefix(" Did you mean ").removesuffix("?")
            return f" Did you mean {flag}{next(other for other in names if other.rpartition('.')[2] == word)}?"
    return ""


def option_names(options: Mapping[str, Any]) -> list[str]:
    """The dotted names of all options of a nested config."""
    return list(_names(options))


def _names(options: Mapping[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{name}" for name in _names(value))
        else:
            yield key
