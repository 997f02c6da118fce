"""Documentation: pages build without warnings, the options page agrees with the code, and the README stays short."""

import re
import subprocess
import sys

from jaxdistill.files import parts

from conftest import ROOT


def test_the_options_page_is_what_the_code_says():
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    made = parts.load_module(str(ROOT / "docs" / "options_page.py")).page()
    assert page == made, "run: python docs/options_page.py > docs/options.md"


def test_the_api_page_is_what_the_code_says():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == parts.load_module(str(ROOT / "docs" / "api_page.py")).page(), (
        "run: python docs/api_page.py > docs/api.md"
    )


def test_the_readme_has_at_most_100_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_files_that_contributing_names_exist():
    ignored = (ROOT / ".gitignore").read_text().split()
    for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        folders = re.findall(r"`(\S+/)", line.split("|")[1]) if line.startswith("| `") else []
        for name in set(re.findall(r"[`(](\w[\w./*-]*)[`)]", line)) - set(ignored):
            paths = [f"{folder}{name.rstrip('/')}{end}" for folder in ("", *folders) for end in ("", ".py")]
            if folders or "/" in name:
                assert any(list(ROOT.glob(path)) for path in paths), name


def test_pages_build_without_warnings(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
