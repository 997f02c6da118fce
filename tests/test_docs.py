"""Documentation: pages build without warnings, the options page is that of the code, and the README stays short."""

import subprocess
import sys

from jaxdistill.training.option_help import as_markdown

from conftest import ROOT


def test_the_options_page_is_what_the_code_says():
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == as_markdown(), "run: python -m jaxdistill.training.option_help > docs/options.md"


def test_the_readme_has_at_most_100_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_pages_build_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
