"""Writes docs/api.md, the Python API in Markdown: signatures and docstrings as the code has them.

python docs/api_page.py > docs/api.md
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import jaxdistill
from jaxdistill.encode import encode
from jaxdistill.evaluate import evaluate
from jaxdistill.export import export
from jaxdistill.inference import Embedder, load
from jaxdistill.mine import mine
from jaxdistill.sweep import sweep
from jaxdistill.training.api import Result, distill

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "distill": distill,
    "load": load,
    "encode": encode,
    "mine": mine,
    "evaluate": evaluate,
    "export": export,
    "sweep": sweep,
}
"""Functions of `jaxdistill` by their names there."""
CLASSES: dict[type, tuple[str, ...]] = {
    Result: (),
    Embedder: ("encode", "encode_query", "encode_document", "similarity", "score", "warm_up"),
}
"""Classes that functions give, and their methods on the page."""
INTRODUCTION = """# Python API

All errors of input are `jaxdistill.InputError`, a `ValueError` with a one-line message. Students, teachers and objectives are
classes of `jaxdistill.students`, `jaxdistill.teachers` and `jaxdistill.objectives`, with the [options](options.md) of the config:
`jaxdistill.objectives.ConGen(alpha=1.0)`. In the examples, `TEACHER` is the folder of a model
with vectors of 16 numbers, and `model` is `jaxdistill.load(TEACHER)`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for name, function in FUNCTIONS.items():
        parts += [f"## `jaxdistill.{name}`", signature(function, f"jaxdistill.{name}"), described(function)]
    for kind, methods in CLASSES.items():
        parts += [f"## `{kind.__name__}`", described(kind), *fields(kind)]
        for name in methods:
            method = getattr(kind, name)
            parts += [f"### `{kind.__name__}.{name}`", signature(method, name), described(method)]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def definition(documented: Any) -> tuple[Any, list[str]]:
    """The syntax tree of a function or class, and its source lines."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(documented)))
    (tree,) = ast.parse(source).body
    return tree, source.splitlines()


def signature(function: Callable[..., Any], name: str) -> str:
    """The signature as written in its source, under the name by which it is called, with several arguments a line."""
    tree, lines = definition(function)
    arguments = [line.strip().replace(" ", "\xa0") for line in lines[tree.lineno - 1 : tree.body[0].lineno - 1]]
    head = (
        re.sub(r"\(\s*(self,?\s*)?", "(", " ".join(arguments), count=1)
        .replace(", )", ")")
        .replace(" )", ")")
        .removesuffix(":")
    )
    filled = textwrap.fill(f"{name}{head[len(f'def {tree.name}') :]}", 112, subsequent_indent="    ")
    return f"```python\n{filled}\n```".replace("\xa0", " ")


def fields(kind: type) -> Iterator[str]:
    """The fields and properties of a class with what is said of them."""
    tree, _ = definition(kind)
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield f"- `{name}: {ast.unparse(node.annotation)}`: {' '.join(text.split())}"
            case ast.AnnAssign(target=ast.Name(id=name)), _:
                yield f"- `{name}: {ast.unparse(node.annotation)}`"
            case ast.FunctionDef(name=name, returns=returns), _ if _is_property(node) and not name.startswith("_"):
                yield f"- `{name}: {ast.unparse(returns)}`: {' '.join((ast.get_docstring(node) or '').split())}"


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(one).endswith("property") for one in node.decorator_list)


def described(documented: Any) -> str:
    """A docstring as Markdown: its sections as lists, its examples as code."""
    text = inspect.getdoc(documented) or ""
    blocks = re.split(r"\n\n", text)
    return "\n\n".join(map(_block, blocks))


def _block(block: str) -> str:
    if block.startswith(">>>"):
        return f"```pycon\n{block}\n```"
    title, _, rest = block.partition("\n")
    if title in ("Args:", "Raises:"):
        items = re.split(r"\n(?=\S)", textwrap.dedent(rest))
        named = (" ".join(item.split()).partition(": ") for item in items)
        listed = "\n".join(f"- {_code(name)}: {what}" for name, _, what in named)
        return f"{'Arguments' if title == 'Args:' else 'Errors'}:\n\n{listed}"
    if title == "Returns:":
        return f"Returns: {' '.join(rest.split())}"
    return block


def _code(names: str) -> str:
    """The names before a colon as code, without the words between them."""
    return re.sub(r"\w+", lambda word: word[0] if word[0] == "to" else f"`{word[0]}`", names)


if __name__ == "__main__":
    assert jaxdistill.__all__
    print(page(), end="")
