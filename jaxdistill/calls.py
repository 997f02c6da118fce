"""Errors of `distill` that name its arguments instead of the program's options."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from jaxdistill.core import InputError

HINT = " --help lists the options."
"""End of an error on the command line."""
OWN_FILES: dict[str, str] = {}
"""Maps files that hold an argument's text in memory to what errors call them instead."""
Given = ParamSpec("Given")
Result = TypeVar("Result")


def by_name(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The argument `options`, empty for None; raises `InputError` for anything but a mapping."""
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f'options={options!r:.60} must map names to values, such as {{"evals.every": 100}}.')
    return options or {}


def in_python_words(
    renamed: Mapping[str, str] | None = None,
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorates a program's function so that errors name its arguments instead of the program's flags.

    Args:
      renamed: maps flags or dotted options to arguments, if names differ.
    """

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        own = inspect.signature(function).parameters
        words = dict(renamed or {})

        @functools.wraps(function)
        def call(*args: Given.args, **options: Given.kwargs) -> Result:
            try:
                return function(*args, **options)
            except InputError as error:
                line = python_words(str(error), [*own, *options], words)
                for file, name in OWN_FILES.items():
                    line = line.replace(file, name)
                error.args = (line,)
                raise

        return call

    return decorated


def python_words(line: str, arguments: Iterable[str], renamed: Mapping[str, str]) -> str:
    """Rewrites a line about flags to one about arguments; commands in backquotes stay unchanged.

    >>> python_words("--top=0 must be at least 1; use --config.run.steps=5.", ["top"], {"run.steps": "steps"})
    'top=0 must be at least 1; use steps=5.'
    """
    known = set(arguments) | renamed.keys()

    def argument(match: re.Match[str]) -> str:
        name = match[1].removeprefix("config.")
        return renamed.get(name, name) if name != match[1] or name in known else match[0]

    def words(part: str) -> str:
        part = re.sub(r"(?<![\w-])--([a-z]\w*(?:\.\w+)*)", argument, part.replace(HINT, ""))
        for option in (option for option in renamed if "." in option):
            part = re.sub(rf"(?<![\w.'\"]){re.escape(option)}(?==)", renamed[option], part)
        return part

    parts = line.split("`")
    return "`".join(part if place % 2 else words(part) for place, part in enumerate(parts))
