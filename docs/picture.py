"""Draws the picture of docs/how-it-works.md, which folders import which, between its marks: python docs/picture.py"""

import ast
import pathlib
import re

PAGE = pathlib.Path(__file__).with_name("how-it-works.md")
PACKAGE = pathlib.Path(__file__).parent.parent / "jaxdistill"
MARKS = re.compile(r"(<!-- picture, by docs/picture.py -->\n).*?(<!-- end -->)", re.S)
SHOWN = {
    "main": "main.py: the command",
    "training": "training: run, step, loop, hooks",
    "students": "students: kinds",
    "teachers": "teachers: kinds",
    "objectives": "objectives: losses",
    "surgery": "surgery: smaller models",
    "checkpoints": "checkpoints: models on disk",
    "encoders": "encoders: the network",
    "data": "data: text, tokens, batches",
    "ops": "ops: products, queue, norms",
    "workdir": "workdir: a run on disk",
    "cluster": "cluster: mesh, processes",
}
"""Parts of the package in the picture, with what they hold; those that nearly all import are left out."""


def imported(part: str) -> set[str]:
    """The parts of the picture that the files of a part import."""
    path = PACKAGE / part
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    names = (
        node.module
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    )
    return {name.split(".")[1] for name in names if name.startswith("jaxdistill.")} & SHOWN.keys() - {part}


def arrows() -> list[tuple[str, str]]:
    """Who imports whom, without what follows from other arrows."""
    direct = {part: imported(part) for part in SHOWN}

    def reached(part: str) -> set[str]:
        return direct[part] | {deeper for one in direct[part] for deeper in reached(one)}

    return [
        (part, other)
        for part in SHOWN
        for other in SHOWN
        if other in direct[part] and not any(other in reached(one) for one in direct[part] - {other})
    ]


def with_picture(page: str) -> str:
    """The page with the present picture."""
    lines = [f'  {part}["{what}"]' for part, what in SHOWN.items()]
    lines += [f"  {part} --> {other}" for part, other in arrows()]
    drawn = "\n".join(["", "```mermaid", "graph TD", *lines, "```", "", ""])
    return MARKS.sub(lambda found: found[1] + drawn + found[2], page)


if __name__ == "__main__":
    PAGE.write_text(with_picture(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
