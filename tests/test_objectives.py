"""What every objective must do: options, devices, resuming, gradients of the teacher, refusals."""

import dataclasses
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jaxdistill.config import options_from
from jaxdistill.core import Batch, InputError, Sizes, Tokens
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.encoders.sentence import init_params
from jaxdistill.objectives.ckd import CKD
from jaxdistill.objectives.embedding import Embedding
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.objectives.simtde import SimTDE
from jaxdistill.training import optim, step

from compiled import ADAMW, definition
from objective_cases import (
    CASES,
    CKD_OPTIONS,
    EMBEDDING,
    EVERY,
    SIMCSE,
    SIMTDE,
    TEACHER_LAYERS,
    encoded,
    start,
)

every = pytest.mark.parametrize("name", EVERY)
BATCH, GROUPS, LENGTH = 16, 4, 12


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
        self.forward = step.Forward(
            student, None, objective, jnp.float32, False, False, shardings.params["student"], of_teacher
        )
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


@pytest.fixture(scope="module", autouse=True)
def worlds_end_with_the_file():
    """Each holds compiled steps."""
    yield
    world.cache_clear()


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


@pytest.mark.parametrize("name", ["ckd", "simcse", "gram"])
def test_a_cached_gradient_is_that_of_the_whole_batch_on_any_number_of_devices(name):
    """A queue and a learned scale; no teacher; neither. Losses, gradients, parameters and the queue after three steps."""
    whole, straight = World(CASES[name], 1, dropout=0.0).run()
    parts, cached = World(CASES[name], 2, accumulate=2, dropout=0.0).run()
    for one, other in zip(whole, parts, strict=True):
        assert one.keys() == other.keys()
        for metric, value in one.items():
            np.testing.assert_allclose(value, other[metric], rtol=1e-4, atol=1e-5, err_msg=metric)
    for path, array in params_of(straight).items():
        np.testing.assert_allclose(array, params_of(cached)[path], atol=2e-3, err_msg=path)
    for one, other in zip(jax.tree.leaves(straight.objective), jax.tree.leaves(cached.objective), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def products_in(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products_in(inner)


@every
def test_no_product_of_float32_numbers_is_rounded_on_an_accelerator(name):
    """Of the whole step; TPUs and GPUs round the operands of a product that does not ask for the highest precision."""
    made = world(name, 1)
    step_of = made.step.trace(made.start(), made.teacher_params, made.batches[0])
    found = {equation.params["precision"] for equation in products_in(step_of.jaxpr.jaxpr)}
    assert found == {(jax.lax.Precision.HIGHEST,) * 2}


@every
def test_no_gradient_reaches_the_teacher_and_jit_changes_nothing(name):
    objective = EVERY[name]
    if name.startswith("nested"):
        objective = dataclasses.replace(objective, dims=(4,))
    student, teacher = encoded(np.random.default_rng(1), objective)
    params, state = start(objective)

    def total(teacher):
        return jnp.mean(objective(params, state, student, teacher)[0])

    with jax.set_mesh(meshes.make_mesh(devices=jax.devices()[:1])):  # eagerly, every device costs
        value, gradient = jax.jit(jax.value_and_grad(total, allow_int=True))(teacher)
        if name in CASES:  # eagerly, every operation is compiled by itself; what wraps an objective adds many
            np.testing.assert_allclose(total(teacher), value, rtol=1e-5)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jax.dtypes.float0 or not np.any(leaf)


@pytest.mark.parametrize(
    "kind, options, changed, words",
    [
        (Embedding, EMBEDDING, dict(distance="l1"), "squared, cosine"),
        (Embedding, EMBEDDING, dict(second_view=""), "set --config.objective.second_view"),
        (CKD, CKD_OPTIONS, dict(learned_scale="yes"), "none, log, linear"),
        (SimCSE, SIMCSE, dict(views=("text",)), "has 1 parts; their number must be at least 2 and at most 3"),
        (SimCSE, SIMCSE, dict(among="both"), "give two views"),
        (SimTDE, SIMTDE, dict(alpha=2.0), "at least 0 and at most 1"),
    ],
)
def test_conflicting_options_are_refused(kind, options, changed, words):
    with pytest.raises(InputError, match=words):
        options_from(kind, options | changed, prefix="objective")
