"""The optimiser: schedules, AdamW without bias correction by hand, optimisers by name, factors of the rate, averages."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from jaxdistill import main
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training.optim import make_optimizer, make_schedule
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

from compiled import ADAMW
from program import tiny_arguments

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.parametrize("fraction, steps, warmup", [(0.1, 15, 2), (0.1, 30, 3), (0.07, 100, 7)])  # 0.07 * 100 > 7
def test_a_fraction_of_a_step_warms_up_for_a_whole_one(fraction, steps, warmup):
    schedule = make_schedule(dataclasses.replace(ADAMW, learning_rate=1.0, warmup_fraction=fraction), steps)
    rates = [float(schedule(step)) for step in range(warmup + 1)]
    np.testing.assert_allclose(rates, np.arange(warmup + 1) / warmup, rtol=1e-6)


@pytest.mark.parametrize(
    "bias_correction, eps_before_correction",
    [(True, False), (True, True), (False, False)],
    ids=["PyTorch", "transformers", "BERT"],
)
@pytest.mark.parametrize("eps", [1e-6, 0.1], ids=["small eps", "large eps"])  # a large one tells where it is added
@jax.numpy_dtype_promotion("standard")  # optax raises floats to integer powers
def test_twenty_updates_equal_the_plain_form(bias_correction, eps_before_correction, eps):
    options = dataclasses.replace(
        ADAMW, learning_rate=0.01, schedule="constant", warmup_fraction=0.0, b1=0.8, b2=0.99, eps=eps,
        bias_correction=bias_correction, eps_before_correction=eps_before_correction, clip_norm=0.5,
    )  # fmt: skip
    random = np.random.default_rng(0)
    shapes = {"a/kernel": (3, 2), "a/bias": (2,), "norm/scale": (2,), "log_scale": ()}
    params = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    gradients = [{name: random.standard_normal(shape) for name, shape in shapes.items()} for _ in range(20)]
    optimizer = make_optimizer(options, 20)
    actual = {name: jnp.float32(p) for name, p in params.items()}
    state = optimizer.init(actual)
    m, v = ({name: np.zeros_like(p) for name, p in params.items()} for _ in range(2))
    for step, gradient in enumerate(gradients, start=1):
        updates, state = optimizer.update({n: jnp.float32(g) for n, g in gradient.items()}, state, actual)
        actual = {name: actual[name] + updates[name] for name in actual}
        norm = np.sqrt(sum(np.sum(g**2) for g in gradient.values()))
        for name, g in gradient.items():
            g = g * min(1.0, 0.5 / norm)
            m[name], v[name] = 0.8 * m[name] + 0.2 * g, 0.99 * v[name] + 0.01 * g**2
            c1, c2 = (1 - 0.8**step, 1 - 0.99**step) if bias_correction else (1.0, 1.0)
            if eps_before_correction:
                adam = np.sqrt(c2) / c1 * m[name] / (np.sqrt(v[name]) + eps)
            else:
                adam = m[name] / c1 / (np.sqrt(v[name] / c2) + eps)
            decay = 0.01 * params[name] if name.endswith("kernel") else 0.0
            params[name] = params[name] - 0.01 * (adam + decay)
    for name in params:
        np.testing.assert_allclose(actual[name], params[name], atol=2e-5)


@pytest.mark.parametrize("decay", ["matrices", "all"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@jax.numpy_dtype_promotion("standard")
def test_twenty_updates_follow_torch(decay, schedule):
    """Warm-up in steps, schedule, decay mask and clipping, combined as in the papers' scripts."""
    options = dataclasses.replace(
        ADAMW, learning_rate=0.02, schedule=schedule, warmup_steps=5, warmup_fraction=0.5, weight_decay=0.1, decay=decay,
        b2=0.98, clip_norm=1.0,
    )  # fmt: skip
    random = np.random.default_rng(1)
    start = {"a/kernel": random.standard_normal((3, 2)), "a/bias": random.standard_normal(2)}
    gradients = [{name: random.standard_normal(p.shape) for name, p in start.items()} for _ in range(20)]
    torch_params = {name: torch.nn.Parameter(torch.tensor(p)) for name, p in start.items()}
    groups = [
        {"params": [p], "weight_decay": 0.1 if decay == "all" or name.endswith("kernel") else 0.0}
        for name, p in torch_params.items()
    ]
    adamw = torch.optim.AdamW(groups, lr=0.02, betas=(0.9, 0.98), eps=options.eps)
    make = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}[schedule]
    scheduler = make(adamw, num_warmup_steps=5, num_training_steps=20)
    optimizer = make_optimizer(options, 20)
    params = {name: jnp.float32(p) for name, p in start.items()}
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update({n: jnp.float32(g) for n, g in gradient.items()}, state, params)
        params = {name: params[name] + updates[name] for name in params}
        for name, parameter in torch_params.items():
            parameter.grad = torch.tensor(gradient[name])
        torch.nn.utils.clip_grad_norm_(torch_params.values(), 1.0)
        adamw.step()
        scheduler.step()
        for name in params:
            np.testing.assert_allclose(params[name], torch_params[name].detach(), atol=2e-5)


def test_wsd_is_constant_until_the_last_steps():
    options = dataclasses.replace(ADAMW, learning_rate=1.0, schedule="wsd", decay_fraction=0.2, warmup_fraction=0.1)
    schedule = make_schedule(options, 20)
    rates = [float(schedule(step)) for step in range(21)]
    np.testing.assert_allclose(rates, [0.0, 0.5, *[1.0] * 15, 0.75, 0.5, 0.25, 0.0], atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "lion", "adafactor", "muon", "schedule_free", "sgd"])
@jax.numpy_dtype_promotion("standard")
def test_optimisers_by_name_lower_a_loss_and_leave_frozen_parameters(name):
    options = dataclasses.replace(
        ADAMW, name=name, learning_rate=0.05, schedule="constant", warmup_fraction=0.0, weight_decay=0.1,
        rates=(("frozen", 0.0), ("slow", 0.1)),
    )  # fmt: skip
    start = {f"{layer}/kernel": jnp.ones((4, 4), jnp.float32) for layer in ("frozen", "slow", "fast")}
    optimizer = make_optimizer(options, 10)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(params, state, params)  # the gradient of half the sum of squares
        return {layer: params[layer] + updates[layer] for layer in params}, state

    params, state = start, optimizer.init(start)
    for _ in range(3):
        params, state = step(params, state)
    np.testing.assert_array_equal(params["frozen/kernel"], start["frozen/kernel"])
    distances = {layer: float(jnp.mean(1.0 - params[f"{layer}/kernel"])) for layer in ("slow", "fast")}
    assert distances["fast"] > 3 * distances["slow"] > 0


@pytest.mark.parametrize("name", ["lion", "schedule_free"])
def test_averaged_parameters_are_evaluated_and_exported(tmp_path, name):
    options = {"optimizer.name": name, "optimizer.ema": 0.25, "optimizer.rates": "(('embeddings',0.0),)"}
    overrides = {option.replace(".", "__"): value for option, value in options.items()}
    arguments = [*tiny_arguments(tmp_path, run__steps=2, evals__every=2, evals__best="last", **overrides)]
    main.main([*arguments, f"--workdir={tmp_path / 'w'}"])
    state = Checkpoints(Workdir(tmp_path / "w"), read_only=True).restore_alone(2)
    exported, first = (load_model(str(tmp_path / "w" / folder)).params for folder in ("export", "student"))
    changed = 0
    for path, average in state.average.items():
        np.testing.assert_array_equal(exported[path], average)
        if "embeddings" in path:  # frozen; the averages of schedule-free round
            np.testing.assert_allclose(average, first[path], rtol=1e-6, atol=1e-7)
        changed += not np.array_equal(average, state.params["student"][path])
    assert changed
