"""Requirements of every objective: options, devices, parts of a batch, gradients of the teacher, refusals."""

import dataclasses
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from jaxdistill.core import Batch, InputError, Sizes, Tokens
from jaxdistill.core.cluster import mesh as meshes
from jaxdistill.models.students import Cut
from jaxdistill.training import optim, step
from jaxdistill.training.build import check_models, make_objective

from compiled import ADAMW, definition
from objective_cases import CASES, EVERY, TEACHER_LAYERS, case, encoded, random_keys, start
from program import config_of
from tiny_models import random_params, tiny_model

every = pytest.mark.parametrize("name", EVERY)
BATCH, GROUPS, LENGTH = 16, 4, 12


def make_tokens(random, sentences: int) -> Tokens:
    """One sentence a row, of 3 to 12 tokens."""
    lengths = random.integers(3, LENGTH + 1, (GROUPS, sentences))
    position = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (GROUPS, sentences, LENGTH))
    real = position < lengths[..., None]
    owner = np.where(real, np.arange(sentences, dtype=np.int32)[None, :, None], -1).astype(np.int32)
    ids = np.where(real, random.integers(1, 128, position.shape), 0).astype(np.int32)
    first = np.broadcast_to(LENGTH * np.arange(sentences, dtype=np.int32), (GROUPS, sentences))
    return Tokens(ids, owner, np.where(real, position, 0).astype(np.int32), np.ascontiguousarray(first))


class World:
    """A student with dropout, a teacher, batches and the step of an objective, on some devices."""

    def __init__(self, objective, devices: int, *, dropout: float, accumulate: int = 1):
        self.mesh = meshes.make_mesh(devices=jax.devices()[:devices])
        student, teacher = definition(), definition(layers=TEACHER_LAYERS)
        rates = dict(hidden_dropout=dropout, attention_dropout=dropout)
        student = dataclasses.replace(student, architecture=dataclasses.replace(student.architecture, **rates))
        random = np.random.default_rng(0)
        sizes = Sizes(batch_size=BATCH, width=32, hidden=32, layers=1, teacher_hidden=32, teacher_layers=TEACHER_LAYERS)
        options = dataclasses.replace(ADAMW, schedule="constant", warmup_fraction=0.0)
        optimizer = optim.make_optimizer(options, 10)
        seeds = random.standard_normal((objective.reserve_rows, 32)).astype(np.float32)
        make = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes)
        inputs = random_params(student, seed=1), seeds if len(seeds) else None, jax.random.key(2)
        shardings = meshes.shardings(jax.eval_shape(make, *inputs), self.mesh, ())
        self.start = partial(jax.jit(make, out_shardings=shardings), *inputs)
        teacher_params = random_params(teacher, seed=3)
        of_teacher = meshes.shardings(teacher_params, self.mesh, ())
        self.teacher_params = meshes.place(teacher_params, of_teacher)
        read_teacher = teacher if objective.teacher_views else None
        forward = step.Forward(student, read_teacher, objective, shardings.params["student"], of_teacher, jnp.float32)
        self.step = step.make_train_step(
            forward, optimizer=optimizer, mesh=self.mesh, shardings=shardings, accumulate=accumulate
        )
        views, of_teacher = len(objective.student_views), len(objective.teacher_views)
        read = bool(of_teacher) and not objective.reads
        self.batches = [
            meshes.place(
                Batch(
                    make_tokens(random, views * BATCH // GROUPS),
                    make_tokens(random, of_teacher * BATCH // GROUPS) if read else None,
                    None,
                    random_keys(random, BATCH, views) if objective.compares_texts else None,
                ),
                meshes.batch_sharding(self.mesh),
            )
            for _ in range(3)
        ]

    def run(self):
        """(metrics of each step, state) after all batches."""
        metrics, state = [], self.start()
        for batch in self.batches:
            state, measured = self.step(state, self.teacher_params, batch)
            metrics.append(jax.device_get(measured))
        return metrics, state


DROPOUT = {"congen": 0.1}
"""One is enough: dropout is equal on any number of devices; without it, parts of a batch train as the whole."""


@lru_cache
def on_one_device(name: str) -> World:
    return World(EVERY[name], 1, dropout=DROPOUT.get(name, 0.0))


@pytest.fixture(scope="module", autouse=True)
def worlds_end_with_the_file():
    """Each holds compiled steps."""
    yield
    on_one_device.cache_clear()


def assert_equal_runs(first: World, second: World, *, rtol: float):
    """Compares the metrics of every step, the parameters and the objective's state of two runs."""
    (metrics, state), (of_other, other_state) = first.run(), second.run()
    for measured, expected in zip(metrics, of_other, strict=True):
        assert measured.keys() == expected.keys() and measured["gradient_norm"] > 0
        for name, value in measured.items():
            np.testing.assert_allclose(value, expected[name], rtol=rtol, atol=1e-5, err_msg=name)
    for tree, tolerance in ((lambda state: state.params, 2e-3), (lambda state: state.objective, 1e-4)):
        for array, expected in zip(jax.tree.leaves(tree(state)), jax.tree.leaves(tree(other_state)), strict=True):
            np.testing.assert_allclose(array, expected, atol=tolerance)


@pytest.mark.parametrize("name", ["congen", "ckd", "gram", "simtde", "gist", "contrastive", "nested congen"])
def test_four_devices_train_as_one_does(name):
    """Those with a part that is written for devices, or with more than one product in a batch."""
    assert_equal_runs(on_one_device(name), World(EVERY[name], 4, dropout=DROPOUT.get(name, 0.0)), rtol=2e-5)


@pytest.mark.parametrize("name", ["ckd", "gram", "embedding", "contrastive", "simtde"])
def test_parts_of_a_batch_train_as_the_whole_does(name):
    """A queue and a learned scale; three whose losses add up. SimTDE's means over tokens do not."""
    if name == "simtde":
        objective = case("simtde", alpha=0.0, hidden_weight=0.0)
        assert_equal_runs(World(objective, 1, dropout=0.0), World(objective, 2, dropout=0.0, accumulate=2), rtol=1e-4)
    else:
        assert_equal_runs(on_one_device(name), World(CASES[name], 2, dropout=0.0, accumulate=2), rtol=1e-4)


def products_in(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from products_in(inner)


@every
def test_no_product_of_float32_numbers_is_rounded_on_an_accelerator(name):
    """Of the whole step; TPUs and GPUs round the operands of a product that does not ask for the highest precision."""
    world = on_one_device(name)
    step_of = world.step.trace(world.start(), world.teacher_params, world.batches[0])
    precisions = {equation.params["precision"] for equation in products_in(step_of.jaxpr.jaxpr)}
    assert precisions == {(jax.lax.Precision.HIGHEST,) * 2}


@every
def test_no_gradient_reaches_the_teacher(name):
    objective = EVERY[name]
    if name.startswith("nested"):
        objective = dataclasses.replace(objective, dims=(4,))
    student, teacher = encoded(np.random.default_rng(1), objective)
    params, state = start(objective)

    def total(teacher):
        return jnp.mean(objective(params, state, student, teacher)[0])

    with jax.set_mesh(meshes.make_mesh(devices=jax.devices()[:1])):
        gradient = jax.jit(jax.grad(total, allow_int=True))(teacher)
    for leaf in jax.tree.leaves(gradient):
        assert leaf.dtype == jax.dtypes.float0 or not np.any(leaf)


COLUMNS = (("text", "text"), ("positive", "positive"))


@pytest.mark.parametrize(
    ("preset", "changed", "words"),
    [
        ("gist.py:minilm-l3", {"teacher.whiten": 1.0, "teacher.kind": "stored"}, "each column by itself"),
        ("gist.py:minilm-l3", {"teacher.kind": "vectors", "teacher.file": "v.npy"}, "reads text, positive; name a teacher"),
        ("simtde.py:minilm-128-l3", {"teacher.kind": "stored"}, "single tokens or layers; choose .*:teacher=live"),
        ("cosent.py:minilm-l3", {"teacher.kind": "stored"}, "does not go with objective cosent"),
        ("l2.py:cosine", {"data.columns": COLUMNS}, "reads only text; .*--config.data.columns=text.positive$"),
        ("ckd.py:minilm-l3", {"objective.view": "crop", "teacher.kind": "stored"}, "differ at every step: crop"),
    ],
)  # fmt: skip
def test_targets_and_views_that_an_objective_would_misread_are_refused(preset, changed, words):
    with pytest.raises(InputError, match=words):
        make_objective(config_of(f"configs/{preset}", changed))


def test_a_sentence_is_not_its_own_positive_without_dropout(tmp_path):
    student = tiny_model(tmp_path)

    def check(preset, kind, **options):
        config = dataclasses.replace(config_of(f"configs/{preset}", options), student=kind)
        check_models(config, make_objective(config), student, [student])

    with pytest.raises(InputError, match="reads a sentence twice.*student.dropout=0.1"):
        check("simcse.py:minilm-l3", Cut(dropout=0.0))
    check("simcse.py:minilm-l3", Cut(dropout=0.1))
    check("simcse.py:minilm-l3", Cut(dropout=0.0, drophead=0.2))
    check("simcse.py:minilm-l3", Cut(dropout=0.0), **{"objective.views": ("text", "delete_words")})
    check("dual_l2.py:minilm-l3", Cut(dropout=0.0))
