"""The sizes that keep the code readable: files, functions and their median."""

import ast
import pathlib
import statistics

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = ("jaxdistill", "tests", "benchmarks", "configs")
DATA = {"tests/quickstart_text", "tests/paper_tables"}
"""Tables, not code."""
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not DATA & {str(parent.relative_to(ROOT)) for parent in path.parents if parent.is_relative_to(ROOT)}
]
LONGEST_FILE, LONGEST_FUNCTION, LARGEST_MEDIAN = 400, 60, 8


def lengths_of_functions(path: pathlib.Path) -> dict[str, int]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, functions)]
    return {f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1 for node in found}


def test_no_file_is_long():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FILE}


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_function_is_long(folder):
    inside = [path for path in FILES if path.is_relative_to(ROOT / folder)]
    lengths = {name: length for path in inside for name, length in lengths_of_functions(path).items()}
    assert not {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION}
    if folder in ("jaxdistill", "tests"):
        assert statistics.median(lengths.values()) <= LARGEST_MEDIAN
