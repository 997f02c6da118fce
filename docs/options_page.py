"""Makes the page of all options from the dataclasses, as the site is built (`conf.py`); on its own, prints it."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from jaxdistill.config.options import PLAIN, SECTIONS
from jaxdistill.core.plugins import KINDS, Kinds


class Option(NamedTuple):
    """One option of a section."""

    name: str
    type: str
    default: str
    meaning: str


def sections() -> Iterator[tuple[str, str, list[Option]]]:
    """Yields (name, first line of the docstring, options) of every section; each objective is a section."""
    for section in SECTIONS:
        if section in PLAIN:
            yield section, first_line(PLAIN[section]), options_of(PLAIN[section])
        elif section != "objective":
            yield section, kinds_line(KINDS[section]), options_of_kinds(KINDS[section])
    for name, kind in KINDS["objective"].classes.items():
        yield f"objective ({name})", first_line(kind), options_of(kind)


def kinds_line(kinds: Kinds) -> str:
    """A paragraph on the kinds of a section: the default, and a sentence on each."""
    texts = {name: " ".join((inspect.getdoc(kind) or "").split()) for name, kind in kinds.classes.items()}
    described = [f"`{name}`: {text.partition('. ')[0].rstrip('.')}." for name, text in texts.items()]
    return f"The kind, `{kinds.default}` by default, determines the other options. {' '.join(described)}"


def first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def options_of_kinds(kinds: Kinds) -> list[Option]:
    """The options of all kinds of a section. A meaning begins with the kinds that have the option, unless all do."""
    having: dict[Option, list[str]] = {}
    for name, kind in kinds.classes.items():
        for option in options_of(kind):
            if option.name == "kind":
                option = option._replace(default=repr(kinds.default))
            having.setdefault(option, []).append(name)
    everywhere = len(kinds.classes)
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
                    below[name] = " ".join(text.split())
    fields = dataclasses.fields(kind)
    return [Option(f.name, type_words(hints[f.name]), shown(f.default), below.get(f.name, "")) for f in fields]


def type_words(kind: Any) -> str:
    """A field's type in words: `float, above 0` or `linear | cosine`."""
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


def shown(default: Any) -> str:
    return "none" if default is dataclasses.MISSING else repr(default) if default != "" else "empty"


def page() -> str:
    """The page `docs/options.md`."""
    parts = [
        "# Options\n\nEvery option of a training, with its default. `--config.SECTION.OPTION=VALUE` sets one on the command line, "
        '`options={"SECTION.OPTION": value}` in Python.\n'
    ]
    for name, summary, options in sections():
        cells = [[cell.replace("|", "\\|") for cell in option] for option in options]
        rows = [f"| `{name}` | {' | '.join(rest)} |" for name, *rest in cells]
        head = [f"## {name}\n\n{summary}\n", "| option | type | default | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([*head, *rows, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
