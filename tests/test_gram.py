"""Jasper's, Stella's and Luxical's losses on similarities inside a batch, and the spread-out regulariser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxdistill.core import Encoded
from jaxdistill.core.ops.similarity import spread_out
from jaxdistill.objectives import gram
from jaxdistill.objectives.gram import Gram

from objective_cases import GRAM, encoded, value_and_gradient

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


def test_spread_out_by_hand_on_a_cross_and_on_one_point():
    cross = jnp.float32([[[1, 0]], [[-1, 0]], [[0, 1]], [[0, -1]]])
    # Mean cosine -1/3; mean square 1/3, below 1/2.
    np.testing.assert_allclose(spread_out(cross), 1 / 9, rtol=1e-6)
    point = jnp.tile(jnp.float32([[[0, 1]]]), (4, 1, 1))
    np.testing.assert_allclose(spread_out(point), 1 + 1 / 2, rtol=1e-6)
    assert np.isfinite(jax.grad(spread_out)(cross[:1])).all()
