"""Fills the templates of `assets/`: pages in HTML, and model cards in Markdown."""

import re
from typing import Any

MARKUP = re.compile(r"[\\`*\[\]<>|~&#$]|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore does at the ends of words."""


def plain(text: str) -> str:
    """The text as Markdown that shows it as it is, in one line, also in a table."""
    return MARKUP.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """The text as code within a line of Markdown, also in a table; line ends become `\\n`."""
    line = "\\n".join(text.splitlines()) + "\\n" * text.endswith("\n")
    if not re.search("[`|]|^ .* $", line):
        return f"`{line}`"
    # A table would split such code, and a code span end in it or lose its spaces.
    return f"<code>{MARKUP.sub(lambda match: f'&#{ord(match[0])};', line)}</code>"


def literal(value: object) -> str:
    """The value in Python, for a block of code that it cannot end."""
    shown = f'"{value}"' if isinstance(value, str) and re.fullmatch(r"[\w ./:@+-]*", value) else repr(value)
    return shown.replace("`", "\\x60")


def filled(name: str, **values: Any) -> str:
    """Fills a template with values; escapes them in .html. A name without a value is an error.

    Templates of Markdown write each text by one of the filters `plain`, `code` and `literal`.
    """
    # Imported here, because most programs need no template.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdistill", "assets"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=name.endswith(".md"),  # .html keeps the line break after a tag
        keep_trailing_newline=True,
    )
    environment.filters.update(plain=plain, code=code, literal=literal)
    return environment.get_template(name).render(**values)
