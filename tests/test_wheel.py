"""The built wheel works from an empty folder: configs and embedded text are in it."""

import os
import shutil
import subprocess
import sys

import pytest
from setuptools import find_packages

from conftest import ROOT
from program import environment, tiny_arguments


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's content, as pip unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # setuptools would pack what an earlier build left there
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("jaxdistill-*.whl")
    assert wheel.stat().st_size < 1_000_000
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


def test_the_wheel_runs_from_an_empty_folder(installed, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "data").mkdir()
    text = "package:jaxdistill/assets/train.txt.bz2"
    pairs = "package:jaxdistill/assets/graded_pairs.tsv"
    arguments = tiny_arguments(tmp_path / "data", data__text=text, evals__pairs=pairs, objective__queue_size=32)
    command = [sys.executable, "-m", "jaxdistill.main", *arguments, "--workdir=run", "--dry_run"]
    where = "import jaxdistill; print(jaxdistill.__file__)"
    variables = environment() | {"PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", where], cwd=empty, env=variables, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(str(installed))
    done = subprocess.run(command, cwd=empty, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "26,000 rows" in done.stdout and "pairs/spearman" in done.stdout


def test_every_package_is_in_the_wheel(installed):
    expected = {name for name in find_packages(str(ROOT), include=["jaxdistill*"])} | {"jaxdistill.configs"}
    for name in expected:
        folder = installed / name.replace(".", os.sep)
        assert any(folder.glob("*.py")), f"{name} is not in the wheel: add it to [tool.setuptools] packages"
    assert (installed / "jaxdistill" / "assets" / "heldout.txt.bz2").stat().st_size > 10_000
    for template in ("report.html", "demo.html", "demo.js", "model_card.md"):
        assert (installed / "jaxdistill" / "assets" / template).is_file()
    papers = {path.name for path in (ROOT / "configs" / "papers").glob("*.toml")}
    assert papers and papers == {path.name for path in (installed / "jaxdistill" / "configs" / "papers").iterdir()}
