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

RENEW = "renew the lock, see CONTRIBUTING.md"
LOCK = (ROOT / "launch" / "requirements-test.txt").read_text()
SETTINGS = tomllib.loads((ROOT / "launch" / "lock.toml").read_text())
NOT_LOCKED = SETTINGS["pip"]["no-emit-package"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, EXTRAS, GROUPS = (
    PYPROJECT["project"],
    PYPROJECT["project"]["optional-dependencies"],
    PYPROJECT["dependency-groups"],
)
DECLARED = [
    Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values(), *GROUPS.values()) for line in lines
]


def on_linux(python: str) -> dict[str, str]:
    """What markers are evaluated with."""
    named = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return {**default_environment(), **named}


def locked(python: str) -> dict[str, str]:
    """Name to version of what is installed on Linux for a version of Python."""
    linux = on_linux(python)
    pins = [Requirement(line) for line in LOCK.splitlines() if not line.startswith("#")]
    chosen = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(linux)]
    assert len({pin.name for pin in chosen}) == len(chosen)
    return {pin.name: next(iter(pin.specifier)).version for pin in chosen}


def test_the_lock_names_no_address():
    assert "://" not in LOCK and "--find-links" not in LOCK


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_has_every_dependency_in_a_version_that_the_package_accepts(python):
    asked = PROJECT["dependencies"] + EXTRAS["tpu"] + GROUPS["test"]
    pins = locked(python)
    for requirement in map(Requirement, asked):
        if requirement.marker and not requirement.marker.evaluate(on_linux(python)):
            continue
        name = canonicalize_name(requirement.name)
        assert name in pins or name in NOT_LOCKED, f"{requirement} is not locked for Python {python}: {RENEW}"
        assert name not in pins or requirement.specifier.contains(pins[name]), (
            f"{name} {pins[name]} is no {requirement}: {RENEW}"
        )


def test_every_package_that_is_imported_is_declared():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jaxdistill").rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) ([a-z]\w*)[\w.]*(?: import | as |  #|$)", code, re.M))
    declared, installed = {canonicalize_name(each.name) for each in DECLARED}, packages_distributions()
    optional = {"jaxdistill"}
    for name in imported - sys.stdlib_module_names - optional:
        assert declared & set(map(canonicalize_name, installed.get(name, [name]))), f"{name} is not declared"
