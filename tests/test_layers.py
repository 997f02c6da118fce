"""Who may import whom: a file imports only lower layers, and inside a layer only its own folder."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "jaxdistill"
LAYERS = (
    ("__init__", "core", "versions"),
    ("cli", "config", "files", "installed", "mesh", "ops", "assets", "summary"),
    ("metrics", "plots"),
    ("optim", "checkpoint", "encoders", "objectives", "nested", "data", "evals", "card", "translate", "comparison"),
    ("step", "figures"),
    ("inference", "report"),
    ("labels", "export", "substitute", "evaluation_report"),
    ("build",),
    ("train", "overview", "run_report"),
    ("distill", "encode", "evaluate", "augment", "quantize"),
    ("stages", "search"),
    ("main",),
    ("sweep",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ALLOWED = {
    ("__init__", "inference"): "jaxdistill.load, imported on use",
    ("export", "train"): "the command restores a checkpoint, imported on use",
    ("config", "cli"): "suggestions in errors",
}


def part_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: pathlib.Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("jaxdistill."):
                yield name.split(".")[1] if name.split(".")[1] in LEVEL else "__init__"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    part = part_of(path)
    assert part in LEVEL, f"{part} has no layer yet: add it to LAYERS"
    for imported in imports(path):
        if imported != part and (part, imported) not in ALLOWED:
            assert LEVEL[imported] < LEVEL[part], f"{part} imports {imported}, which is not below it"


def test_no_file_is_called_utils_and_none_imports_torch():
    for path in PACKAGE.rglob("*.py"):
        assert path.stem not in ("utils", "helpers", "common")
        assert "import torch" not in path.read_text(encoding="utf-8")
