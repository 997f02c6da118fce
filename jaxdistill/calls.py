"""Programs as Python functions: modules that can be called, and errors that name arguments instead of flags."""

import argparse
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from jaxdistill.cli import Parser
from jaxdistill.core import InputError

HINT = " --help lists the options."
"""End of an error on the command line."""
FLAGS = {"text": "input", "prompt_name": "prompt", "corpus_prompt_name": "corpus_prompt"}
"""Maps arguments of functions to the programs' flags, if names differ: arguments are named as in `Embedder.encode`."""
OWN_FILES: dict[str, str] = {}
"""Maps files that hold an argument's text in memory to what errors call them instead."""
Given = ParamSpec("Given")
Result = TypeVar("Result")


def make_callable(name: str, function: Callable[..., Any]) -> None:
    """Makes a program's module `name` callable as `function`, such as `jaxdistill.evaluate(...)`; `help` and editors show the
    function."""
    signature = inspect.signature(function)
    shown = f"{name}{signature}\n\n{inspect.getdoc(function)}"

    class Program(types.ModuleType):
        __call__ = staticmethod(function)
        __signature__ = signature
        __doc__ = property(lambda self: shown)  # pyright: ignore[reportAssignmentType] - pydoc reads it from the object

    module = sys.modules[name]
    module.__class__ = Program
    module.__dict__.setdefault("__all__", [function.__name__])  # what `help` lists


def options_of_call(
    parser: Parser, arguments: Mapping[str, Any], *, repeated: Sequence[str] = ()
) -> argparse.Namespace:
    """Converts the arguments of a program's function to its options, checked as on the command line.

    Args:
      arguments: the arguments by name; `show_progress_bar` is the opposite of `--quiet`.
      repeated: flags that are repeated for several values.
    """
    known = parser.defaults()
    options = {flag: value for name, value in arguments.items() if (flag := _flag(name, known)) in known}
    if not isinstance(shown := arguments["show_progress_bar"], bool):
        raise InputError(f"show_progress_bar={shown!r:.60} must be True or False.")
    return parser.parse_call(options | {"quiet": not shown}, joined=["parts"], repeated=repeated)


def by_name(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The argument `options`, empty for None; raises `InputError` for anything but a mapping."""
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f'options={options!r:.60} must map names to values, such as {{"evals.every": 100}}.')
    return options or {}


def _flag(argument: str, known: Mapping[str, Any]) -> str:
    flag = FLAGS.get(argument, argument)
    return flag if flag in known else argument


def in_python_words(
    renamed: Mapping[str, str] | None = None,
) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorates a program's function so that errors name its arguments instead of the program's flags.

    Args:
      renamed: maps flags or dotted options to arguments, if names differ.
    """

    def decorated(function: Callable[Given, Result]) -> Callable[Given, Result]:
        own = inspect.signature(function).parameters
        words = {flag: name for name, flag in FLAGS.items() if name in own} | dict(renamed or {})

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
