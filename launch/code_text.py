"""Writes the functions of Python files as training text for a student that finds code (`recommended.py:code`).

    python launch/code_text.py code.tsv src/ $(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')

Each function with a docstring gives a row: `text` is what somebody would ask for, the docstring's first sentence or the words of the
function's name, in turn; `positive` is the function on one line, every other time without its docstring. Name folders of your own
code: the closer the text is to the code that will be searched, the better.
"""

import argparse
import ast
import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

MIN_WORDS, MAX_WORDS, MAX_CHARACTERS = 3, 30, 2000
"""Words of a question, and characters of a function."""


def functions(path: Path) -> Iterator[tuple[str, str, str]]:
    """Name, docstring and source of each function of a file with a docstring; none of a file that does not parse."""
    try:
        source = path.read_text("utf-8")
        lines, tree = source.split("\n"), ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (docstring := ast.get_docstring(node)):
            yield node.name, docstring, "\n".join(lines[node.lineno - 1 : node.end_lineno])


def rows(folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A question and a function; each function and each question once."""
    seen, number = set[str](), 0
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("*.py"))):
        for name, docstring, source in functions(path):
            question = re.split(r"(?<=[.!?])\s|\n\s*\n|:\n", docstring, maxsplit=1)[0] if number % 3 else name
            question = " ".join(re.sub(r"[_`*]+", " ", question).split())
            code = source if number % 2 else re.sub(r'[rRuU]?("""|\'\'\').*?\1', "", source, count=1, flags=re.DOTALL)
            fits = MIN_WORDS <= len(question.split()) <= MAX_WORDS and len(source) <= MAX_CHARACTERS
            if fits and not {question, source} & seen:
                seen |= {question, source}
                number += 1
                yield question, " ".join(code.split())


def main(out: str, *folders: str) -> None:
    warnings.simplefilter("ignore", SyntaxWarning)  # of the files that are read
    with open(out, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None, lineterminator="\n")
        table.writerow(("text", "positive"))
        table.writerows(rows(folders))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="the table to write: code.tsv")
    parser.add_argument("folders", nargs="+", help="folders with Python files")
    options = parser.parse_args()
    main(options.out, *options.folders)
