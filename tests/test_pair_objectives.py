"""Objectives of pairs that a teacher scores: CoSENT orders them by its scores, GIST hides what it finds alike."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxdistill.core import Encoded
from jaxdistill.objectives.cosent import CoSENT
from jaxdistill.objectives.gist import GIST

from objective_cases import GIST_OPTIONS, encoded, value_and_gradient


def as_torch(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float64))


def test_cosent_equals_plain_torch():
    random = np.random.default_rng(1)
    student = Encoded(random.standard_normal((8, 2, 6)).astype(np.float32))
    labels = np.float32([0.1, 0.9, 0.5, 0.5, 0.3, 0.9, 0.0, 0.7]).reshape(8, 1, 1)  # two ties
    losses, (gradient, _) = value_and_gradient(CoSENT(), student, Encoded(labels), {}, ())
    s = as_torch(student.sentences).requires_grad_()
    cosines, y = 20 * F.cosine_similarity(s[:, 0], s[:, 1]), labels.ravel()
    terms = [(cosines[i] - cosines[j]).exp() for i in range(8) for j in range(8) if y[i] < y[j]]
    expected = torch.log(1 + torch.stack(terms).sum())
    expected.backward()
    np.testing.assert_allclose(losses, np.full(8, expected.item()), rtol=1e-5)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-4)


@pytest.mark.parametrize(
    "labels, loss, order", [((0.2, 0.8), math.log(1 + math.exp(2)), 0.0), ((0.8, 0.2), math.log(1 + math.exp(-2)), 1.0),
                            ((0.5, 0.5), 0.0, 0.0)], ids=["wrong", "right", "tied"]
)  # fmt: skip
def test_two_pairs_by_hand(labels, loss, order):
    """Cosines of 1 and -1 at temperature 1."""
    student = Encoded(np.float32([[[1, 0], [2, 0]], [[1, 0], [-3, 0]]]))
    teacher = Encoded(np.float32(labels).reshape(2, 1, 1))
    losses, _, metrics = CoSENT(temperature=1.0)({}, (), student, teacher)
    np.testing.assert_allclose(losses, [loss, loss], rtol=1e-6)
    assert float(metrics["order"]) == order


@pytest.mark.parametrize(
    "changed",
    [{}, dict(views=("text", "positive"), margin=0.0), dict(candidates="positives")],
    ids=["hard negatives", "paper", "positives alone"],
)
def test_gist_equals_plain_torch(changed):
    objective = GIST(**GIST_OPTIONS | changed)
    student, teacher = encoded(np.random.default_rng(2), objective)
    losses, (gradient, _) = value_and_gradient(objective, student, teacher)
    raw = as_torch(student.sentences).requires_grad_()
    s, g = F.normalize(raw, dim=-1), F.normalize(as_torch(teacher.sentences), dim=-1)
    sources = [(0, 1)] + ([(0, 0), (1, 1)] if objective.candidates == "all" else [])
    sources += [(0, 2)] if len(objective.views) == 3 else []
    expected = []
    for i in range(8):
        limit = g[i, 0] @ g[i, 1] - objective.margin
        logits = [s[i, 0] @ s[i, 1]]
        for mine, other in sources:
            for j in range(8):
                is_own = i == j and other != 2
                if not is_own and g[i, mine] @ g[j, other] <= limit:
                    logits.append(s[i, mine] @ s[j, other])
        logits = torch.stack(logits) / objective.temperature
        expected.append(logits.logsumexp(0) - logits[0])
    expected = torch.stack(expected)
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, raw.grad, atol=1e-5)


@pytest.mark.parametrize(
    "guide, loss, hidden", [((0, 1), math.log(2), 0.0), ((1, 0), 0.0, 0.5)], ids=["unlike", "alike"]
)
def test_a_guide_hides_a_false_negative_by_hand(guide, loss, hidden):
    """Both positives are the anchor's equal to the student; to the guide, the first anchor's other one is unlike, or the
    better one."""
    objective = GIST(temperature=1.0, candidates="positives")
    student = Encoded(np.float32([[[1, 0], [1, 0]], [[1, 0], [1, 0]]]))
    teacher = Encoded(np.float32([[[1, 0, 0], [0.8, 0.6, 0]], [[-1, -1, 0], [*guide, 0]]]))
    losses, _, metrics = objective({}, (), student, teacher)
    np.testing.assert_allclose(losses[0], loss, atol=1e-6)
    assert metrics["hidden"] == hidden  # of the two candidates
