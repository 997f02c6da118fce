"""One meaning for each axis letter: signatures use the letters of the table in `core.py` and no others."""

import re

from jaxdistill import core

from conftest import ROOT

AXES = re.compile(r'\b(?:Float|Integer|Bool|Real)\[[\w.]+, "([^"]*)"\]')
LISTED = set(re.findall(r"`([a-z])`", core.__doc__))


def test_signatures_use_only_letters_of_the_table():
    used = {
        (path.name, letter)
        for path in (ROOT / "jaxdistill").rglob("*.py")
        for axes in AXES.findall(path.read_text(encoding="utf-8"))
        for letter in re.findall(r"\b[a-zA-Z]\b", axes)
    }
    assert len(used) > 100
    assert not {(file, letter) for file, letter in used if letter not in LISTED}
    assert {letter for _, letter in used} == LISTED
