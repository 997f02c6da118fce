"""Kinds with their options as arguments of `distill`: the same configs as from options by name."""

import dataclasses

import pytest

import jaxdistill
from jaxdistill.config import flat_stages
from jaxdistill.core import InputError
from jaxdistill.students.cut import Cut
from jaxdistill.training.api import options_of, whole_config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shallow(Cut):
    """A student of one's own."""

    kind: str = "test_values:Shallow"
    depth: int = 2


def config_of(short=None, options=None, config="configs/l2.py:tiny", **values):
    return flat_stages(whole_config(config, "", options_of(short or {}, values), options or {}))


def test_values_and_options_by_name_are_the_same_config():
    values = config_of(
        student=jaxdistill.students.Cut("teacher", layers="even:1", head="linear"),
        teacher=jaxdistill.teachers.Stored("MODEL", dims=8),
        objective=jaxdistill.objectives.ConGen(alpha=0.5),
    )
    # A value is complete: what it does not name has the kind's default, not the config's.
    named = {name: value for name, value in values.items() if name.startswith(("student.", "teacher.", "objective."))}
    assert (named["student.layers"], named["student.head"]) == ("even:1", "linear")
    assert (named["teacher.kind"], named["teacher.model"], named["teacher.dims"]) == ("stored", "MODEL", 8)
    assert (named["objective.kind"], named["objective.alpha"]) == ("congen", 0.5)
    assert config_of(options=named) == values


@pytest.mark.parametrize("kind", ["cut", "fresh", "static", "cross_encoder"])
def test_every_kind_of_student_is_a_value(kind):
    made = getattr(jaxdistill.students, kind.title().replace("_", ""))("MODEL")
    assert config_of(student=made) == config_of(options={"student.kind": kind, **untouched(made)})


def untouched(value):
    return {f"student.{name}": option for name, option in vars(value).items() if name != "kind"}


def test_a_class_of_ones_own_is_a_value_too():
    parsed = config_of(student=Shallow("MODEL", depth=3))
    assert (parsed["student.kind"], parsed["student.depth"], parsed["student.model"]) == (
        "test_values:Shallow",
        3,
        "MODEL",
    )


def test_a_value_is_for_the_first_stage():
    parsed = config_of(config="configs/ckd.py:tiny-two-stage", student=jaxdistill.students.Cut("MODEL"))
    assert parsed["stage1.student.model"] == "MODEL" != parsed["stage2.student.model"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(student="static"), r"student='static' is no student with its options; give one such as jaxdistill.students.Cut"),
        (dict(student=Cut), r"student=<class .* is no student with its options"),
        (dict(teacher=jaxdistill.students.Cut("M")), r"teacher=Cut\(.* is no teacher with its options; .*jaxdistill.teachers.Stored"),
        (dict(objective=3), r"objective=3 is no objective with its options"),
        (dict(student=Cut("M"), layers=3), r"layers and student exclude each other; .*Cut\("),
        (dict(student=Cut("M"), options={"student.head": "linear"}), r"argument student and options\['student.head'\] are the same"),
        (dict(student=Cut(layers="even:3")), r"student.model is empty; a student of kind cut starts from a model"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_one_line(tmp_path, given, words):
    with pytest.raises(InputError, match=words) as raised:
        jaxdistill.distill(**{"teacher": "", "config": "configs/l2.py:tiny", "workdir": tmp_path / "run", **given})
    assert "\n" not in str(raised.value)
