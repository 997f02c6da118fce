"""Who may import whom: a file imports only lower layers, and inside a layer only its own folder."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "jaxdistill"
LAYERS = (
    ("__init__", "bars", "core", "memory"),
    ("files", "signals"),
    ("ops", "assets", "paths"),
    ("configs", "runtime"),
    ("cluster",),
    ("encoders",),
    ("checkpoints", "objectives"),
    ("data",),
    ("evals", "surgery"),
    ("inference", "reporting"),
    ("teachers",),
    ("students",),
    ("config",),
    ("workdir",),
    ("training",),
    ("cli",),
    ("encode", "evaluate", "export", "main"),
    ("mine", "sweep"),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ALLOWED = {
    ("__init__", part): "the Python API, imported on use"
    for part in (
        "core",
        "encode",
        "evaluate",
        "export",
        "inference",
        "mine",
        "objectives",
        "students",
        "sweep",
        "teachers",
        "training",
    )
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


def test_no_import_cycle_between_files():
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}
    needs = {name: {found for found in modules_of(path, modules) if found != name} for name, path in modules.items()}
    while free := {name for name, others in needs.items() if not others & needs.keys()}:
        needs = {name: others for name, others in needs.items() if name not in free}
    assert not needs


def modules_of(path: pathlib.Path, modules) -> set[str]:
    """The files that a file imports at its top level; those imported on use may import it."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules.keys()
            found |= inside or {node.module} & modules.keys()
    return found


def test_no_file_is_called_utils_and_none_imports_torch_at_its_start():
    for path in PACKAGE.rglob("*.py"):
        assert path.stem not in ("utils", "helpers", "common")
        code = path.read_text(encoding="utf-8")
        imported = {alias.name for node in ast.parse(code).body if isinstance(node, ast.Import) for alias in node.names}
        assert "torch" not in imported and "from torch" not in code
