"""Value and gradient of each objective's loss, against plain PyTorch, sentence-transformers and by hand."""

import math
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer import losses as published

from jaxdistill.core import Encoded, InputError
from jaxdistill.core.ops.nested import Nested
from jaxdistill.data.text import text_key
from jaxdistill.objectives import gram
from jaxdistill.objectives.contrastive import Contrastive
from jaxdistill.objectives.cosent import CoSENT
from jaxdistill.objectives.gist import GIST
from jaxdistill.objectives.listwise import Listwise
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.objectives.trans_encoder import TransEncoder

from objective_cases import case, encoded, start

unit = partial(F.normalize, dim=-1)
elementwise_mse = partial(F.mse_loss, reduction="none")


def as_torch(array) -> torch.Tensor:
    return torch.tensor(np.asarray(array, np.float64))


def compare(objective, reference, student, teacher, params=None, state=None):
    """Losses and gradients of the student's outputs and the objective's parameters equal those of `reference(s, t, p)`,
    which returns one loss for each example or their mean."""
    if params is None:
        params, state = start(objective)

    def total(student, params):
        losses, _, _ = objective(params, state, student, teacher)
        return jnp.mean(losses), losses

    gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True, allow_int=True))
    (_, losses), (of_student, of_params) = gradients(student, params)
    outputs = {
        name: array for name, array in student._asdict().items() if array is not None and name not in ("owner", "keys")
    }
    s = {name: as_torch(array).requires_grad_() for name, array in outputs.items()}
    t = {name: as_torch(getattr(teacher, name)) for name in outputs} if teacher is not None else {}
    p = {name: as_torch(array).requires_grad_() for name, array in params.items()}
    expected = reference(SimpleNamespace(**s), SimpleNamespace(**t), p)
    expected.mean().backward()
    np.testing.assert_allclose(losses if expected.ndim else np.mean(losses), expected.detach(), rtol=1e-5, atol=1e-5)
    for actual, tensors in ((of_student._asdict(), s), (of_params, p)):
        for name, tensor in tensors.items():
            slope = np.zeros(tensor.shape) if tensor.grad is None else tensor.grad
            np.testing.assert_allclose(actual[name], slope, rtol=1e-4, atol=1e-5, err_msg=name)


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
def test_embedding_losses(changed):
    objective = case("embedding", **changed)

    def reference(s, t, _):
        if objective.distance == "cosine":
            return 1 - F.cosine_similarity(s.sentences[:, 0], t.sentences[:, 0])
        x, y = (unit(v.sentences) if objective.normalize else v.sentences for v in (s, t))
        pairs = [(x[:, 0], y[:, 0])]
        if objective.second_view:
            pairs.append((x[:, 1], y[:, 0]))
        if objective.third != "none":
            pairs.append((x[:, 0], x[:, 1] if objective.third == "views" else y[:, 1]))
        return torch.stack([elementwise_mse(a, b).mean(dim=1) for a, b in pairs]).mean(dim=0)

    compare(objective, reference, *encoded(np.random.default_rng(2), objective))


@pytest.mark.parametrize("queue_size, pushes", [(0, 1), (20, 1), (20, 5)], ids=["batch", "filling", "full"])
def test_ckd(queue_size, pushes, mesh):
    objective = case("ckd", queue_size=queue_size)
    random = np.random.default_rng(3)
    params, state = start(objective)
    keys = np.zeros((0, 8), np.float32)
    update = jax.jit(lambda state, student, teacher: objective(params, state, student, teacher)[1])
    for _ in range(pushes):
        student, teacher = encoded(random, objective)
        previous_state, earlier = state, keys
        state = update(state, student, teacher)
        keys = np.concatenate([teacher.sentences[:, 0], keys])[:queue_size]  # as the code orders them

    def reference(s, t, p):
        every_key = unit(torch.cat([t.sentences[:, 0], as_torch(earlier)]))
        logits = p["log_scale"].exp() * unit(s.sentences[:, 0]) @ every_key.T
        return F.cross_entropy(logits, torch.arange(8), reduction="none")

    compare(objective, reference, student, teacher, params, previous_state)


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
def test_contrastive_losses(changed):
    objective = case("simcse", **changed)

    def reference(s, _, p):
        (parameter,) = p.values()
        scale = parameter if objective.learned_scale == "linear" else parameter.exp()
        z = unit(s.sentences)
        if objective.among == "both":
            rows = torch.cat([z[:, 0], z[:, 1]])
            logits = (scale * rows @ rows.T).masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf)
            losses = F.cross_entropy(logits, torch.arange(16).roll(8), reduction="none")
            return (losses[:8] + losses[8:]) / 2
        logits = scale * z[:, 0] @ z[:, 1].T
        if len(objective.views) == 3:
            negatives = scale * z[:, 0] @ z[:, 2].T + math.log(2.0) * torch.eye(8)
            logits = torch.cat([logits, negatives], dim=1)
        return F.cross_entropy(logits, torch.arange(8), reduction="none")

    compare(objective, reference, *encoded(np.random.default_rng(6), objective))


@pytest.mark.parametrize(
    "sentence_loss, token_loss",
    [("mse", "batch"), ("kl", "vocabulary"), ("cosine_mse", "batch"), ("cosine_mae", "vocabulary")],
)
def test_simtde(sentence_loss, token_loss):
    objective = case("simtde", sentence_loss=sentence_loss, token_loss=token_loss)
    student, teacher = encoded(np.random.default_rng(7), objective)
    real = torch.tensor(student.owner >= 0)

    def reference(s, t, _):
        x, y = s.sentences[:, 0], t.sentences[:, 0]
        missing = 1 - F.cosine_similarity(x, y)
        sentences = {
            "mse": F.mse_loss(x, y),
            "kl": F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True),
            "cosine_mse": missing.square().mean(),
            "cosine_mae": missing.abs().mean(),
        }[sentence_loss]
        tokens = F.mse_loss(s.vocabulary, t.vocabulary)
        if token_loss == "batch":
            tokens = F.mse_loss(s.embeddings[real], t.embeddings[real])
        layers = F.mse_loss(s.hidden[0][real], t.hidden[1][real])  # even: the last of the teacher's two
        return 0.4 * tokens + 0.6 * sentences + 0.3 * layers

    compare(objective, reference, student, teacher)


@pytest.mark.parametrize("hidden_map, compared", [("last", (3, 4, 5)), ("even", (1, 3, 5))])
def test_simtde_pairs_each_of_three_layers_with_its_own_of_six(hidden_map, compared):
    """A student with the teacher's layers has no loss under its own map, and one under any other."""
    objective = case("simtde", alpha=0.0, hidden_weight=1.0, hidden_map=hidden_map)
    random = np.random.default_rng(12)
    hidden = random.standard_normal((6, 2, 3, 5, 8)).astype(np.float32)
    owner = np.where(random.random((2, 3, 5)) < 0.8, 0, -1).astype(np.int32)
    vectors = random.standard_normal((8, 1, 8)).astype(np.float32)
    teacher = Encoded(vectors, owner, hidden=hidden)
    for layers in ((3, 4, 5), (1, 3, 5), (0, 2, 4), (5, 4, 3)):
        losses, _, _ = objective({}, (), Encoded(vectors, owner, hidden=hidden[list(layers)]), teacher)
        expected = np.mean(np.square(hidden[list(layers)] - hidden[list(compared)])[:, owner >= 0])
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=str(layers))
        assert bool(np.all(np.asarray(losses) == 0)) == (layers == compared)


@pytest.mark.parametrize("negatives", ["clip", "raw"])
@pytest.mark.parametrize("form, loss", [("bi", "mse"), ("bi", "log_cosh"), ("bi", "bce"), ("cross", "bce")])
def test_regressions_of_labels(form, loss, negatives):
    objective = TransEncoder(form=form, loss=loss, negatives=negatives, both_orders=form == "cross")
    random = np.random.default_rng(11)
    student = Encoded(random.standard_normal((8, 2, 8 if form == "bi" else 1)).astype(np.float32))

    def reference(s, t, _):
        y = t.sentences[:, 0, 0].clamp(min=0) if negatives == "clip" else t.sentences[:, 0, 0]
        elementwise_loss = {
            "mse": elementwise_mse,
            "bce": partial(F.binary_cross_entropy_with_logits, reduction="none"),
            "log_cosh": lambda x, y: torch.log(torch.cosh(x - y)),
        }[loss]
        x = s.sentences
        predictions = [F.cosine_similarity(x[:, 0], x[:, 1])] if form == "bi" else [x[:, 0, 0], x[:, 1, 0]]
        return torch.stack([elementwise_loss(x, y) for x in predictions]).mean(dim=0)

    compare(objective, reference, student, Encoded(random.uniform(-1.0, 1.0, (8, 1, 1)).astype(np.float32)), {}, ())


def test_cosent():
    def reference(s, t, _):
        cosines, y = 20 * F.cosine_similarity(s.sentences[:, 0], s.sentences[:, 1]), t.sentences.ravel()
        terms = [(cosines[i] - cosines[j]).exp() for i in range(8) for j in range(8) if y[i] < y[j]]
        return torch.log(1 + torch.stack(terms).sum())

    student = Encoded(np.random.default_rng(1).standard_normal((8, 2, 6)).astype(np.float32))
    labels = np.float32([0.1, 0.9, 0.5, 0.5, 0.3, 0.9, 0.0, 0.7]).reshape(8, 1, 1)  # two ties
    compare(CoSENT(), reference, student, Encoded(labels), {}, ())


@pytest.mark.parametrize(
    "changed",
    [
        {},
        dict(views=("text", "positive"), margin=0.0),
        dict(candidates="positives"),
        dict(candidates="symmetric", views=("text", "positive", "negative", "other")),
    ],
    ids=["hard negatives", "paper", "positives alone", "both directions and two hard negatives"],
)
def test_gist(changed):
    objective = case("gist", **changed)
    sources = [(0, 1)] + ([(0, 0), (1, 1)] if objective.candidates == "all" else [])
    sources += [(1, 0)] if objective.candidates == "symmetric" else []
    sources += [(0, view) for view in range(2, len(objective.views))]

    def reference(s, t, _):
        x, g = unit(s.sentences), unit(t.sentences)
        losses = []
        for i in range(8):
            limit, logits = g[i, 0] @ g[i, 1] - objective.margin, [x[i, 0] @ x[i, 1]]
            for anchor, other in sources:
                for j in range(8):
                    if (i != j or other >= 2) and g[i, anchor] @ g[j, other] <= limit:
                        logits.append(x[i, anchor] @ x[j, other])
            logits = torch.stack(logits) / objective.temperature
            losses.append(logits.logsumexp(0) - logits[0])
        return torch.stack(losses)

    compare(objective, reference, *encoded(np.random.default_rng(2), objective))


EVERY_DIRECTION = ("query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc")


@pytest.mark.parametrize(
    "changed, views",
    [
        ({}, 2),
        ({}, 4),
        (dict(directions=EVERY_DIRECTION[:2], partition_mode="per_direction"), 2),
        (dict(directions=EVERY_DIRECTION), 4),
    ],
    ids=["pairs", "two hard negatives", "symmetric", "GTE's four directions"],
)
def test_contrastive_equals_sentence_transformers(changed, views):
    objective = Contrastive(temperature=0.1, views=("text", "positive", "negative", "other")[:views], **changed)
    loss = published.MultipleNegativesRankingLoss(None, scale=10.0, **changed)

    def reference(s, t, _):
        return loss.compute_loss_from_embeddings(list(s.sentences.unbind(1)), None)

    student = Encoded(np.random.default_rng(4).standard_normal((8, views, 6)).astype(np.float32))
    compare(objective, reference, student, None, {}, ())


def test_equal_texts_are_no_negatives_of_each_other():
    """Neither a repeated query or positive, nor the other text of a pair that repeats one, nor a hard negative that is one of them."""
    rows = [
        ("q0", "p0", "n0"), ("q1", "p0", "q0"), ("q0", "p2", "n0"), ("p2", "p3", "p0"), ("q4", "p4", "p4"), ("q5", "p5", "q1"),
        ("q6", "p6", "n0"), ("q7", "q6", "n7"),
    ]  # fmt: skip
    keys = np.array([[text_key(text) for text in row] for row in rows], np.uint64)[..., None].view(np.uint32)
    objective = Contrastive(temperature=0.1, directions=EVERY_DIRECTION, views=("text", "positive", "negative"))
    candidates = [(0, 1), (0, 2), (1, 0), (0, 0), (1, 1), (1, 2)]

    def reference(s, t, _):
        x, losses = unit(s.sentences), []
        for i, (query, positive, _) in enumerate(rows):
            logits = []
            for anchor, view in candidates:
                for j, other in enumerate(rows):
                    if i == j and ((anchor, view) in [(0, 0), (1, 1), (1, 2)] or other[view] in (query, positive)):
                        if (anchor, view) not in [(0, 1), (1, 0)]:
                            continue
                    elif {query, positive} & {other[view], *(other[:2] if view < 2 else ())}:
                        continue
                    logits.append(x[i, anchor] @ x[j, view])
            losses.append((torch.stack(logits) / 0.1).logsumexp(0) - x[i, 0] @ x[i, 1] / 0.1)
        return torch.stack(losses)

    vectors = np.random.default_rng(5).standard_normal((8, 3, 6)).astype(np.float32)
    compare(objective, reference, Encoded(vectors, keys=keys), None, {}, ())


def test_directions_without_a_positive_have_no_softmax_of_their_own():
    with pytest.raises(InputError, match="takes only query_to_doc"):
        Contrastive(directions=EVERY_DIRECTION, partition_mode="per_direction")


NONE = dict(cosine_weight=0.0, pair_weight=0.0, triplet_weight=0.0, kl_weight=0.0, spread_weight=0.0, views=("text",))


def jasper_order(s: torch.Tensor, t: torch.Tensor, margin: float) -> torch.Tensor:
    """Jasper's third loss, pair of pairs by pair of pairs."""
    upper = [(i, j) for i in range(len(s)) for j in range(i + 1, len(s))]
    terms = [
        F.relu(margin - (s[p] - s[q]) * (1 if t[p] > t[q] else -1))
        for index, p in enumerate(upper)
        for q in upper[index + 1 :]
    ]
    return torch.stack(terms).mean()


def luxical(s: torch.Tensor, t: torch.Tensor, temperature: float) -> torch.Tensor:
    off_diagonal = ~torch.eye(len(s), dtype=torch.bool)
    log_q, log_p = (F.log_softmax(x[off_diagonal].view(len(x), -1) / temperature, dim=1) for x in (s, t))
    return temperature**2 * F.kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def spread(vectors: torch.Tensor) -> torch.Tensor:
    """The published formula, for one view of unit length."""
    cosines = (vectors @ vectors.T)[~torch.eye(len(vectors), dtype=torch.bool)]
    return cosines.mean() ** 2 + F.relu(cosines.square().mean() - 1 / vectors.shape[1])


@pytest.mark.parametrize(
    "changed, block",
    [({}, gram.BLOCK_PAIRS), (NONE | dict(triplet_weight=1.0), 16)],
    ids=["all", "triplet in blocks"],
)
def test_gram(changed, block, mesh, monkeypatch):
    monkeypatch.setattr(gram, "BLOCK_PAIRS", block)
    objective = case("gram", **changed)
    views = len(objective.views)

    def reference(s, t, _):
        x, y = (unit(v.sentences).reshape(8 * views, -1) for v in (s, t))
        of_student, of_teacher = x @ x.T, y @ y.T
        return (
            objective.cosine_weight * (1 - F.cosine_similarity(x, y)).mean()
            + objective.pair_weight * F.mse_loss(of_student, of_teacher)
            + objective.triplet_weight * jasper_order(of_student, of_teacher, objective.triplet_margin)
            + objective.kl_weight * luxical(of_student, of_teacher, objective.kl_temperature)
            + objective.spread_weight * sum(spread(unit(s.sentences)[:, view]) for view in range(views)) / views
        )

    compare(objective, reference, *encoded(np.random.default_rng(2), objective))


FOUR = ("text", "positive", "negative", "other")


@pytest.mark.parametrize(
    "objective, loss",
    [
        (Listwise(loss="margin", similarity="dot", views=FOUR), published.MarginMSELoss(None)),
        (
            Listwise(similarity="dot", student_temperature=2.0, teacher_temperature=0.5, views=FOUR),
            published.DistillKLDivLoss(None, student_temperature=2.0, teacher_temperature=0.5),
        ),
    ],
    ids=["margin", "kl"],
)
def test_candidates_equal_sentence_transformers(objective, loss):
    def reference(s, t, _):
        scores = t.sentences[:, 0]
        targets = scores if objective.loss == "kl" else scores[:, :1] - scores[:, 1:]
        return loss.compute_loss_from_embeddings(list(s.sentences.unbind(1)), targets)

    random = np.random.default_rng(4)
    student, scores = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 4, 6), (8, 1, 3)))
    compare(objective, reference, Encoded(student), Encoded(scores), {}, ())


OPPOSITE = [[[1, 0], [1, 0]], [[-1, 0], [-1, 0]]]
TWO_COSINES = [[[2, 0], [3, 0], [0, 5]]], [[[0.5, 0.5]]], {"margin/student": 1.0, "margin/teacher": 0.0, "order": 0.0}
COSINES_OF_1 = [[[1, 0], [2, 0]], [[1, 0], [-3, 0]]]
CROSS = dict(form="cross", loss="bce", both_orders=False)
PLAIN_GIST = GIST(temperature=1.0, candidates="positives")


@pytest.mark.parametrize(
    "objective, student, teacher, losses, metrics",
    [
        # Anchors equal to their positives, the other one opposite.
        (SimCSE(temperature=1.0), OPPOSITE, None, [math.log(1 + math.exp(-2))] * 2, {}),
        # A logit of -10 for the label -1: below 0, as nothing clips it.
        (TransEncoder(**CROSS, negatives="raw"), [[[-10]]], [[[-1]]], [math.log1p(math.exp(-10)) - 10], {"label/negative": 1}),
        # Cosines of 1 and 0, where the teacher has 0.5 for both.
        (Listwise(loss="margin"), *TWO_COSINES[:2], [1.0], TWO_COSINES[2]),
        (Listwise(student_temperature=1.0), *TWO_COSINES[:2], [-0.5 * math.log(4 * math.e / (math.e + 1) ** 2)], TWO_COSINES[2]),
        # Cosines of 1 and -1 in the wrong order, and tied.
        (CoSENT(temperature=1.0), COSINES_OF_1, [[[0.2]], [[0.8]]], [math.log(1 + math.exp(2))] * 2, {"order": 0}),
        (CoSENT(temperature=1.0), COSINES_OF_1, [[[0.5]], [[0.5]]], [0.0, 0.0], {"order": 0}),
        # To the guide, the other pair's positive is unlike the first anchor, or better than its own.
        (PLAIN_GIST, [OPPOSITE[0]] * 2, [[[1, 0], [0.8, 0.6]], [[-1, -1], [0, 1]]], [math.log(2)], {"hidden": 0}),
        (PLAIN_GIST, [OPPOSITE[0]] * 2, [[[1, 0], [0.8, 0.6]], [[-1, -1], [1, 0]]], [0.0], {"hidden": 0.5}),
        # Cosines of 0.6, 0.8 and 0, the teacher's of 0.8, 0.6 and 0: one of three pairs of pairs is in the wrong order.
        (
            case("gram", **NONE | dict(pair_weight=1.0, triplet_weight=1.0)), [[[1, 0]], [[0.6, 0.8]], [[0, 1]]],
            [[[1, 0]], [[0.8, 0.6]], [[0, 1]]], [0.04 / 3 + 0.1, 0.08 / 3 + 0.1, 0.04 / 3 + 0.1], {"loss/pair": 4 * 0.2**2 / 9, "loss/triplet": 0.1},
        ),
    ],
)  # fmt: skip
def test_by_hand(objective, student, teacher, losses, metrics, mesh):
    inputs = Encoded(np.float32(student)), None if teacher is None else Encoded(np.float32(teacher))
    actual, _, measured = objective({}, (), *inputs)
    np.testing.assert_allclose(actual[: len(losses)], losses, rtol=1e-5, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(measured[name], value, rtol=1e-5, err_msg=name)


L2 = case("embedding", third="none", second_view="")


@pytest.mark.parametrize("targets", ["truncated", "projected"])
def test_nested_widths(targets, mesh):
    """Each width's first numbers against as many of the teacher's, or times their matrix against the whole vectors."""

    def reference(s, t, p):
        x, y = s.sentences[:, 0], t.sentences[:, 0]
        pairs = [(x[:, :2], y[:, :2]), (x[:, :4], y[:, :4]), (x, y)]
        if targets == "projected":
            pairs = [(x[:, :dim] @ p[f"nested/{dim}/kernel"], y) for dim in (2, 4)] + [(x, y)]
        return torch.stack([elementwise_mse(unit(a), unit(b)).mean(dim=1) for a, b in pairs]).mean(dim=0)

    compare(Nested(objective=L2, dims=(2, 4), targets=targets), reference, *encoded(np.random.default_rng(13), L2))
