"""Which module may import which: five layers, and no cycle of files or of folders in a layer."""

import ast
import pathlib
from collections.abc import Iterator, Mapping

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "jaxdistill"
LAYERS = (
    ("core",),
    ("core.ops", "encoders", "objectives"),
    ("data", "models"),
    ("config", "training", "evals"),
    ("core.cli", "main", "encode", "evaluate", "export", "mine", "sweep", "__main__"),
)
"""From the lowest; a file is in the layer of the longest name that it begins with. `__init__` imports the API on use."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
"""Files by the name of their module, without the package's."""


def imports(path: pathlib.Path, *, on_use: bool = True) -> Iterator[str]:
    """Modules of the package that a file imports; also inside functions if `on_use`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if on_use else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "jaxdistill":
            module = (node.module or "").removeprefix("jaxdistill").removeprefix(".")
            inside = {f"{module}.{alias.name}".removeprefix(".") for alias in node.names}
            yield from inside & FILES.keys() or {module} & FILES.keys()
        elif isinstance(node, ast.Import):
            yield from {alias.name.removeprefix("jaxdistill.") for alias in node.names} & FILES.keys()


def part(module: str) -> str:
    """The name in `LAYERS` that a module begins with."""
    names = module.split(".")
    prefixes = [".".join(names[:length]) for length in range(len(names), 0, -1)]
    return next(prefix for prefix in prefixes if prefix in LEVEL)


def assert_no_cycle(needs: Mapping[str, set[str]]) -> None:
    while free := {name for name, imported in needs.items() if not imported & needs.keys()}:
        needs = {name: imported for name, imported in needs.items() if name not in free}
    assert not needs


@pytest.mark.parametrize("module", [name for name in FILES if name != "__init__"])
def test_imports_go_down(module):
    for imported in imports(FILES[module]):
        if imported != "__init__":
            assert LEVEL[part(imported)] <= LEVEL[part(module)], f"{module} imports {imported} of a higher layer"


def test_no_cycle_of_files_or_folders():
    names = FILES.keys() - {"__init__"}
    assert_no_cycle({name: {*imports(FILES[name], on_use=False)} & names - {name} for name in names})
    folders: dict[str, set[str]] = {}
    for name in names:
        folders.setdefault(part(name), set()).update(map(part, {*imports(FILES[name])} & names))
    assert_no_cycle({name: imported - {name} for name, imported in folders.items()})


def test_the_package_opens_on_few_names():
    entries = [path for path in PACKAGE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"]
    assert len(entries) <= 14


def test_no_file_is_called_utils_and_none_imports_torch_at_its_start():
    for name, path in FILES.items():
        assert name.rpartition(".")[2] not in ("utils", "helpers", "common")
        code = path.read_text(encoding="utf-8")
        imported = {alias.name for node in ast.parse(code).body if isinstance(node, ast.Import) for alias in node.names}
        assert "torch" not in imported and "from torch" not in code
