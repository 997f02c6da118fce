"""From the optimiser's options to an optax transformation."""

import math

import jax
import optax
from jaxtyping import Array

from jaxdistill.config import Optimizer
from jaxdistill.core import InputError

SCHEDULES = ("linear", "cosine", "constant")
DECAYS = ("matrices", "all")


def make_schedule(options: Optimizer, steps: int) -> optax.Schedule:
    """Learning rate of each update, counted from 0: a linear warm-up from 0, then the schedule's way to 0 at `steps`.

    As with PyTorch's LambdaLR, the first update of a warm-up has the rate 0.
    """
    if options.schedule not in SCHEDULES:
        raise InputError(f"optimizer.schedule={options.schedule!r} is unknown; allowed: {', '.join(SCHEDULES)}.")
    warmup = options.warmup_steps or math.ceil(round(options.warmup_fraction * steps, 6))
    rest = max(steps - warmup, 1)
    after = {
        "linear": optax.linear_schedule(options.learning_rate, 0.0, rest),
        "cosine": optax.cosine_decay_schedule(options.learning_rate, rest),
        "constant": optax.constant_schedule(options.learning_rate),
    }[options.schedule]
    if warmup == 0:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, options.learning_rate, warmup), after], [warmup])


def make_optimizer(options: Optimizer, steps: int) -> optax.GradientTransformation:
    """AdamW: clip, Adam with or without bias correction, decoupled weight decay, minus the learning rate."""
    if options.decay not in DECAYS:
        raise InputError(f"optimizer.decay={options.decay!r} is unknown; allowed: {', '.join(DECAYS)}.")
    adam = optax.scale_by_adam if options.bias_correction else scale_by_adam_without_correction
    clip = [optax.clip_by_global_norm(options.clip_norm)] if options.clip_norm > 0 else []
    return optax.chain(
        *clip,
        adam(b1=options.b1, b2=options.b2, eps=options.eps),
        optax.add_decayed_weights(options.weight_decay, mask=is_decayed if options.decay == "matrices" else None),
        optax.scale_by_learning_rate(make_schedule(options, steps)),
    )


def is_decayed(params):
    """True for matrices and tables; False for biases and norms, as BERT's and ConGen's code has it."""
    return jax.tree_util.tree_map_with_path(lambda path, _: not path[-1].key.endswith(("/bias", "/scale")), params)


def scale_by_adam_without_correction(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam whose averages are not corrected for their start at 0: `m / (sqrt(v) + eps)` (transformers' AdamW with
    `correct_bias=False`, which BERT and ConGen train with)."""

    def init(params):
        zeros = jax.tree.map(jax.numpy.zeros_like, params)
        return optax.ScaleByAdamState(count=jax.numpy.int32(0), mu=zeros, nu=zeros)

    def update(gradients, state, params=None):
        del params
        mu = optax.tree.update_moment(gradients, state.mu, b1, 1)
        nu = optax.tree.update_moment(gradients, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: _adam(m, v, eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def _adam(m: Array, v: Array, eps: float) -> Array:
    return m / (jax.numpy.sqrt(v) + eps)
