"""Targets and views that an objective would misread are refused before anything is trained."""

import dataclasses

import pytest

from jaxdistill.core import InputError
from jaxdistill.models.students.cut import Cut
from jaxdistill.training.objective import check_models, make_objective

from program import config_of
from tiny_models import tiny_model

BOTH = (("text", "text"), ("positive", "positive"))


def objective_of(preset, **changed):
    options = {name.replace("__", "."): value for name, value in changed.items()}
    return make_objective(config_of(preset, options))


@pytest.mark.parametrize(
    ("preset", "changed", "words"),
    [
        ("configs/gist.py:minilm-l3", {"teacher__whiten": 1.0, "teacher__kind": "stored"}, "each column by itself"),
        (
            "configs/gist.py:minilm-l3",
            {"teacher__kind": "vectors", "teacher__file": "v.npy"},
            "one vector for each row, but the teacher of objective gist reads text, positive; name a teacher model",
        ),
        (
            "configs/simtde.py:minilm-128-l3",
            {"teacher__kind": "stored", "teacher__whiten": 1.0},
            "objective simtde needs targets that include single tokens or layers; choose .*:teacher=live",
        ),
        ("configs/cosent.py:minilm-l3", {"teacher__kind": "stored"}, "does not go with objective cosent"),
        ("configs/l2.py:cosine", {"data__columns": BOTH}, "reads only text; .*--config.data.columns=text.positive$"),
        (
            "configs/ckd.py:minilm-l3",
            {"objective__view": "crop", "teacher__kind": "stored"},
            "'crop' differs at every step",
        ),
    ],
)
def test_what_the_objective_misreads_is_refused(preset, changed, words):
    with pytest.raises(InputError, match=words):
        objective_of(preset, **changed)


def test_a_sentence_is_not_its_own_positive_without_dropout(tmp_path):
    student = tiny_model(tmp_path)

    def check(preset, kind, **options):
        config = dataclasses.replace(config_of(preset, options), student=kind)
        check_models(config, make_objective(config), student, [student])

    with pytest.raises(InputError, match="reads a sentence twice.*student.dropout=0.1"):
        check("configs/simcse.py:minilm-l3", Cut(dropout=0.0))
    check("configs/simcse.py:minilm-l3", Cut(dropout=0.1))
    check("configs/simcse.py:minilm-l3", Cut(dropout=0.0, drophead=0.2))
    check("configs/simcse.py:minilm-l3", Cut(dropout=0.0), **{"objective.views": ("text", "delete_words")})
    check("configs/dual_l2.py:minilm-l3", Cut(dropout=0.0))
