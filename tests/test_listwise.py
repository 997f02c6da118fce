"""Where the scores of a row's candidates come from: columns of the text, bi- and cross-encoders."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.config.options import Config, RunOptions
from jaxdistill.core import InputError
from jaxdistill.data.options import Data
from jaxdistill.data.tokens import build_store
from jaxdistill.models import surgery
from jaxdistill.models.inference import Embedder
from jaxdistill.models.teacher import TargetInputs
from jaxdistill.models.teachers import Columns, Labels
from jaxdistill.objectives.listwise import Listwise
from jaxdistill.training.build import Targets, make_objective

from tiny_models import tiny_model

COLUMNS = ("text", "positive", "negative")
ROWS = [
    ("the cat sleeps", "the cat", "rain", "0.9", "0.25"),
    ("the dog", "dog", "the cat", "", "0.5"),
    ("rain", "", "dog", "", ""),
    ("the cat sleeps", "the cat", "dog", "0.75", "-0.5"),
]
"""A row without a score, one without a positive, and a query in two rows."""


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model")


@pytest.fixture
def path(tmp_path):
    """The rows with columns of scores; a cell that is missing is null."""
    names = (*COLUMNS, "score_positive", "score_negative")
    cells = [(*row[:3], *(float(score) if score else None for score in row[3:])) for row in ROWS]
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in cells]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "rows.jsonl"


def store_of(path, model, **options):
    folder = path.parent / "cache"
    standard = dict(tokenizer=model.tokenizer, max_length=16, cache_folder=folder, columns=COLUMNS, dedupe=False)
    return build_store([str(path)], **standard | options)


def column_scores(names, data, store, *, count, largest=np.inf):
    """The targets of scores in columns, for an objective that reads `count` scores of this magnitude."""
    objective = SimpleNamespace(scored=("text",) * (count + 1), largest_label=largest)
    teacher = Columns(names=",".join(names))
    teacher.check()
    inputs = TargetInputs(store, data, objective, (), (), np.float32, progress=False)
    return teacher.stored(inputs)[0]


def test_scores_are_read_from_columns_of_the_text(path, model, tmp_path):
    data = Data(text=str(path))
    (tmp_path / "exclude.txt").write_text("the dog\n")  # the query of the row that lacks a score
    store = store_of(path, model, exclude=[str(tmp_path / "exclude.txt")])
    targets = column_scores(("score_positive", "score_negative"), data, store, count=2)
    np.testing.assert_allclose(targets[np.arange(2)], [[0.9, 0.25], [0.75, -0.5]])
    with pytest.raises(InputError, match=r"row 2 has '' in the column 'score_positive', not a finite number"):
        column_scores(("score_positive", "score_negative"), data, store_of(path, model), count=2)
    with pytest.raises(InputError, match="has 1 numbers per row, .* reads 2, one score per pair"):
        column_scores(("score_negative",), data, store, count=2)
    with pytest.raises(InputError, match="per row, up to 0.9; .* from -0.8 to 0.8"):
        column_scores(("score_positive", "score_negative"), data, store, count=2, largest=0.8)
    with pytest.raises(InputError, match="no column 'margin'"):
        column_scores(("score_negative", "margin"), data, store, count=2)


def test_a_bi_or_a_cross_encoder_scores_every_candidate_once(path, model, tmp_path):
    store = store_of(path, model)
    columns = [list(store.texts(column)) for column in COLUMNS]
    for labeller in (model, surgery.cross_encoder(model, key=jax.random.key(0))):
        data, objective = Data(cache_folder=str(tmp_path / "c")), Listwise()
        inputs = TargetInputs(store, data, objective, (), [labeller], jnp.float32, progress=False)
        (labels,) = Labels().stored(inputs)
        expected = [Embedder(labeller).score(columns[0], other) for other in columns[1:]]
        np.testing.assert_allclose(labels, np.stack(expected, axis=1), atol=1e-5)


@pytest.mark.parametrize(("loss", "similarity"), [("margin", "dot"), ("margin", "cosine"), ("kl", "dot")])
def test_a_margin_of_dot_products_is_a_cross_encoders_margin_of_logits(path, model, tmp_path, loss, similarity):
    cross = surgery.cross_encoder(model, key=jax.random.key(0))
    head = {"dense/0/kernel": 1000 * cross.params["dense/0/kernel"], "dense/0/bias": np.full(1, 25, np.float32)}
    cross, store = dataclasses.replace(cross, params=cross.params | head), store_of(path, model)
    config = Config(
        objective=Listwise(loss=loss, similarity=similarity),
        teacher=Labels(model="cross"),
        data=Data(text=str(path), columns=tuple(zip(COLUMNS, COLUMNS, strict=True)), cache_folder=str(tmp_path / "c")),
        run=RunOptions(precision="float32"),
    )  # fmt: skip
    options = dict(teachers=(), labellers=[cross], store=store, progress=False)
    targets = Targets(config, make_objective(config), **options).at(np.arange(store.rows))
    sides = [list(store.texts(column)) for column in COLUMNS]
    expected = [Embedder(cross).score(sides[0], other, logits=True) for other in sides[1:]]
    if loss == "margin" and similarity == "dot":
        np.testing.assert_allclose(targets, np.stack(expected, axis=1), atol=1e-3)
        assert np.ptp(targets) > 0.1
    else:
        assert np.all(targets == 1.0)
