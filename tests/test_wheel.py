"""The package works as installed: the wheel, from an empty folder, and the packages that it asks for."""

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT
from program import environment, tiny_arguments

PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *build], check=True)
    (path,) = folder.glob("jaxdistill-*.whl")
    return path


def test_the_installed_package_distils_and_finds_configs_studies_and_text(wheel, tmp_path):
    """In a new environment, from an empty folder."""
    (tmp_path / "empty").mkdir()
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (site / "shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    text, pairs = "package:jaxdistill/core/assets/train.txt.bz2", "package:jaxdistill/core/assets/graded_pairs.tsv"
    changed = dict(data__text=text, evals__pairs=pairs, objective__queue_size=32, run__steps=1)
    arguments = ["--config=congen.py:tiny", *tiny_arguments(tmp_path, **changed)[1:], f"--workdir={tmp_path / 'run'}"]
    code = f"""
import jaxdistill, sys
from jaxdistill import main
from jaxdistill.config.shipped.studies import congen_alpha
assert not jaxdistill.__file__.startswith({str(ROOT)!r}) and not congen_alpha.__file__.startswith({str(ROOT)!r})
main.main({arguments!r})
"""
    for command in ([*PIP, "install", "--no-deps", "--ignore-installed", str(wheel)], ["-c", code]):
        command = [str(tmp_path / "venv" / "bin" / "python"), *command]
        completed = subprocess.run(command, cwd=tmp_path / "empty", env=environment(), capture_output=True, text=True)
        assert completed.returncode == 0, completed.stderr[-2000:]
    assert "26,000 rows" in completed.stdout and "pairs/spearman" in completed.stdout
    assert (tmp_path / "run" / "export" / "modules.json").is_file()


def test_the_wheel_has_every_file(wheel):
    folders = {ROOT / "jaxdistill": "jaxdistill", ROOT / "configs": "jaxdistill/config/shipped"}
    expected = {
        f"{inside}/{path.relative_to(folder).as_posix()}"
        for folder, inside in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert expected == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_every_package_that_is_imported_is_declared():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    optional = (*project["optional-dependencies"].values(), *settings["dependency-groups"].values())
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jaxdistill").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) ([a-z]\w*)[\w.]*(?: import | as |  #|$)", code, re.M))
    lines = [line for group in (project["dependencies"], *optional) for line in group]
    declared, installed = {canonicalize_name(Requirement(line).name) for line in lines}, packages_distributions()
    for name in imported - sys.stdlib_module_names - {"jaxdistill"}:
        assert declared & set(map(canonicalize_name, installed.get(name, [name]))), f"{name} is not declared"
