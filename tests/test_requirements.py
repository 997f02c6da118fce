"""The locked versions, from which the tests are installed, are those that the package asks for."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT

LOCK = (ROOT / "launch" / "requirements-test.txt").read_text()
NOT_LOCKED = tomllib.loads((ROOT / "launch" / "lock.toml").read_text())["pip"]["no-emit-package"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = PYPROJECT["project"], PYPROJECT["dependency-groups"]
EXTRAS = PROJECT["optional-dependencies"]


def on_linux(python: str) -> dict[str, str]:
    """What markers are evaluated with."""
    named = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return {**default_environment(), **named}


def test_the_lock_names_no_address():
    assert "://" not in LOCK and "--find-links" not in LOCK


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_has_every_dependency_in_a_version_that_the_package_accepts(python):
    linux = on_linux(python)
    pins = [Requirement(line) for line in LOCK.splitlines() if not line.startswith("#")]
    chosen = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(linux)]
    locked = {pin.name: next(iter(pin.specifier)).version for pin in chosen}
    assert len(locked) == len(chosen)
    for requirement in map(Requirement, PROJECT["dependencies"] + EXTRAS["tpu"] + GROUPS["test"]):
        name = canonicalize_name(requirement.name)
        if name not in NOT_LOCKED and (requirement.marker is None or requirement.marker.evaluate(linux)):
            assert requirement.specifier.contains(locked[name]), (
                f"{name} is not {requirement}: renew the lock, see CONTRIBUTING.md"
            )


def test_every_package_that_is_imported_is_declared():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jaxdistill").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) ([a-z]\w*)[\w.]*(?: import | as |  #|$)", code, re.M))
    lines = [line for group in (PROJECT["dependencies"], *EXTRAS.values(), *GROUPS.values()) for line in group]
    declared, installed = {canonicalize_name(Requirement(line).name) for line in lines}, packages_distributions()
    for name in imported - sys.stdlib_module_names - {"jaxdistill"}:
        assert declared & set(map(canonicalize_name, installed.get(name, [name]))), f"{name} is not declared"
