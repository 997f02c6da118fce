"""The package works as installed: the wheel, from an empty folder."""

import subprocess
import sys
import venv
import zipfile

import pytest

from conftest import ROOT
from program import environment, tiny_arguments

PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([sys.executable, *build], check=True)
    (made,) = folder.glob("jaxdistill-*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Runs the Python of a new environment with the wheel, in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    start = folder / "empty"
    start.mkdir()
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv").glob("lib/*/site-packages")
    (site / "shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    def run(*arguments):
        command = [str(folder / "venv" / "bin" / "python"), *arguments]
        done = subprocess.run(command, cwd=start, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    run(*PIP, "install", "--no-deps", "--ignore-installed", str(wheel))
    return run


def test_the_installed_package_distils_and_finds_configs_studies_and_text(python, tmp_path):
    code = f"""
import jaxdistill
from jaxdistill.config.shipped.studies import congen_alpha
assert not jaxdistill.__file__.startswith({str(ROOT)!r}) and not congen_alpha.__file__.startswith({str(ROOT)!r})
"""
    python("-c", code)
    text, pairs = "package:jaxdistill/core/assets/train.txt.bz2", "package:jaxdistill/core/assets/graded_pairs.tsv"
    _, *arguments = tiny_arguments(
        tmp_path, data__text=text, evals__pairs=pairs, objective__queue_size=32, run__steps=1
    )
    out = python("-m", "jaxdistill.main", "--config=congen.py:tiny", *arguments, f"--workdir={tmp_path / 'run'}")
    assert "26,000 rows" in out and "pairs/spearman" in out
    assert (tmp_path / "run" / "export" / "modules.json").is_file()
    assert "congen_alpha" in python("-m", "jaxdistill.sweep", "--help")


def test_the_wheel_has_every_file(wheel):
    folders = {ROOT / "jaxdistill": "jaxdistill", ROOT / "configs": "jaxdistill/config/shipped"}
    expected = {
        f"{inside}/{path.relative_to(folder).as_posix()}"
        for folder, inside in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    assert expected == {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
