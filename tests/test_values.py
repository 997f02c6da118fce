"""Kinds with their options as arguments of `distill`: the same configs as from options by name."""

import pytest

import jaxdistill
from jaxdistill.config import flat_stages
from jaxdistill.core import InputError
from jaxdistill.training.distill import configured


def config_of(arguments=None, options=None, config="configs/l2.py:tiny", text="", **objects):
    return flat_stages(configured(config, text, arguments or {}, objects, options or {}))


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
    options = {name: value for name, value in named.items() if not name.endswith(".kind")}
    assert config_of(options=options, config="configs/l2.py:tiny:teacher=stored:objective=congen") == values


def test_an_argument_or_an_option_reaches_one_stage_or_all():
    arguments = {"steps": 3, "seed": 5, "columns": (("text", "body"),)}
    options = {"stage2.run.steps": 7, "stage2.data.text": "own.txt", "batch_size": 16}
    found = config_of(arguments, options, config="configs/ckd.py:two-stage", text="all.txt")
    names = ("run.steps", "run.seed", "data.text", "data.columns", "data.batch_size")
    of = [[found[f"stage{number}.{name}"] for number in (1, 2)] for name in names]
    assert of == [[3, 7], [5, 5], ["all.txt", "own.txt"], [[["text", "body"]]] * 2, [16, 16]]
    for name in ("run.steps", "stage3.run.steps", "stage1.run.step"):
        with pytest.raises(InputError, match=f"unknown option {name}. Did you mean stage.*run.steps"):
            config_of(options={name: 1}, config="configs/ckd.py:two-stage")
