"""Margin and listwise distillation, and where the scores of a row's candidates come from."""

import dataclasses
import gzip
import json
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses as their_losses

from jaxdistill.config.options import Config
from jaxdistill.core import Encoded, InputError
from jaxdistill.data.options import Data
from jaxdistill.data.tokens import build_store
from jaxdistill.models import surgery
from jaxdistill.models.inference import Embedder
from jaxdistill.models.teacher import TargetInputs
from jaxdistill.models.teachers import labels
from jaxdistill.models.teachers.columns import Columns
from jaxdistill.models.teachers.labels import Labels
from jaxdistill.objectives.listwise import Listwise
from jaxdistill.training.check import make_objective
from jaxdistill.training.models import Targets

from objective_cases import value_and_gradient
from tiny_models import tiny_model

FOUR = ("text", "positive", "negative", "other")
COLUMNS = ("text", "positive", "negative")
ROWS = [
    ("the cat sleeps", "the cat", "rain", "0.9", "0.25"),
    ("the dog", "dog", "the cat", "", "0.5"),
    ("rain", "", "dog", "", ""),
    ("the cat sleeps", "the cat", "dog", "0.75", "-0.5"),
]
"""A row without a score, one without a positive, and a query in two rows."""


def inputs(views=FOUR):
    random = np.random.default_rng(4)
    student = Encoded(random.standard_normal((8, len(views), 6)).astype(np.float32))
    return student, Encoded(random.standard_normal((8, 1, len(views) - 1)).astype(np.float32))


def theirs(loss, student, scores):
    """(value, gradient) of a loss of sentence-transformers on these vectors."""
    vectors = torch.tensor(student.sentences).requires_grad_()
    columns = list(vectors.unbind(1))
    value = loss.compute_loss_from_embeddings(columns, torch.tensor(scores))
    value.backward()
    return value.item(), vectors.grad.numpy()


@pytest.mark.parametrize("views", [COLUMNS, FOUR], ids=len)
def test_margin_equals_sentence_transformers(views):
    student, teacher = inputs(views)
    objective = Listwise(loss="margin", similarity="dot", views=views)
    losses, (gradient, _) = value_and_gradient(objective, student, teacher, {}, ())
    margins = teacher.sentences[:, 0, :1] - teacher.sentences[:, 0, 1:]
    value, slope = theirs(their_losses.MarginMSELoss(None), student, margins)
    np.testing.assert_allclose(np.mean(losses), value, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_divergence_equals_sentence_transformers():
    student, teacher = inputs()
    objective = Listwise(similarity="dot", student_temperature=2.0, teacher_temperature=0.5, views=FOUR)
    losses, (gradient, _) = value_and_gradient(objective, student, teacher, {}, ())
    loss = their_losses.DistillKLDivLoss(None, student_temperature=2.0, teacher_temperature=0.5)
    value, slope = theirs(loss, student, teacher.sentences[:, 0])
    np.testing.assert_allclose(np.mean(losses), value, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-5)


def test_two_candidates_by_hand():
    """Cosines of 1 and 0; the teacher has 0.5 for both."""
    student = Encoded(np.float32([[[2, 0], [3, 0], [0, 5]]]))
    teacher = Encoded(np.float32([[[0.5, 0.5]]]))
    for loss, expected in (("margin", 1.0), ("kl", -0.5 * math.log(4 * math.e / (math.e + 1) ** 2))):
        objective = Listwise(loss=loss, student_temperature=1.0)
        losses, _, metrics = objective({}, (), student, teacher)
        np.testing.assert_allclose(losses, [expected], rtol=1e-5)
        assert {name: float(value) for name, value in metrics.items()} == {
            "margin/student": 1.0, "margin/teacher": 0.0, "order": 0.0,
        }  # fmt: skip


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model")


def table(folder, kind):
    """The rows with columns of scores, as a file of a kind."""
    names = (*COLUMNS, "score_positive", "score_negative")
    if kind == "jsonl":
        cells = [(*row[:3], *(float(score) if score else None for score in row[3:])) for row in ROWS]
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in cells]
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
        return folder / "rows.jsonl"
    with gzip.open(folder / "rows.tsv.gz", "wt") as file:
        file.write("\n".join("\t".join(row) for row in (names, *ROWS)) + "\n")
    return folder / "rows.tsv.gz"


def store_of(path, model, **options):
    folder = path.parent / "cache"
    options = (
        dict(tokenizer=model.tokenizer, max_length=16, cache_folder=folder, columns=COLUMNS, dedupe=False) | options
    )
    return build_store([str(path)], **options)


def own_scores(names, data, store, *, count, largest=np.inf):
    """The targets of scores in columns, for an objective that reads `count` scores of this magnitude."""
    objective = SimpleNamespace(scored=("text",) * (count + 1), largest_label=largest)
    teacher = Columns(names=",".join(names))
    teacher.check()
    inputs = TargetInputs(store, data, objective, (), (), np.float32, progress=False)
    return teacher.stored(inputs)[0]


@pytest.mark.parametrize("kind", ["tsv.gz", "jsonl"])
def test_scores_are_read_from_columns_of_the_text(kind, model, tmp_path):
    path = table(tmp_path, kind)
    data = Data(text=str(path))
    store = store_of(path, model, exclude=[str(excluded(tmp_path))])
    found = own_scores(("score_positive", "score_negative"), data, store, count=2)
    np.testing.assert_allclose(found[np.arange(2)], [[0.9, 0.25], [0.75, -0.5]])
    with pytest.raises(InputError, match=r"row 2 has '' in the column 'score_positive', not a finite number"):
        own_scores(("score_positive", "score_negative"), data, store_of(path, model), count=2)
    with pytest.raises(InputError, match="has 1 numbers per row; .* reads 2, one score per pair"):
        own_scores(("score_negative",), data, store, count=2)
    with pytest.raises(InputError, match="row 1 of data.text has the score 0.9, .* similarities from -0.8 to 0.8"):
        own_scores(("score_positive", "score_negative"), data, store, count=2, largest=0.8)
    with pytest.raises(InputError, match="no column 'margin'"):
        own_scores(("score_negative", "margin"), data, store, count=2)


def excluded(folder):
    """A file with the query of the row that lacks a score."""
    (folder / "exclude.txt").write_text("the dog\n")
    return folder / "exclude.txt"


def test_a_bi_or_a_cross_encoder_scores_every_candidate_once(model, tmp_path):
    path = table(tmp_path, "tsv.gz")
    store = store_of(path, model)
    columns = [list(store.texts(column)) for column in COLUMNS]
    for labeller in (model, surgery.cross_encoder(model, key=jax.random.key(0))):
        made = labels.labels(
            [labeller], store, tmp_path / "labels", columns=COLUMNS, compute_dtype=jnp.float32, progress=False
        )
        expected = [Embedder(labeller).score(columns[0], other) for other in columns[1:]]
        np.testing.assert_allclose(made, np.stack(expected, axis=1), atol=1e-5)


@pytest.mark.parametrize(("loss", "similarity"), [("margin", "dot"), ("margin", "cosine"), ("kl", "dot")])
def test_a_margin_of_dot_products_is_a_cross_encoders_margin_of_logits(model, tmp_path, loss, similarity):
    path, cross = table(tmp_path, "tsv.gz"), surgery.cross_encoder(model, key=jax.random.key(0))
    head = {"dense/0/kernel": 1000 * cross.params["dense/0/kernel"], "dense/0/bias": np.full(1, 25, np.float32)}
    cross, store = dataclasses.replace(cross, params=cross.params | head), store_of(path, model)
    config = Config(
        objective=Listwise(loss=loss, similarity=similarity),
        teacher=Labels(model="cross"),
        data=Data(text=str(path), columns=tuple(zip(COLUMNS, COLUMNS, strict=True)), cache_folder=str(tmp_path / "c")),
    )  # fmt: skip
    options = dict(teachers=(), labellers=[cross], store=store, compute_dtype=jnp.float32, progress=False)
    found = Targets(config, make_objective(config), **options).rows(np.arange(store.rows))
    sides = [list(store.texts(column)) for column in COLUMNS]
    wanted = [Embedder(cross).score(sides[0], other, logits=True) for other in sides[1:]]
    if loss == "margin" and similarity == "dot":
        np.testing.assert_allclose(found, np.stack(wanted, axis=1), atol=1e-3)
        assert np.ptp(found) > 0.1
    else:
        assert np.all(found == 1.0)
