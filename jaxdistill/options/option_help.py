"""Describes every option: its type, default and meaning, taken from the dataclasses."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from jaxdistill import config, objectives
from jaxdistill.config.kinds import KINDS, Kinds
from jaxdistill.options.config_file import find_config, first_line, load_config_module, shipped_configs

SECTIONS = tuple(config.PLAIN.values())

OBJECTIVE = "objective ("
"""Start of the names of the sections that each describe one objective."""
WIDTH = 100
"""Width of the help, in characters."""


class Option(NamedTuple):
    """One option of a section."""

    name: str
    type: str
    default: str
    meaning: str


def sections() -> Iterator[tuple[str, str, list[Option]]]:
    """Yields (name, first line of the docstring, options) of every section; each objective is a section."""
    for section in config.SECTIONS:
        if kinds := KINDS.get(section):
            yield section, _kinds_line(kinds), options_of_kinds(kinds)
        elif kind := config.PLAIN.get(section):
            yield section, first_line(kind), options_of(kind)
    for name in objectives.available():
        kind = objectives.options_class(name)
        yield f"{OBJECTIVE}{name})", first_line(kind), options_of(kind)


def _kinds_line(kinds: Kinds) -> str:
    """A paragraph on the kinds of a section: the default, and a sentence on each."""
    described = [f"`{name}`: {_first_sentence(kinds.options_class(name))}" for name in kinds.available()]
    return f"The kind, `{kinds.default}` by default, determines the other options. {' '.join(described)}"


def _first_sentence(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split()).partition(". ")[0].rstrip(".") + "."


def options_of_kinds(kinds: Kinds) -> list[Option]:
    """The options of all kinds of a section. A meaning begins with the kinds that have the option, unless all do."""
    having: dict[Option, list[str]] = {}
    for name in kinds.available():
        for option in options_of(kinds.options_class(name)):
            if option.name == "kind":
                option = option._replace(default=repr(kinds.default))
            having.setdefault(option, []).append(name)
    everywhere = len(kinds.available())
    return [
        option if len(names) == everywhere else option._replace(meaning=f"For {', '.join(names)}. {option.meaning}")
        for option, names in having.items()
    ]


def options_of(kind: type) -> list[Option]:
    """Each field of an options class with the docstring below it, in this class or in a base class."""
    hints = get_type_hints(kind, include_extras=True)
    below: dict[str, str] = {}
    for owner in reversed([owner for owner in kind.__mro__ if dataclasses.is_dataclass(owner)]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for node, after in zip(definition.body, definition.body[1:], strict=False):
            match node, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    below[name] = text
    return [
        Option(
            field.name,
            type_words(hints[field.name]),
            _shown(field.default),
            " ".join(below.get(field.name, "").split()),
        )
        for field in dataclasses.fields(kind)
    ]


def type_words(kind: Any) -> str:
    """A field's type as the help shows it: `float, above 0` or `linear | cosine`."""
    if get_origin(kind) is Annotated:
        plain, allowed = get_args(kind)
        return f"{type_words(plain)}, {allowed}{' parts' if get_origin(plain) is tuple else ''}"
    if get_origin(kind) is Literal:
        return " | ".join(str(value) or "empty" for value in get_args(kind))
    if get_origin(kind) is Union:
        return " | ".join(map(type_words, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"({', '.join('...' if part is Ellipsis else type_words(part) for part in get_args(kind))})"
    return kind.__name__


def _shown(default: Any) -> str:
    return "none" if default is dataclasses.MISSING else repr(default) if default != "" else "empty"


def all_configs() -> str:
    """Shipped configs with their presets, and every option with its type, default and meaning."""
    parts = ["Configs and their presets:\n"]
    for path in shipped_configs():
        module = load_config_module(path)
        parts.append(_wrapped(f"configs/{path.name}: {', '.join(module.PRESETS)}", indent=2))
        parts.append(_wrapped(first_line(module), indent=6))
        taken: dict[tuple[str, ...], list[str]] = {}
        for preset, arguments in getattr(module, "ARGUMENTS", {}).items():
            taken.setdefault(arguments, []).append(f"{preset}:ARGUMENT")
        for arguments, presets in taken.items():
            parts.append(_wrapped(f"{', '.join(presets)} with {', '.join(arguments)}", indent=6))
    listed = list(sections())
    for heading, of_objective in (
        ("Options (--config.SECTION.OPTION=VALUE):", False),
        ("Options of each objective (--config.objective.OPTION=VALUE):", True),
    ):
        parts.append(f"\n{heading}")
        for name, summary, options in listed:
            if name.startswith(OBJECTIVE) == of_objective:
                title = name.removeprefix(OBJECTIVE).removesuffix(")") if of_objective else name
                parts.append("\n" + _wrapped(f"{title}: {summary}", indent=2))
                parts += [_wrapped(f"{o.name}: {o.type}, default {o.default}  {o.meaning}", indent=4) for o in options]
    return "\n".join(parts)


def _wrapped(text: str, *, indent: int) -> str:
    """A paragraph of the help; lines after the first are indented further."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def one_config(spec: str) -> str:
    """The docstring of a config file."""
    return inspect.cleandoc(load_config_module(find_config(spec.partition(":")[0])).__doc__ or "")


def as_markdown() -> str:
    """The page `docs/options.md`."""
    parts = [
        "# Options\n\nEvery option of a training, with its default. `--config.SECTION.OPTION=VALUE` sets one on the command line, "
        '`options={"SECTION.OPTION": value}` in Python. Made by `python -m jaxdistill.options.option_help`.\n'
    ]
    for name, summary, options in sections():
        rows = [f"| `{o.name}` | {_cell(o.type)} | {_cell(o.default)} | {_cell(o.meaning)} |" for o in options]
        parts.append(
            "\n".join(
                [
                    f"## {name}\n\n{summary}\n",
                    "| option | type | default | meaning |",
                    "|---|---|---|---|",
                    *rows,
                    "",
                ]
            )
        )
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(as_markdown(), end="")
