"""Documentation: pages build without warnings, and the README stays short."""

import re
import subprocess
import sys

from conftest import ROOT


def test_the_readme_fits_on_a_screen_and_a_half():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 90 and max(map(len, lines)) <= 120


def test_the_files_that_contributing_names_exist():
    ignored = (ROOT / ".gitignore").read_text().split()
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"[`(](\w[\w.*-]*/[\w./*-]*)[`)]", text)) - set(ignored):
        assert any(
            any(ROOT.glob(f"{folder}{name.rstrip('/')}")) for folder in ("", "jaxdistill/", "jaxdistill/core/")
        ), name


def test_pages_build_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
