"""Jasper's, Stella's and Luxical's losses on similarities inside a batch, and the spread-out regulariser."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxdistill.core import Encoded, InputError
from jaxdistill.objectives import gram
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.gram import Gram
from jaxdistill.objectives.parts.nested import Nested
from jaxdistill.ops.similarity import spread_out
from jaxdistill.training.build import check_width

from objective_cases import EMBEDDING, GRAM, encoded, value_and_gradient

NONE = dict(cosine_weight=0.0, pair_weight=0.0, triplet_weight=0.0, kl_weight=0.0, spread_weight=0.0, views=("text",))


def as_torch(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float64))


def order(s: torch.Tensor, t: torch.Tensor, margin: float) -> torch.Tensor:
    """Jasper's third loss, pair of pairs by pair of pairs."""
    upper = [(i, j) for i in range(len(s)) for j in range(i + 1, len(s))]
    terms = [
        F.relu(margin - (s[p] - s[q]) * (1 if t[p] > t[q] else -1))
        for place, p in enumerate(upper)
        for q in upper[place + 1 :]
    ]
    return torch.stack(terms).mean()


def luxical(s: torch.Tensor, t: torch.Tensor, temperature: float) -> torch.Tensor:
    others = ~torch.eye(len(s), dtype=torch.bool)
    log_q, log_p = (F.log_softmax(x[others].view(len(x), -1) / temperature, dim=1) for x in (s, t))
    return temperature**2 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def spread(vectors: torch.Tensor) -> torch.Tensor:
    """The published formula, for one view of unit length."""
    cosines = (vectors @ vectors.T)[~torch.eye(len(vectors), dtype=torch.bool)]
    return cosines.mean() ** 2 + F.relu(cosines.square().mean() - 1 / vectors.shape[1])


@pytest.mark.parametrize(
    "changed, block",
    [
        ({}, gram.BLOCK_PAIRS),
        (NONE | dict(pair_weight=1.0), gram.BLOCK_PAIRS),
        (NONE | dict(triplet_weight=1.0), 16),
        (NONE | dict(kl_weight=1.0), gram.BLOCK_PAIRS),
    ],
    ids=["all", "pair", "triplet in blocks", "kl"],
)
def test_gram_losses_equal_plain_torch(changed, block, mesh, monkeypatch):
    monkeypatch.setattr(gram, "BLOCK_PAIRS", block)
    objective = Gram(**GRAM | changed)
    student, teacher = encoded(np.random.default_rng(2), objective)
    losses, (gradient, _) = value_and_gradient(objective, student, teacher)
    raw = as_torch(student.sentences).requires_grad_()
    views = len(objective.views)
    x, y = F.normalize(raw, dim=-1), F.normalize(as_torch(teacher.sentences), dim=-1)
    s, t = x.reshape(8 * views, -1), y.reshape(8 * views, -1)
    of_student, of_teacher = s @ s.T, t @ t.T
    expected = (
        objective.cosine_weight * (1 - F.cosine_similarity(s, t)).mean()
        + objective.pair_weight * F.mse_loss(of_student, of_teacher)
        + objective.triplet_weight * order(of_student, of_teacher, objective.triplet_margin)
        + objective.kl_weight * luxical(of_student, of_teacher, objective.kl_temperature)
        + objective.spread_weight * sum(spread(x[:, view]) for view in range(views)) / views
    )
    expected.backward()
    np.testing.assert_allclose(np.mean(losses), expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradient, raw.grad, atol=1e-5)


def test_three_sentences_by_hand(mesh):
    """The teacher has cosines of 0.8 (1 and 2), 0.6 (2 and 3) and 0 (1 and 3), the student 0.6, 0.8 and 0."""
    teacher = Encoded(np.float32([[[1, 0]], [[0.8, 0.6]], [[0, 1]]]))
    student = Encoded(np.float32([[[1, 0]], [[0.6, 0.8]], [[0, 1]]]))
    losses, _, metrics = Gram(**GRAM | NONE | dict(pair_weight=1.0, triplet_weight=1.0))({}, (), student, teacher)
    np.testing.assert_allclose(metrics["loss/pair"], 4 * 0.2**2 / 9, rtol=1e-5)
    # Of three pairs of pairs, the student has one in the wrong order: 0.1 + 0.2.
    np.testing.assert_allclose(metrics["loss/triplet"], 0.3 / 3, rtol=1e-5)
    np.testing.assert_allclose(np.mean(losses), 4 * 0.2**2 / 9 + 0.1, rtol=1e-5)


def test_only_the_cosine_needs_vectors_of_one_width(mesh):
    objective = Gram(**GRAM | dict(cosine_weight=0.0, triplet_margin=0.0, spread_weight=0.0))
    assert objective.any_width and not Gram(**GRAM).any_width
    student, _ = encoded(np.random.default_rng(3), objective)
    wider = np.concatenate([student.sentences, np.zeros((8, 2, 5), np.float32)], axis=-1)  # the same similarities
    losses, _, metrics = objective({}, (), student, Encoded(wider))
    np.testing.assert_allclose(losses, 0.0, atol=1e-5)
    assert "cosine/teacher" not in metrics


def test_a_run_with_two_widths_is_refused_unless_similarities_alone_are_compared():
    wider, student = 12, SimpleNamespace(definition=SimpleNamespace(embedding_width=8))
    alone = Gram(**GRAM | dict(cosine_weight=0.0))
    for objective in (alone, Nested(objective=alone, dims=(4,), targets="projected")):
        check_width(objective, wider, student)
    with pytest.raises(InputError, match="set student.head"):
        check_width(Gram(**GRAM), wider, student)


def test_spread_out_by_hand_on_a_cross_and_on_one_point():
    cross = jnp.float32([[[1, 0]], [[-1, 0]], [[0, 1]], [[0, -1]]])
    # Mean cosine -1/3; mean square 1/3, below 1/2.
    np.testing.assert_allclose(spread_out(cross), 1 / 9, rtol=1e-6)
    point = jnp.tile(jnp.float32([[[0, 1]]]), (4, 1, 1))
    np.testing.assert_allclose(spread_out(point), 1 + 1 / 2, rtol=1e-6)
    assert np.isfinite(jax.grad(spread_out)(cross[:1])).all()


def test_embedding_adds_the_regulariser_to_its_loss():
    plain = Embedding(**EMBEDDING)
    spreads = dataclasses.replace(plain, spread_weight=0.5)
    assert spreads.couples_examples and not plain.couples_examples
    student, teacher = encoded(np.random.default_rng(5), plain)
    (without, (slope, _)), (losses, (gradient, _)) = (
        value_and_gradient(objective, student, teacher) for objective in (plain, spreads)
    )
    raw = as_torch(student.sentences).requires_grad_()
    vectors = F.normalize(raw, dim=-1)
    penalty = 0.5 * (spread(vectors[:, 0]) + spread(vectors[:, 1])) / 2
    penalty.backward()
    np.testing.assert_allclose(losses, without + penalty.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, slope + raw.grad.numpy(), atol=1e-6)
