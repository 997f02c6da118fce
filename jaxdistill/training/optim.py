"""Makes an optax transformation from the optimiser's options."""

import math

import jax
import jax.numpy as jnp
import optax

from jaxdistill.config.options import Optimizer


def make_schedule(options: Optimizer, steps: int) -> optax.Schedule:
    """Learning rate by update, counted from 0: a linear warm-up from 0, then the schedule's decay to 0 at `steps`.

    As with PyTorch's LambdaLR, the first update of a warm-up has the rate 0.
    """
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
    """AdamW: gradient clipping, one of Adam's variants, decoupled weight decay, learning rate."""
    clip = [optax.clip_by_global_norm(options.clip_norm)] if options.clip_norm > 0 else []
    adam = optax.scale_by_adam(b1=options.b1, b2=options.b2, eps=options.eps)
    if options.eps_before_correction or not options.bias_correction:
        adam = scale_by_transformers_adam(options.b1, options.b2, options.eps, bias_correction=options.bias_correction)
    return optax.chain(
        *clip,
        adam,
        optax.add_decayed_weights(options.weight_decay, mask=is_decayed if options.decay == "matrices" else None),
        optax.scale_by_learning_rate(make_schedule(options, steps)),
    )


def is_decayed(params):
    """True for matrices and tables; False for biases, norms (as in BERT's and ConGen's code) and scalars."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf.ndim > 0 and not path[-1].key.endswith(("/bias", "/scale")), params
    )


def scale_by_transformers_adam(
    b1: float, b2: float, eps: float, *, bias_correction: bool
) -> optax.GradientTransformation:
    """Adam as in transformers' `AdamW`: `m / (sqrt(v) + eps)`, times `sqrt(1 - b2^t) / (1 - b1^t)` if corrected.

    Without the correction it is the Adam of BERT and ConGen (`correct_bias=False`). With it, eps has more effect in the
    first steps than in PyTorch's AdamW, which adds it after correcting v: 32 times as much in step 1 for b2 = 0.999.
    """

    def init(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.int32(0), mu=zeros, nu=zeros)

    def update(updates, state, params=None):
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment(updates, state.nu, b2, 2)
        count, correction = state.count + 1, 1.0
        if bias_correction:
            t = count.astype(jnp.float32)
            correction = jnp.sqrt(1.0 - jnp.float32(b2) ** t) / (1.0 - jnp.float32(b1) ** t)
        scaled = jax.tree.map(lambda m, v: correction * (m / (jnp.sqrt(v) + eps)), mu, nu)
        return scaled, optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)
