"""Targets and views that an objective would misread are refused before anything is trained."""

import contextlib
import dataclasses

import pytest

from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.options.config_file import read_config_file
from jaxdistill.options.overrides import with_options
from jaxdistill.students.cut import Cut
from jaxdistill.training.setup.objective import check_columns, check_views_differ, make_objective

from tiny_models import tiny_model

BOTH = (("text", "text"), ("positive", "positive"))


def objective_of(preset, **changed):
    options = {name.replace("__", "."): value for name, value in changed.items()}
    return make_objective(parse_config(*with_options(read_config_file(preset), options)))


@pytest.mark.parametrize(
    ("preset", "changed", "words"),
    [
        ("configs/gist.py:minilm-l3", {"teacher__whiten": 1.0, "teacher__kind": "stored"}, "each column by itself"),
        ("configs/gist.py:minilm-l3", {"teacher__components": 8, "teacher__kind": "stored"}, "each column by itself"),
        (
            "configs/gist.py:minilm-l3",
            {"teacher__kind": "vectors", "teacher__file": "v.npy"},
            "one vector for each row, but the teacher of objective gist reads text, positive; name a teacher model",
        ),
        (
            "configs/simtde.py:minilm-128-l3",
            {"teacher__kind": "stored", "teacher__whiten": 1.0},
            "objective simtde needs targets that include single tokens or layers; set --config.teacher.kind=live",
        ),
        (
            "configs/cosent.py:minilm-l3",
            {"teacher__components": 8},
            "an option of the kinds several, stored, vectors, not of labels",
        ),
    ],
)
def test_a_form_of_targets_that_the_objective_misreads_is_refused(preset, changed, words):
    with pytest.raises(InputError, match=words):
        objective_of(preset, **changed)


@pytest.mark.parametrize(
    ("preset", "columns", "changed", "words"),
    [
        ("l2.py:cosine", {"text": "subject", "second": "body"}, {}, "reads only text; .*--config.data.columns=subject.body$"),
        ("simcse.py:minilm-l3-sup", {"text": "a", "positive": "b"}, {}, "unknown view 'negative'"),
        ("trans_encoder.py:reranker", {"text": "a"}, {}, "the text has no column 'second'; it has text"),
        ("l2.py:cosine", {"text": "en", "translation": "de"}, {"student.trim": "all.tsv"}, ""),
        ("congen.py:minilm-l3", {"text": "a", "title": "b"}, {"data.chunk_tokens": 64}, ""),
        ("congen.py:minilm-l3", {"text": "a"}, {"objective.control_view": "crop", "teacher.kind": "stored"}, "'crop' differs at every"),
    ],
)  # fmt: skip
def test_columns_and_views_that_do_not_fit_are_refused(preset, columns, changed, words):
    given = changed | {"data.columns": tuple(columns.items())}
    config = parse_config(*with_options(read_config_file(f"configs/{preset}"), given))
    with pytest.raises(InputError, match=words) if words else contextlib.nullcontext():
        check_columns(config, make_objective(config))


@pytest.mark.parametrize(
    ("preset", "changed"),
    [
        ("configs/l2.py:cosine", {"teacher__whiten": 1.0, "teacher__kind": "stored", "data__columns": BOTH}),
        ("configs/congen.py:minilm-l3", {"teacher__kind": "vectors", "teacher__file": "v.npy", "student__model": "m"}),
        ("configs/gist.py:minilm-l3", {"teacher__kind": "stored"}),
    ],
)
def test_one_column_may_be_whitened_or_given(preset, changed):
    assert objective_of(preset, **changed).teacher_views


def test_a_sentence_is_not_its_own_positive_without_dropout(tmp_path):
    student = tiny_model(tmp_path)
    simcse = objective_of("configs/simcse.py:minilm-l3")
    for still in (Cut(dropout=0.0).in_training(student), static_like(student)):
        with pytest.raises(InputError, match="reads a sentence twice.*student.dropout=0.1"):
            check_views_differ(simcse, still, ["text"])
    check_views_differ(simcse, Cut(dropout=0.1).in_training(student), ["text"])
    check_views_differ(simcse, Cut(dropout=0.0, drophead=0.2).in_training(student), ["text"])
    deleting = objective_of("configs/simcse.py:minilm-l3", objective__views=("text", "delete_words"))
    check_views_differ(deleting, Cut(dropout=0.0).in_training(student), ["text"])
    check_views_differ(objective_of("configs/dual_l2.py:minilm-l3"), Cut(dropout=0.0).in_training(student), ["text"])


def static_like(student):
    """A model without layers, whose dropout rates have no effect."""
    architecture = dataclasses.replace(
        Cut(dropout=0.5).in_training(student).definition.architecture, family="static", layers=0
    )
    return dataclasses.replace(student, definition=dataclasses.replace(student.definition, architecture=architecture))
