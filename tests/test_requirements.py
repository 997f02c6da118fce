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
LOCK = (ROOT / "requirements-test.lock").read_text()
SETTINGS = tomllib.loads((ROOT / "launch" / "lock.toml").read_text())
NOT_LOCKED = SETTINGS["pip"]["no-emit-package"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [
    Requirement(line)
    for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for line in lines
]


def on_linux(python: str) -> dict[str, str]:
    """What markers are evaluated with."""
    named = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    return {**default_environment(), **named}


def locked(python: str) -> dict[str, str]:
    """Name to version of what is installed on Linux for a version of Python."""
    linux = on_linux(python)
    pins = [Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if re.match(r"[a-z0-9]", line)]
    chosen = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(linux)]
    assert len({pin.name for pin in chosen}) == len(chosen)
    return {pin.name: next(iter(pin.specifier)).version for pin in chosen}


def test_every_pin_has_a_hash_and_no_address():
    assert "://" not in LOCK and "--find-links" not in LOCK
    entries = re.split(r"\n(?=[a-z0-9])", LOCK)[1:]
    assert len(entries) > 100 and all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_lock_has_every_dependency_in_a_version_that_the_package_accepts(python):
    asked = PROJECT["dependencies"] + [
        line for extra in SETTINGS["pip"]["extra"] for line in PROJECT["optional-dependencies"][extra]
    ]
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
