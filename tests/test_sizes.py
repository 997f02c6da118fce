"""The sizes that keep the code readable: files, functions and their median."""

import ast
import collections
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
PACKAGE = [path for path in FILES if path.is_relative_to(ROOT / "jaxdistill")]
MOST_ARGUMENTS, MOST_POSITIONAL = 8, 4
RECORDS = ("dataclass", "NamedTuple")
OPTIONS = {"Architecture", "Data", "Evals", "Measured", "Model", "Modules", "Optimizer", "RunOptions", "Sources"}
"""Classes whose fields are given by name: sections of the config, settings of a network, what a folder states of a model, flags of an
evaluation, and what it reads of a model and reports of it."""
CALLS_OF_OTHERS = {"eval_shape", "info", "partial", "reshape", "uniform", "warning", "zip"}
"""Functions of libraries that take many positional arguments, or pass them on."""
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


def arguments_of(node: ast.ClassDef) -> int:
    """The number of arguments of a class's constructor, which for a dataclass are its fields."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return len([*member.args.posonlyargs, *member.args.args[1:], *member.args.kwonlyargs])
    if not any(word in ast.unparse(part) for part in (*node.decorator_list, *node.bases) for word in RECORDS):
        return 0
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    return len([field for field in fields if "ClassVar" not in ast.unparse(field.annotation)])


def test_no_class_takes_many_arguments():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE]
    classes = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name not in OPTIONS
    ]
    assert not [(node.name, arguments_of(node)) for node in classes if arguments_of(node) > MOST_ARGUMENTS]


def test_no_call_has_many_positional_arguments():
    many = []
    for path in PACKAGE:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and sum(not isinstance(given, ast.Starred) for given in node.args) > MOST_POSITIONAL
            ):
                called = ast.unparse(node.func)
                if called.rpartition(".")[2] not in CALLS_OF_OTHERS:
                    many.append(f"{path.relative_to(ROOT)}:{node.lineno} {called}")
    assert not many


def names_of(node: ast.AST) -> str:
    """The name that a variable or an argument has; empty for other nodes."""
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""


@pytest.mark.parametrize("word", ["found"])
def test_a_name_says_what_it_holds(word):
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE}
    used = [
        f"{path.name}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if names_of(node) == word
    ]
    assert not used, "say what was found: names, files, scores, a match"


def test_no_two_classes_have_one_name():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE]
    names = collections.Counter(
        node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    assert not [name for name, count in names.items() if count > 1]
