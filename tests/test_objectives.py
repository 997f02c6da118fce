"""What every objective must do, whichever files there are; and each one's value and gradient against plain PyTorch."""

import dataclasses
import inspect
import math
import re
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jaxdistill import mesh as meshes
from jaxdistill import objectives
from jaxdistill.config import options_from
from jaxdistill.core import Batch, Encoded, InputError, Sizes, Tokens
from jaxdistill.encoders.sentence import init_params
from jaxdistill.objectives.ckd import CKD
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.objectives.simtde import SimTDE
from jaxdistill.objectives.trans_encoder import TransEncoder
from jaxdistill.training import optim, step
from jaxdistill.training.nested import Nested

from compiled import ADAMW, congen, definition

EMBEDDING = dict(distance="squared", normalize=True, view="text", second_view="delete_words", third="views")
CKD_OPTIONS = dict(temperature=0.1, learned_scale="log", queue_size=20, view="text")
SIMCSE = dict(
    temperature=0.1, learned_scale="log", views=("text", "positive", "negative"), negative_weight=2.0, among="others"
)
SIMTDE = dict(alpha=0.4, token_loss="batch", sentence_loss="mse", hidden_weight=0.3, hidden_map="even", view="text")
TRANS_ENCODER = dict(form="bi", loss="mse", negatives="clip", both_orders=False)
CASES = {
    "congen": congen(20),
    "embedding": Embedding(**EMBEDDING),
    "ckd": CKD(**CKD_OPTIONS),
    "simcse": SimCSE(**SIMCSE),
    "simtde": SimTDE(**SIMTDE),
    "trans_encoder": TransEncoder(**TRANS_ENCODER),
}
NESTED = {
    "nested congen": Nested(objective=CASES["congen"], dims=(8, 16), targets="truncated"),
    "nested ckd": Nested(objective=CASES["ckd"], dims=(8, 16), targets="projected"),
}
EVERY = CASES | NESTED
every = pytest.mark.parametrize("name", EVERY)
BATCH, GROUPS, LENGTH = 16, 4, 12
TEACHER_LAYERS = 2


def test_every_objective_of_the_folder_is_tested_here():
    assert set(CASES) == set(objectives.available())


@pytest.mark.parametrize("name", CASES)
def test_every_option_is_read_and_explained(name):
    kind = objectives.options_class(name)
    source = inspect.getsource(kind)
    for field in dataclasses.fields(kind):
        assert re.search(rf"self\.{field.name}\b|\"{field.name}\"", source), f"{name}.{field.name} is read nowhere"


@pytest.mark.parametrize(
    "name, changed, option, other",
    [
        ("congen", dict(alpha=1.0), "generalize_view", "crop"),
        ("simcse", dict(views=("text", "text")), "negative_weight", 0.5),
        ("simtde", dict(alpha=0.0), "token_loss", "vocabulary"),
        ("simtde", dict(alpha=1.0), "sentence_loss", "kl"),
        ("simtde", dict(hidden_weight=0.0), "hidden_map", "last"),
    ],
)
def test_an_option_that_is_said_to_be_unread_changes_nothing(name, changed, option, other, mesh):
    objective = dataclasses.replace(CASES[name], **changed)
    assert set(objective.unread) == {option} and not CASES[name].unread
    another = dataclasses.replace(objective, **{option: other})
    assert (objective.student_views, objective.reads) == (another.student_views, another.reads)
    student, teacher = encoded(np.random.default_rng(8), objective)
    one, two = (value_and_gradient(each, mesh, student, teacher)[0] for each in (objective, another))
    np.testing.assert_array_equal(one, two)


def make_tokens(random, sentences: int) -> Tokens:
    """One sentence a row, of 3 to 12 tokens."""
    lengths = random.integers(3, LENGTH + 1, (GROUPS, sentences))
    place = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (GROUPS, sentences, LENGTH))
    real = place < lengths[..., None]
    owner = np.where(real, np.arange(sentences, dtype=np.int32)[None, :, None], -1).astype(np.int32)
    ids = np.where(real, random.integers(1, 128, place.shape), 0).astype(np.int32)
    first = np.broadcast_to(LENGTH * np.arange(sentences, dtype=np.int32), (GROUPS, sentences))
    return Tokens(ids, owner, np.where(real, place, 0).astype(np.int32), np.ascontiguousarray(first))


class World:
    """A student with dropout (of numbers and heads), a teacher, batches and the step of an objective, on some devices."""

    def __init__(
        self,
        objective,
        devices: int,
        *,
        accumulate: int = 1,
        dropout: float = 0.1,
        drophead: float = 0.0,
        learning_rate: float = ADAMW.learning_rate,
        teacher_dropout: bool = False,
    ):
        self.mesh = meshes.make_mesh(devices=jax.devices()[:devices])
        student, teacher = definition(), definition(layers=TEACHER_LAYERS)
        rates = dict(hidden_dropout=dropout, attention_dropout=dropout, drophead=drophead)
        student = dataclasses.replace(student, architecture=dataclasses.replace(student.architecture, **rates))
        random = np.random.default_rng(0)
        sizes = Sizes(batch_size=BATCH, width=32, hidden=32, layers=1, teacher_hidden=32, teacher_layers=TEACHER_LAYERS)
        options = dataclasses.replace(ADAMW, schedule="constant", warmup_fraction=0.0, learning_rate=learning_rate)
        optimizer = optim.make_optimizer(options, 10)
        seeds = (
            random.standard_normal((objective.reserve_rows, 32)).astype(np.float32) if objective.reserve_rows else None
        )
        make = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes)
        student_params = init_params(student, jax.random.key(1))
        like = jax.eval_shape(make, student_params, seeds, jax.random.key(2))
        shardings = meshes.shardings(like, self.mesh, ())
        self.start = partial(jax.jit(make, out_shardings=shardings), student_params, seeds, jax.random.key(2))
        teacher_params = init_params(teacher, jax.random.key(3))
        of_teacher = meshes.shardings(teacher_params, self.mesh, ())
        self.teacher_params = meshes.place(teacher_params, of_teacher)
        self.step = step.make_train_step(
            student=student, teacher=teacher if objective.teacher_views else None, objective=objective,
            optimizer=optimizer, mesh=self.mesh, shardings=shardings, teacher_shardings=of_teacher,
            compute_dtype=jnp.float32, remat=False, accumulate=accumulate, teacher_dropout=teacher_dropout,
        )  # fmt: skip
        views, of_teacher = len(objective.student_views), len(objective.teacher_views)
        read = bool(of_teacher) and not objective.reads
        self.batches = [
            meshes.place(
                Batch(
                    make_tokens(random, views * BATCH // GROUPS),
                    make_tokens(random, of_teacher * BATCH // GROUPS) if read else None,
                    None,
                ),
                meshes.batch_sharding(self.mesh),
            )
            for _ in range(3)
        ]

    def run(self, *, through_the_host: bool = False):
        """(losses, state) after all batches."""
        losses, state = [], self.start()
        for batch in self.batches:
            if through_the_host:
                key = jax.random.wrap_key_data(np.asarray(jax.random.key_data(state.key)))
                state = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), state._replace(key=key), state)
            state, metrics = self.step(state, self.teacher_params, batch)
            losses.append(jax.device_get(metrics))
        return losses, state


@lru_cache
def world(name: str, devices: int) -> World:
    return World(EVERY[name], devices)


def params_of(state) -> dict[str, np.ndarray]:
    return {f"{part}/{name}": np.asarray(a) for part, params in state.params.items() for name, a in params.items()}


@every
def test_four_devices_train_as_one_does_with_dropout_on(name):
    (one, one_state), (four, four_state) = world(name, 1).run(), world(name, 4).run()
    for mine, other in zip(one, four, strict=True):
        assert mine.keys() == other.keys()
        for metric, value in mine.items():
            assert np.isfinite(value), metric
            np.testing.assert_allclose(value, other[metric], rtol=2e-5, atol=1e-5, err_msg=metric)
    assert one[0]["gradient_norm"] > 0
    for path, array in params_of(one_state).items():
        np.testing.assert_allclose(array, params_of(four_state)[path], atol=2e-3, err_msg=path)


def test_four_devices_drop_the_same_heads_as_one():
    objective = SimCSE(**SIMCSE)
    (one, _), (four, _), (none, _) = (
        World(objective, devices, dropout=0.0, drophead=rate).run() for devices, rate in ((1, 0.5), (4, 0.5), (1, 0.0))
    )
    np.testing.assert_allclose([m["loss"] for m in one], [m["loss"] for m in four], rtol=2e-5)
    assert abs(one[0]["loss"] - none[0]["loss"]) > 1e-4


@every
def test_a_state_that_was_saved_and_restored_goes_on_bit_for_bit(name):
    _, straight = world(name, 4).run()
    _, resumed = world(name, 4).run(through_the_host=True)
    for path, array in params_of(straight).items():
        np.testing.assert_array_equal(array, params_of(resumed)[path], err_msg=path)


@pytest.mark.parametrize("name", [name for name, objective in CASES.items() if not objective.couples_examples])
def test_parts_of_a_batch_add_up(name):
    """Without dropout; SimTDE's means over tokens differ a little between the parts."""
    objective = SimTDE(**SIMTDE | dict(alpha=0.0, hidden_weight=0.0)) if name == "simtde" else CASES[name]
    whole, _ = World(objective, 2, dropout=0.0).run()
    parts, _ = World(objective, 2, accumulate=2, dropout=0.0).run()
    np.testing.assert_allclose(whole[0]["gradient_norm"], parts[0]["gradient_norm"], rtol=1e-4)
    np.testing.assert_allclose([m["loss"] for m in whole], [m["loss"] for m in parts], rtol=1e-4, atol=1e-6)


def encoded(random, objective, *, width: int = 8) -> tuple[Encoded, Encoded | None]:
    """Random vectors, token states and tables for both."""
    owner = np.where(random.random((2, 3, 5)) < 0.8, 0, -1).astype(np.int32)

    def one(views: int, layers: int) -> Encoded:
        def normal(*shape):
            return random.standard_normal(shape).astype(np.float32)

        return Encoded(
            normal(8, views, width), owner, normal(2, 3, 5, width), normal(layers, 2, 3, 5, width), normal(11, width)
        )

    student = one(len(objective.student_views), 1)
    return student, one(len(objective.teacher_views), TEACHER_LAYERS) if objective.teacher_views else None


def start(objective, mesh, *, width: int = 8, seeds=None):
    sizes = Sizes(
        batch_size=8, width=width, hidden=width, layers=1, teacher_hidden=width, teacher_layers=TEACHER_LAYERS
    )
    if objective.reserve_rows and seeds is None:
        seeds = np.random.default_rng(5).standard_normal((objective.reserve_rows, width)).astype(np.float32)
    return objective.init(jax.random.key(0), sizes, seeds)


@every
def test_no_gradient_reaches_the_teacher_and_jit_changes_nothing(name):
    objective, mesh = EVERY[name], meshes.make_mesh(devices=jax.devices()[:1])  # eagerly, every device costs
    if name.startswith("nested"):
        objective = dataclasses.replace(objective, dims=(4,))
    student, teacher = encoded(np.random.default_rng(1), objective)
    params, state = start(objective, mesh)

    def total(teacher):
        return jnp.mean(objective(params, state, student, teacher, mesh=mesh)[0])

    value, gradient = jax.jit(jax.value_and_grad(total, allow_int=True))(teacher)
    np.testing.assert_allclose(total(teacher), value, rtol=1e-5)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jax.dtypes.float0 or not np.any(leaf)


def value_and_gradient(objective, mesh, student, teacher, params=None, state=None):
    """(per-example losses, gradient of their mean with respect to the student's sentences and the objective's parameters)."""
    if params is None:
        params, state = start(objective, mesh)

    def total(sentences, params):
        losses, _, _ = objective(params, state, student._replace(sentences=sentences), teacher, mesh=mesh)
        return jnp.mean(losses), losses

    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))
    (_, losses), gradients = gradient(student.sentences, params)
    return losses, gradients


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
def test_embedding_losses_equal_plain_torch(changed, mesh):
    objective = Embedding(**EMBEDDING | changed)
    student, teacher = encoded(np.random.default_rng(2), objective)
    losses, (gradient, _) = value_and_gradient(objective, mesh, student, teacher)
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


def test_a_vector_at_a_right_angle_by_hand(mesh):
    objective = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    student, teacher = Encoded(np.float32([[[3, 0]]])), Encoded(np.float32([[[0, 2]]]))
    losses, _, _ = objective({}, (), student, teacher, mesh=mesh)
    np.testing.assert_allclose(losses, [1.0])  # (1 - 0)^2 and (0 - 1)^2, two numbers


@pytest.mark.parametrize("queue_size, pushes", [(0, 1), (20, 1), (20, 5)], ids=["batch", "filling", "full"])
def test_ckd_equals_plain_torch(queue_size, pushes, mesh):
    objective = CKD(**CKD_OPTIONS | dict(queue_size=queue_size))
    random = np.random.default_rng(3)
    params, state = start(objective, mesh)
    keys = np.zeros((0, 8), np.float32)
    update = jax.jit(lambda state, student, teacher: objective(params, state, student, teacher, mesh=mesh)[1])
    for _ in range(pushes):
        student, teacher = encoded(random, objective)
        before = state
        state = update(state, student, teacher)
        batch, earlier = teacher.sentences[:, 0], keys
        keys = np.concatenate([batch, keys])[:queue_size]  # as the code orders them
    losses, (gradient, of_params) = value_and_gradient(objective, mesh, student, teacher, params, before)
    s = as_torch(student.sentences).requires_grad_()
    log_scale = torch.tensor(-math.log(0.1), dtype=torch.float64, requires_grad=True)
    every_key = F.normalize(as_torch(np.concatenate([batch, earlier])), dim=-1)
    logits = log_scale.exp() * F.normalize(s[:, 0], dim=-1) @ every_key.T
    expected = F.cross_entropy(logits, torch.arange(8), reduction="none")
    expected.mean().backward()
    np.testing.assert_allclose(losses, expected.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, s.grad, atol=1e-5)
    np.testing.assert_allclose(of_params["log_scale"], log_scale.grad, atol=1e-5)


def test_ckd_with_an_infinite_temperature_counts_the_keys(mesh):
    objective = CKD(temperature=1e8, learned_scale="none", queue_size=0, view="text")
    student, teacher = encoded(np.random.default_rng(4), objective)
    losses, _ = value_and_gradient(objective, mesh, student, teacher)
    np.testing.assert_allclose(losses, np.log(8), rtol=1e-5)


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
def test_contrastive_losses_equal_plain_torch(changed, mesh):
    objective = SimCSE(**SIMCSE | changed)
    student, _ = encoded(np.random.default_rng(6), objective)
    losses, (gradient, of_params) = value_and_gradient(objective, mesh, student, None)
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


def test_two_opposite_sentences_by_hand(mesh):
    """Temperature 1, anchors equal to their positives, the other one opposite: log(1 + e^-2)."""
    objective = SimCSE(**SIMCSE | dict(temperature=1.0, learned_scale="none", views=("text", "text")))
    student = Encoded(np.float32([[[1, 0], [1, 0]], [[-1, 0], [-1, 0]]]))
    losses, _, _ = objective({}, (), student, None, mesh=mesh)
    np.testing.assert_allclose(losses, math.log(1 + math.exp(-2)), rtol=1e-6)


@pytest.mark.parametrize("sentence_loss", ["mse", "kl", "cosine_mse", "cosine_mae"])
@pytest.mark.parametrize("token_loss", ["batch", "vocabulary"])
def test_simtde_equals_plain_torch(sentence_loss, token_loss, mesh):
    objective = SimTDE(**SIMTDE | dict(sentence_loss=sentence_loss, token_loss=token_loss))
    student, teacher = encoded(np.random.default_rng(7), objective)
    params, state = start(objective, mesh)

    def total(student):
        return jnp.mean(objective(params, state, student, teacher, mesh=mesh)[0])

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


def test_simtde_compares_through_matrices_where_the_widths_differ(mesh):
    objective = SimTDE(**SIMTDE)
    sizes = Sizes(batch_size=8, width=8, hidden=8, layers=1, teacher_hidden=6, teacher_layers=2)
    params, _ = objective.init(jax.random.key(0), sizes, None)
    assert {name: p.shape for name, p in params.items()} == {
        "matrix/tokens/kernel": (8, 6), "matrix/layers/0/kernel": (8, 6),
    }  # fmt: skip
    student, teacher = encoded(np.random.default_rng(8), objective)
    teacher = teacher._replace(
        embeddings=student.embeddings @ np.asarray(params["matrix/tokens/kernel"]),
        hidden=np.repeat(student.hidden @ np.asarray(params["matrix/layers/0/kernel"]), 2, axis=0),
        sentences=student.sentences,
    )
    losses, _, metrics = objective(params, (), student, teacher, mesh=mesh)
    np.testing.assert_allclose(losses, 0.0, atol=1e-5)


@pytest.mark.parametrize("hidden_map, compared", [("last", (3, 4, 5)), ("even", (1, 3, 5))])
def test_simtde_pairs_each_of_three_layers_with_its_own_of_six(hidden_map, compared, mesh):
    """A student whose layers are those of the teacher has no loss under its own map, and one under any other."""
    objective = SimTDE(**SIMTDE | dict(alpha=0.0, hidden_weight=1.0, hidden_map=hidden_map))
    random = np.random.default_rng(12)
    hidden = random.standard_normal((6, 2, 3, 5, 8)).astype(np.float32)
    owner = np.where(random.random((2, 3, 5)) < 0.8, 0, -1).astype(np.int32)
    vectors = random.standard_normal((8, 1, 8)).astype(np.float32)
    teacher = Encoded(vectors, owner, hidden=hidden)
    for mine in ((3, 4, 5), (1, 3, 5), (0, 2, 4), (5, 4, 3)):
        losses, _, _ = objective({}, (), Encoded(vectors, owner, hidden=hidden[list(mine)]), teacher, mesh=mesh)
        expected = np.mean(np.square(hidden[list(mine)] - hidden[list(compared)])[:, owner >= 0])
        np.testing.assert_allclose(losses, expected, rtol=1e-5, err_msg=str(mine))
        assert bool(np.all(np.asarray(losses) == 0)) == (mine == compared)


@pytest.mark.parametrize("negatives", ["clip", "raw"])
@pytest.mark.parametrize(
    "form, loss", [("bi", "mse"), ("bi", "log_cosh"), ("bi", "bce"), ("cross", "bce"), ("cross", "mse")]
)
def test_regressions_of_labels_equal_plain_torch(form, loss, negatives, mesh):
    objective = TransEncoder(form=form, loss=loss, negatives=negatives, both_orders=form == "cross")
    random = np.random.default_rng(11)
    width = 8 if form == "bi" else 1
    student = Encoded(random.standard_normal((8, 2, width)).astype(np.float32))
    labels = random.uniform(-1.0, 1.0, (8, 1, 1)).astype(np.float32)
    losses, (gradient, _) = value_and_gradient(objective, mesh, student, Encoded(labels), {}, ())
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


def test_a_label_below_zero_by_hand(mesh):
    """A logit of -10 for the label -1: softplus(-10) - (-10)(-1), below 0 as it is and nearly 0 clipped."""
    student, labels = Encoded(np.float32([[[-10.0]]])), Encoded(np.float32([[[-1.0]]]))
    for negatives, expected in (("raw", math.log1p(math.exp(-10)) - 10.0), ("clip", math.log1p(math.exp(-10)))):
        objective = TransEncoder(form="cross", loss="bce", negatives=negatives, both_orders=False)
        losses, _, metrics = objective({}, (), student, labels, mesh=mesh)
        np.testing.assert_allclose(losses, [expected], rtol=1e-6)
        assert metrics["label/negative"] == 1.0


def test_a_bi_encoder_that_finds_pairs_as_its_labels_say_has_no_loss(mesh):
    vectors = np.float32([[[1, 0], [1, 1]], [[0, 2], [3, 0]]])
    labels = np.float32([[[np.sqrt(0.5)]], [[0.0]]])
    for loss in ("mse", "log_cosh"):
        objective = TransEncoder(**TRANS_ENCODER | dict(loss=loss))
        losses, _, _ = objective({}, (), Encoded(vectors), Encoded(labels), mesh=mesh)
        np.testing.assert_allclose(losses, 0.0, atol=1e-6)


@pytest.mark.parametrize("name", ["embedding", "simtde"])
def test_a_student_equal_to_its_teacher_has_no_loss(name, mesh):
    objective = {"embedding": Embedding(**EMBEDDING), "simtde": SimTDE(**SIMTDE)}[name]
    student, teacher = encoded(np.random.default_rng(9), objective)
    student = Encoded(
        np.repeat(teacher.sentences[:, :1], len(objective.student_views), axis=1), student.owner, teacher.embeddings,
        teacher.hidden[-1:], teacher.vocabulary,
    )  # fmt: skip
    losses, _, _ = objective({}, (), student, teacher, mesh=mesh)
    np.testing.assert_allclose(losses, 0.0, atol=1e-6)


def test_nested_widths_are_the_objective_on_each_width(mesh):
    inner = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    student, teacher = encoded(np.random.default_rng(10), inner)
    nested = Nested(objective=inner, dims=(2, 4, 8), targets="truncated")
    params, state = start(nested, mesh)
    losses, _, metrics = nested(params, state, student, teacher, mesh=mesh)
    each = [
        inner({}, (), Encoded(student.sentences[..., :dim]), Encoded(teacher.sentences[..., :dim]), mesh=mesh)[0]
        for dim in (2, 4, 8)
    ]
    np.testing.assert_allclose(losses, np.mean(each, axis=0), rtol=1e-6)
    assert {"loss/2", "loss/4", "loss/8"} <= metrics.keys()


def test_projected_widths_meet_the_whole_target_through_their_matrices(mesh):
    """By value and gradient: each width's first numbers times its matrix, against the teacher's whole vectors."""
    inner = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    student, teacher = encoded(np.random.default_rng(13), inner)
    nested = Nested(objective=inner, dims=(2, 4, 8), targets="projected")
    params, state = start(nested, mesh)
    assert {name: array.shape for name, array in params.items()} == {
        "nested/2/kernel": (2, 8), "nested/4/kernel": (4, 8),
    }  # fmt: skip
    losses, (gradient, of_params) = value_and_gradient(nested, mesh, student, teacher, params, state)
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


def test_the_teachers_dropout_is_on_only_where_it_is_asked_for():
    """Between two steps on one batch, a student that does not move has another loss if its teacher drops numbers."""
    objective = Embedding(**EMBEDDING | dict(third="none", second_view=""))
    for teacher_dropout in (False, True):
        still = World(objective, 1, dropout=0.0, learning_rate=0.0, teacher_dropout=teacher_dropout)
        still.batches = still.batches[:1] * 2
        losses, _ = still.run()
        assert (losses[0]["loss"] != losses[1]["loss"]) == teacher_dropout


@pytest.mark.parametrize(
    "kind, options, changed, words",
    [
        (Embedding, EMBEDDING, dict(distance="l1"), "squared, cosine"),
        (Embedding, EMBEDDING, dict(second_view=""), "set --config.objective.second_view"),
        (Embedding, EMBEDDING, dict(third="all"), "none, views, teacher"),
        (Embedding, EMBEDDING, dict(distance="cosine", normalize=False), "set --config.objective.normalize"),
        (CKD, CKD_OPTIONS, dict(temperature=0.0), "above 0"),
        (CKD, CKD_OPTIONS, dict(learned_scale="yes"), "none, log, linear"),
        (CKD, CKD_OPTIONS, dict(queue_size=-1), "at least 0"),
        (SimCSE, SIMCSE, dict(views=("text",)), "two views"),
        (SimCSE, SIMCSE, dict(among="both"), "give two views"),
        (SimCSE, SIMCSE, dict(negative_weight=0.0), "above 0"),
        (SimTDE, SIMTDE, dict(alpha=2.0), "at least 0 and at most 1"),
        (SimTDE, SIMTDE, dict(token_loss="all"), "batch, vocabulary"),
        (SimTDE, SIMTDE, dict(hidden_weight=-1.0), "at least 0"),
    ],
)
def test_conflicting_options_are_refused(kind, options, changed, words):
    with pytest.raises(InputError, match=words):
        options_from(kind, options | changed, prefix="objective")


@pytest.mark.parametrize("dims, words", [((4, 4), "rising"), ((0, 4), "positive"), ((4, 99), "beyond")])
def test_wrong_nested_widths_are_refused(dims, words, mesh):
    with pytest.raises(InputError, match=words):
        start(Nested(objective=CASES["embedding"], dims=dims, targets="projected"), mesh)
