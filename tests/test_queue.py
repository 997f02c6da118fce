"""ConGen's queue and loss: against plain NumPy, in blocks of any size, and in the order in which keys are forgotten."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.core import Encoded, Sizes
from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.core.ops import ring
from jaxdistill.core.ops.ring import Ring, push, softmax_over_ring
from jaxdistill.objectives.congen import ConGen


def oldest_first(ring: Ring, count: int):
    """The newest `count` rows of a ring, oldest first."""
    blocks, batch_size, width = ring.ring.shape
    ordered = jnp.roll(ring.ring, -(ring.pushes % blocks), axis=0).reshape(blocks * batch_size, width)
    return ordered[blocks * batch_size - count :]


def sizes(batch_size: int, width: int) -> Sizes:
    return Sizes(batch_size=batch_size, width=width, hidden=width, layers=1, teacher_hidden=width, teacher_layers=1)


def unit_rows(random, *shape):
    x = random.standard_normal(shape).astype(np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softmax(x):
    x = np.exp(x - x.max(axis=1, keepdims=True))
    return x / x.sum(axis=1, keepdims=True)


def plain_loss(student, teacher, queue, *, keys, alpha, tau_s, tau_t):
    """ConGen with whole logit matrices, in float64: value, and gradient with respect to unit student vectors."""
    student, teacher, queue = (np.asarray(x, np.float64) for x in (student, teacher, queue))
    b, v, _ = student.shape
    weights = [alpha, 1 - alpha] if v == 2 else [1.0]
    losses, gradient = np.zeros(b), np.zeros_like(student)
    for i in range(b):
        rows = {"queue+batch": [queue, teacher], "queue": [queue], "queue+own": [queue, teacher[i : i + 1]]}[keys]
        rows = np.concatenate(rows)
        p = softmax((teacher[i] @ rows.T / tau_t)[None])[0]
        for j in range(v):
            q = softmax((student[i, j] @ rows.T / tau_s)[None])[0]
            losses[i] -= weights[j] * np.sum(p * np.log(q))
            gradient[i, j] = weights[j] * (q - p) @ rows / tau_s
    return losses, gradient


@pytest.mark.parametrize("keys", ["queue+batch", "queue", "queue+own"])
@pytest.mark.parametrize("size, devices", [(40, 1), (35, 8)])
def test_value_and_gradient_equal_the_plain_form(keys, size, devices):
    random = np.random.default_rng(0)
    student, teacher, seeds = unit_rows(random, 8, 2, 16), unit_rows(random, 8, 16), unit_rows(random, size, 16)
    objective = ConGen(key_set=keys, queue_size=size, alpha=0.3, student_temperature=0.07, teacher_temperature=0.05)
    _, state = objective.init(jax.random.key(0), sizes(8, 16), seeds)
    newest = np.concatenate([seeds, teacher])[-size:] if keys == "queue" else seeds

    def total(student):
        losses, state_, metrics = objective({}, state, Encoded(student), Encoded(teacher[:, None]))
        return jnp.sum(losses), (losses, metrics)

    with jax.set_mesh(make_mesh(devices=jax.devices()[:devices], slices=min(devices, 2))):
        (_, (losses, metrics)), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(student)
    expected, d_unit = plain_loss(student, teacher, newest, keys=keys, alpha=0.3, tau_s=0.07, tau_t=0.05)
    d_student = d_unit - np.sum(d_unit * student, axis=-1, keepdims=True) * student
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, d_student, atol=1e-5)
    np.testing.assert_allclose(
        0.3 * metrics["loss/control"] + 0.7 * metrics["loss/generalize"], np.mean(expected), rtol=1e-5
    )
    np.testing.assert_allclose(metrics["cosine/teacher"], np.mean(np.sum(student[:, 0] * teacher, axis=-1)), atol=1e-6)


@pytest.mark.parametrize(("platform", "size"), [("cpu", "BLOCK_ROWS"), ("gpu", "BLOCK_ROWS_OF_GPUS")])
# Of a device's 7 batches of 2 rows, 1 or 3 at a time, which leaves one.
@pytest.mark.parametrize("blocks", [[2], [6, 2]])
def test_the_size_of_blocks_does_not_matter(mesh, monkeypatch, platform, size, blocks):
    random = np.random.default_rng(1)
    queries, queue = 10 * unit_rows(random, 16, 2, 8), Ring(unit_rows(random, 7, 16, 8), jnp.int32(4))
    monkeypatch.setattr(ring, "platform", lambda mesh: platform)
    traced, results = [], []
    monkeypatch.setattr(
        ring, "_absorb", lambda *arguments, absorb=ring._absorb: traced.append(len(arguments[2])) or absorb(*arguments)
    )
    for rows in (getattr(ring, size), blocks[0]):
        monkeypatch.setattr(ring, size, rows)
        call = jax.jit(partial(softmax_over_ring, expired=(0, 5), starts_full=True))
        results.append(call(queries, queue))
    assert traced == [14, *blocks], "keys of a device: all at once, or in blocks and a rest"
    for first, second in zip(*results, strict=True):
        np.testing.assert_allclose(first, second, atol=1e-5)


def test_blocks_that_were_never_written_hold_no_keys(mesh):
    random = np.random.default_rng(7)
    rows = unit_rows(random, 16, 8)
    ring = push(push(Ring(jnp.zeros((5, 8, 8)), jnp.int32(0)), rows[:8]), rows[8:])
    queries = 10 * unit_rows(random, 8, 1, 8)
    lse, average = jax.jit(partial(softmax_over_ring, expired=(0, 0), starts_full=False))(queries, ring)
    logits = np.asarray(queries[:, 0] @ rows.T, np.float64)
    np.testing.assert_allclose(lse[:, 0], np.log(np.exp(logits).sum(axis=1)), atol=1e-5)
    np.testing.assert_allclose(average[:, 0], softmax(logits) @ rows, atol=1e-5)


@pytest.mark.parametrize("queue_size", [32, 29, 5])
def test_queue_forgets_oldest_first(queue_size):
    random = np.random.default_rng(5)
    seeds = unit_rows(random, queue_size, 4)
    _, queue = ConGen(queue_size=queue_size).init(jax.random.key(0), sizes(8, 4), seeds)
    np.testing.assert_allclose(oldest_first(queue, queue_size), seeds, atol=1e-6)
    history = list(seeds)
    for _ in range(3 * -(-queue_size // 8) + 1):
        batch = unit_rows(random, 8, 4)
        queue = jax.jit(push)(queue, batch)
        history.extend(batch)
        np.testing.assert_allclose(oldest_first(queue, queue_size), history[-queue_size:], atol=1e-6)
