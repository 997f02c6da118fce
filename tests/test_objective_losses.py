"""Value and gradient of each objective's loss, against plain PyTorch and by hand."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxdistill.core import Encoded
from jaxdistill.core.ops.nested import Nested
from jaxdistill.objectives.ckd import CKD
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.objectives.simtde import SimTDE
from jaxdistill.objectives.trans_encoder import TransEncoder

from objective_cases import CKD_OPTIONS, EMBEDDING, SIMCSE, SIMTDE, encoded, start, value_and_gradient


def as_torch(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float64))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(third="teacher"),
        dict(third="none"),
        dict(third="none", second_view=""),
        dict(third="none", second_view="", normalize=False),
        dict(third="none", second_view="", distance="cosine"),
    ],
    ids=["SKD", "SKD of CL-ReLKT", "Dual-L2", "L2", "KD", "cosine"],
)
def test_embedding_losses_equal_plain_torch(changed):
    objective = Embedding(**EMBEDDING | changed)
    student, teacher = encoded(np.random.default_rng(2), objective)
    losses, (gradient, _) = value_and_gradient(objective, student, teacher)
    s, t = as_torch(student.sentences).requires_grad_(), as_torch(teacher.sentences)
    x, y = (F.normalize(s, dim=-1), F.normalize(t, dim=-1)) if objective.normalize else (s, t)
    if objective.distance == "cosine":
        terms = [1 - F.cosine_similarity(s[:, 0], t[:, 0])]
    else:
        pairs = [(x[:, 0], y[:, 0])]
        if objective.second_view:
            pairs.append((x[:, 1], y[:, 0]))
        if objective.third != "none":
            pairs.append((x[:, 0], x[:, 1] if objective.third == "views" else y[:, 1]))
        terms = [F.mse_loss(a, b, reduction="none").mean(dim=1) for a, b in pairs]
    expected = torch.stack(terms).mean(dim=0)
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-5)


@pytest.mark.parametrize("queue_size, pushes", [(0, 1), (20, 1), (20, 5)], ids=["batch", "filling", "full"])
def test_ckd_equals_plain_torch(queue_size, pushes, mesh):
    objective = CKD(**CKD_OPTIONS | dict(queue_size=queue_size))
    random = np.random.default_rng(3)
    params, state = start(objective)
    keys = np.zeros((0, 8), np.float32)
    update = jax.jit(lambda state, student, teacher: objective(params, state, student, teacher)[1])
    for _ in range(pushes):
        student, teacher = encoded(random, objective)
        before = state
        state = update(state, student, teacher)
        batch, earlier = teacher.sentences[:, 0], keys
        keys = np.concatenate([batch, keys])[:queue_size]  # as the code orders them
    losses, (gradient, of_params) = value_and_gradient(objective, student, teacher, params, before)
    s = as_torch(student.sentences).requires_grad_()
    log_scale = torch.tensor(-math.log(0.1), dtype=torch.float64, requires_grad=True)
    every_key = F.normalize(as_torch(np.concatenate([batch, earlier])), dim=-1)
    logits = log_scale.exp() * F.normalize(s[:, 0], dim=-1) @ every_key.T
    expected = F.cross_entropy(logits, torch.arange(8), reduction="none")
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-5)
    np.testing.assert_allclose(of_params["log_scale"], log_scale.grad, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        dict(views=("text", "text"), negative_weight=1.0),
        {},
        dict(views=("text", "text"), among="both"),
        dict(learned_scale="linear"),
    ],
    ids=["unsupervised", "hard negatives", "Mirror-BERT", "DistilCSE's second stage"],
)
def test_contrastive_losses_equal_plain_torch(changed):
    objective = SimCSE(**SIMCSE | changed)
    student, _ = encoded(np.random.default_rng(6), objective)
    losses, (gradient, of_params) = value_and_gradient(objective, student, None)
    s = as_torch(student.sentences).requires_grad_()
    start_at, scale_of = (10.0, lambda x: x) if objective.learned_scale == "linear" else (math.log(10.0), torch.exp)
    parameter = torch.tensor(start_at, dtype=torch.float64, requires_grad=True)
    scale = scale_of(parameter)
    z = F.normalize(s, dim=-1)
    if objective.among == "both":
        rows = torch.cat([z[:, 0], z[:, 1]])
        logits = (scale * rows @ rows.T).masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf)
        both = F.cross_entropy(logits, torch.arange(16).roll(8), reduction="none")
        expected = (both[:8] + both[8:]) / 2
    else:
        logits = scale * z[:, 0] @ z[:, 1].T
        if len(objective.views) == 3:
            negatives = scale * z[:, 0] @ z[:, 2].T + math.log(2.0) * torch.eye(8)
            logits = torch.cat([logits, negatives], dim=1)
        expected = F.cross_entropy(logits, torch.arange(8), reduction="none")
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-5)
    (of_scale,) = of_params.values()
    np.testing.assert_allclose(of_scale, parameter.grad, atol=1e-5)


def test_two_opposite_sentences_by_hand():
    """Temperature 1, anchors equal to their positives, the other one opposite: log(1 + e^-2)."""
    objective = SimCSE(**SIMCSE | dict(temperature=1.0, learned_scale="none", views=("text", "text")))
    student = Encoded(np.float32([[[1, 0], [1, 0]], [[-1, 0], [-1, 0]]]))
    losses, _, _ = objective({}, (), student, None)
    np.testing.assert_allclose(losses, math.log(1 + math.exp(-2)), rtol=1e-6)


@pytest.mark.parametrize("sentence_loss", ["mse", "kl", "cosine_mse", "cosine_mae"])
@pytest.mark.parametrize("token_loss", ["batch", "vocabulary"])
def test_simtde_equals_plain_torch(sentence_loss, token_loss):
    objective = SimTDE(**SIMTDE | dict(sentence_loss=sentence_loss, token_loss=token_loss))
    student, teacher = encoded(np.random.default_rng(7), objective)
    params, state = start(objective)

    def total(student):
        return jnp.mean(objective(params, state, student, teacher)[0])

    value, gradient = jax.jit(jax.value_and_grad(total, allow_int=True))(student)
    s = {
        name: as_torch(getattr(student, name)).requires_grad_()
        for name in ("sentences", "embeddings", "hidden", "vocabulary")
    }
    t = {name: as_torch(getattr(teacher, name)) for name in s}
    real = torch.tensor(student.owner >= 0)
    x, y = s["sentences"][:, 0], t["sentences"][:, 0]
    missing = 1 - F.cosine_similarity(x, y)
    sentences = {
        "mse": F.mse_loss(x, y),
        "kl": F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True),
        "cosine_mse": missing.square().mean(),
        "cosine_mae": missing.abs().mean(),
    }[sentence_loss]
    tokens = F.mse_loss(s["vocabulary"], t["vocabulary"])
    if token_loss == "batch":
        tokens = F.mse_loss(s["embeddings"][real], t["embeddings"][real])
    layers = F.mse_loss(s["hidden"][0][real], t["hidden"][1][real])  # even: the last of the teacher's two
    expected = 0.4 * tokens + 0.6 * sentences + 0.3 * layers
    expected.backward()
    np.testing.assert_allclose(value, expected.detach(), rtol=1e-5)
    for name, tensor in s.items():
        wanted = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad
        np.testing.assert_allclose(getattr(gradient, name), wanted, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("hidden_map, compared", [("last", (3, 4, 5)), ("even", (1, 3, 5))])
def test_simtde_pairs_each_of_three_layers_with_its_own_of_six(hidden_map, compared):
    """A student with the teacher's layers has no loss under its own map, and one under any other."""
    objective = SimTDE(**SIMTDE | dict(alpha=0.0, hidden_weight=1.0, hidden_map=hidden_map))
    random = np.random.default_rng(12)
    hidden = random.standard_normal((6, 2, 3, 5, 8)).astype(np.float32)
    owner = np.where(random.random((2, 3, 5)) < 0.8, 0, -1).astype(np.int32)
    vectors = random.standard_normal((8, 1, 8)).astype(np.float32)
    teacher = Encoded(vectors, owner, hidden=hidden)
    for mine in ((3, 4, 5), (1, 3, 5), (0, 2, 4), (5, 4, 3)):
        losses, _, _ = objective({}, (), Encoded(vectors, owner, hidden=hidden[list(mine)]), teacher)
        expected = np.mean(np.square(hidden[list(mine)] - hidden[list(compared)])[:, owner >= 0])
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=str(mine))
        assert bool(np.all(np.asarray(losses) == 0)) == (mine == compared)


@pytest.mark.parametrize("negatives", ["clip", "raw"])
@pytest.mark.parametrize(
    "form, loss", [("bi", "mse"), ("bi", "log_cosh"), ("bi", "bce"), ("cross", "bce"), ("cross", "mse")]
)
def test_regressions_of_labels_equal_plain_torch(form, loss, negatives):
    objective = TransEncoder(form=form, loss=loss, negatives=negatives, both_orders=form == "cross")
    random = np.random.default_rng(11)
    width = 8 if form == "bi" else 1
    student = Encoded(random.standard_normal((8, 2, width)).astype(np.float32))
    labels = random.uniform(-1.0, 1.0, (8, 1, 1)).astype(np.float32)
    losses, (gradient, _) = value_and_gradient(objective, student, Encoded(labels), {}, ())
    s, y = as_torch(student.sentences).requires_grad_(), as_torch(labels[:, 0, 0])
    y = y.clamp(min=0) if negatives == "clip" else y
    each = {
        "mse": partial(F.mse_loss, reduction="none"),
        "bce": partial(F.binary_cross_entropy_with_logits, reduction="none"),
        "log_cosh": lambda x, y: torch.log(torch.cosh(x - y)),
    }[loss]
    predictions = [F.cosine_similarity(s[:, 0], s[:, 1])] if form == "bi" else [s[:, 0, 0], s[:, 1, 0]]
    expected = torch.stack([each(x, y) for x in predictions]).mean(dim=0)
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-5)


def test_a_label_below_zero_by_hand():
    """A logit of -10 for the label -1: softplus(-10) - (-10)(-1), below 0 as it is and nearly 0 clipped."""
    student, labels = Encoded(np.float32([[[-10.0]]])), Encoded(np.float32([[[-1.0]]]))
    for negatives, expected in (("raw", math.log1p(math.exp(-10)) - 10.0), ("clip", math.log1p(math.exp(-10)))):
        objective = TransEncoder(form="cross", loss="bce", negatives=negatives, both_orders=False)
        losses, _, metrics = objective({}, (), student, labels)
        np.testing.assert_allclose(losses, [expected], rtol=1e-6)
        assert metrics["label/negative"] == 1.0


def test_nested_widths_are_the_objective_on_each_width(mesh):
    inner = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    student, teacher = encoded(np.random.default_rng(10), inner)
    nested = Nested(objective=inner, dims=(2, 4), targets="truncated")  # and the whole
    params, state = start(nested)
    losses, _, metrics = nested(params, state, student, teacher)
    each = [
        inner({}, (), Encoded(student.sentences[..., :dim]), Encoded(teacher.sentences[..., :dim]))[0]
        for dim in (2, 4, 8)
    ]
    np.testing.assert_allclose(losses, np.mean(each, axis=0), rtol=1e-6)
    assert {"loss/2", "loss/4", "loss/8"} <= metrics.keys()


def test_projected_widths_meet_the_whole_target_through_their_matrices(mesh):
    """By value and gradient: each width's first numbers times its matrix, against the teacher's whole vectors."""
    inner = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    student, teacher = encoded(np.random.default_rng(13), inner)
    nested = Nested(objective=inner, dims=(2, 4, 8), targets="projected")
    params, state = start(nested)
    assert {name: array.shape for name, array in params.items()} == {
        "nested/2/kernel": (2, 8), "nested/4/kernel": (4, 8),
    }  # fmt: skip
    losses, (gradient, of_params) = value_and_gradient(nested, student, teacher, params, state)
    s = as_torch(student.sentences).requires_grad_()
    matrices = {dim: as_torch(np.asarray(params[f"nested/{dim}/kernel"])).requires_grad_() for dim in (2, 4)}
    wanted = F.normalize(as_torch(teacher.sentences[:, 0]), dim=-1)
    given = [s[:, 0], *(s[:, 0, :dim] @ matrix for dim, matrix in matrices.items())]
    expected = sum((F.normalize(one, dim=-1) - wanted).square().mean(dim=-1) for one in given) / 3
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-6)
    for dim, matrix in matrices.items():
        np.testing.assert_allclose(of_params[f"nested/{dim}/kernel"], matrix.grad, atol=1e-6)
