"""Makes an optax transformation from the optimiser's options."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdistill.config.options import Optimizer
from jaxdistill.core import InputError, Params, did_you_mean

SCHEDULE_FREE = "schedule_free"
"""Value of `optimizer.name` for optax's schedule-free wrapper around AdamW."""


def make_schedule(options: Optimizer, steps: int) -> optax.Schedule:
    """The learning rate of each update, counted from 0: a linear warm-up from 0, then `options.schedule`. All schedules but
    `constant` end at 0. As with PyTorch's LambdaLR, the first update of a warm-up has the rate 0."""
    # Rounded first: 0.07 * 100 is slightly above 7.
    warmup_steps = options.warmup_steps or math.ceil(round(options.warmup_fraction * steps, 6))
    later_steps = max(steps - warmup_steps, 1)
    decay_steps = min(max(round(options.decay_fraction * steps), 1), later_steps)  # the last ones, of `wsd`
    schedule = {
        "linear": optax.linear_schedule(options.learning_rate, 0.0, later_steps),
        "cosine": optax.cosine_decay_schedule(options.learning_rate, later_steps),
        "constant": optax.constant_schedule(options.learning_rate),
        "wsd": optax.linear_schedule(options.learning_rate, 0.0, decay_steps, later_steps - decay_steps),
    }[options.schedule]
    if warmup_steps == 0:
        return schedule
    warmup = optax.linear_schedule(0.0, options.learning_rate, warmup_steps)
    return optax.join_schedules([warmup, schedule], [warmup_steps])


def make_optimizer(options: Optimizer, steps: int) -> optax.GradientTransformation:
    """Chains clipping of gradients, the optimiser with weight decay and learning rate, and the factors `options.rates`. The first of
    `rates` whose pattern matches a parameter's path multiplies that parameter's update."""

    def scaled(path: tuple, update: jax.Array) -> jax.Array:
        factor = next((rate for pattern, rate in options.rates if re.search(pattern, path[-1].key)), 1.0)
        return update * jnp.float32(factor)

    clip = [optax.clip_by_global_norm(options.clip_norm)] if options.clip_norm > 0 else []
    scale = optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates))
    factors = [scale] if options.rates else []
    schedule = make_schedule(options, steps)
    mask = is_decayed if options.decay == "matrices" else None
    if options.name not in ("adamw", SCHEDULE_FREE):
        return optax.chain(*clip, optimizer_of_optax(options, schedule, mask), *factors)
    # Schedule-free's interpolation of parameters takes the place of the first moment.
    b1 = 0.0 if options.name == SCHEDULE_FREE else options.b1
    adam = optax.scale_by_adam(b1=b1, b2=options.b2, eps=options.eps)
    if options.eps_before_correction or not options.bias_correction:
        adam = transformers_adam(b1, options.b2, options.eps, bias_correction=options.bias_correction)
    decay = optax.add_decayed_weights(options.weight_decay, mask=mask)
    adamw = optax.chain(*clip, adam, decay, optax.scale_by_learning_rate(schedule), *factors)
    return adamw if options.name == "adamw" else optax.contrib.schedule_free(adamw, schedule, b1=options.b1)


def optimizer_of_optax(options: Optimizer, schedule: optax.Schedule, mask: Any) -> optax.GradientTransformation:
    """The optimiser `options.name` of optax, with optax's defaults for all but learning rate, weight decay and the decay's mask."""
    make = getattr(optax, options.name, None) or getattr(optax.contrib, options.name, None)
    arguments = inspect.signature(make).parameters if inspect.isfunction(make) else {}
    if make is None or "learning_rate" not in arguments:
        close = did_you_mean(options.name, [*dir(optax), *dir(optax.contrib)])
        raise InputError(f"optimizer.name={options.name!r} is no optimiser of optax.{close}")
    # Each optimiser has one of two names for weight decay and for its mask, or none.
    values = {"weight_decay": options.weight_decay, "weight_decay_rate": options.weight_decay}
    values |= {"mask": mask, "weight_decay_mask": mask}
    return make(schedule, **{name: value for name, value in values.items() if name in arguments})


def make_average(options: Optimizer) -> Callable[[Any, dict[str, Params], Params], Params] | None:
    """A function that updates the average of the student's parameters, which is evaluated and exported in their place. Its arguments
    are the optimiser's state, the parameters, and the average before this step. None: no average is kept."""
    if options.name == SCHEDULE_FREE:
        return lambda state, params, _: optax.contrib.schedule_free_eval_params(state, params)["student"]
    if options.ema:  # (1 - ema) * parameters + ema * average
        return lambda _, params, average: optax.tree.update_moment(params["student"], average, options.ema, 1)
    return None


def is_decayed(params):
    """A mask of parameters: True for matrices and tables, False for biases, norms (as in BERT's and ConGen's code) and scalars."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.ndim > 0 and not path[-1].key.endswith(("/bias", "/scale")), params
    )


def transformers_adam(b1: float, b2: float, eps: float, *, bias_correction: bool) -> optax.GradientTransformation:
    """Adam as in transformers' `AdamW`: `m / (sqrt(v) + eps)`, times `sqrt(1 - b2^t) / (1 - b1^t)` if corrected. Without the
    correction it is the Adam of BERT and ConGen (`correct_bias=False`). With it, eps has more effect in the first steps than in
    PyTorch's AdamW, which adds it after correcting v: 32 times as much in step 1 for b2 = 0.999."""

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.int32(0), mu=zeros, nu=zeros)

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        count = state.count + 1
        correction = 1.0
        if bias_correction:
            t = count.astype(jnp.float32)
            correction = jnp.sqrt(1.0 - jnp.float32(b2) ** t) / (1.0 - jnp.float32(b1) ** t)
        scaled = jax.tree.map(lambda m, v: correction * (m / (jnp.sqrt(v) + eps)), mu, nu)
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)
