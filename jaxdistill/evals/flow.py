"""Fits a normalizing flow, an invertible map that makes sentence vectors normally distributed (BERT-flow).

Li et al., On the Sentence Embeddings from Pre-trained Language Models, EMNLP 2020. Architecture and settings
follow its released code (bohanli/BERT-flow, `config_l3_d3_w32`): a Glow of three levels with three steps each. A step
scales and shifts every number, reverses their order, and adds to the second half the output of a network of width 32 on the
first half. After each of the first two levels, half of the numbers are split off, standardised by a linear map of the rest.
The encoder is not trained; the loss is the negative log-likelihood per number.

Differences from the code: Adam's bias is corrected; scales are not multiplied by 3, and the network has no scale; the first
step's scale and shift standardise the whole text, while the code standardises one batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from jaxdistill.core import Array

LEVELS, STEPS, HIDDEN = 3, 3, 32
DEVIATION = 0.05
"""Standard deviation of the networks' initial weights."""
LEARNING_RATE, WEIGHT_DECAY, EPSILON, CLIP_NORM = 1e-3, 0.01, 1e-6, 1.0
BATCH_SIZE = 64
"""The code's batches of 32 pairs."""
ROWS_AT_A_TIME = 8192


class Step(NamedTuple):
    """Scale and shift of every number, and the coupling network, whose last layer is initialised to zero."""

    log_scale: Float[Array, " e"]
    shift: Float[Array, " e"]
    kernels: tuple[Float[Array, "_ _"], ...]
    biases: tuple[Float[Array, "_"], ...]


class Level(NamedTuple):
    """Steps, and the linear map that predicts mean and log deviation of the split-off numbers; None in the last level."""

    steps: tuple[Step, ...]
    leaving: Float[Array, "stays leaving"] | None


Flow = tuple[Level, ...]


def fitted_flow(vectors: Float[np.ndarray, "n e"], *, seed: int = 0) -> Callable[[np.ndarray], np.ndarray]:
    """Trains a flow for one epoch on these vectors; returns it as a function of vectors."""
    random = np.random.default_rng(seed)
    flow = standardising(random, vectors.astype(np.float32))
    order = random.permutation(len(vectors))[: len(vectors) // BATCH_SIZE * BATCH_SIZE]
    flow = fitted(flow, jnp.asarray(vectors[order], jnp.float32).reshape(-1, BATCH_SIZE, vectors.shape[1]))
    transform = jax.jit(lambda rows: through(flow, rows)[0])

    def transformed(vectors: np.ndarray) -> np.ndarray:
        starts = range(0, max(len(vectors), 1), ROWS_AT_A_TIME)
        return np.concatenate([np.asarray(transform(vectors[start : start + ROWS_AT_A_TIME])) for start in starts])

    return transformed


def standardising(random: np.random.Generator, vectors: Float[np.ndarray, "n e"]) -> Flow:
    """The initial flow: it maps every number of these vectors to mean 0 and deviation 1, and does nothing else."""
    width, levels = vectors.shape[1], []
    for level in range(LEVELS):
        steps = tuple(_new_step(random, width) for _ in range(STEPS))
        stays = width if level == LEVELS - 1 else width - width // 2
        leaving = None if stays == width else jnp.zeros((stays, 2 * (width - stays)), jnp.float32)
        levels.append(Level(steps, leaving))
        width = stays
    deviation = vectors.std(axis=0) + EPSILON
    standard = (
        levels[0]
        .steps[0]
        ._replace(log_scale=jnp.asarray(-np.log(deviation)), shift=jnp.asarray(-vectors.mean(axis=0) / deviation))
    )
    return (levels[0]._replace(steps=(standard, *levels[0].steps[1:])), *levels[1:])


def _new_step(random: np.random.Generator, width: int) -> Step:
    first = width - width // 2
    shapes = ((first, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, width - first))
    kernels = [DEVIATION * random.standard_normal(shape).astype(np.float32) for shape in shapes[:2]]
    return Step(
        log_scale=jnp.zeros(width, jnp.float32),
        shift=jnp.zeros(width, jnp.float32),
        kernels=(*map(jnp.asarray, kernels), jnp.zeros(shapes[2], jnp.float32)),
        biases=tuple(jnp.zeros(shape[1], jnp.float32) for shape in shapes),
    )


def through(flow: Flow, x: Float[Array, "n e"]) -> tuple[Float[Array, "n e"], Float[Array, " n"]]:
    """The transformed vectors, and the log-determinant of the flow's Jacobian at each."""
    left, log_determinant = [], jnp.zeros(len(x), jnp.float32)
    for level in flow:
        for step in level.steps:
            x = _stepped(step, x)
            log_determinant = log_determinant + jnp.sum(step.log_scale)
        if level.leaving is None:
            continue
        stays = level.leaving.shape[0]
        mean, log_deviation = jnp.split(_product(x[:, :stays], level.leaving), 2, axis=1)
        left.append((x[:, stays:] - mean) * jnp.exp(-log_deviation))
        log_determinant = log_determinant - jnp.sum(log_deviation, axis=1)
        x = x[:, :stays]
    return jnp.concatenate([*left, x], axis=1), log_determinant


def _stepped(step: Step, x: Float[Array, "n e"]) -> Float[Array, "n e"]:
    x = (x * jnp.exp(step.log_scale)[None] + step.shift[None])[:, ::-1]
    first = step.kernels[0].shape[0]
    hidden = x[:, :first]
    for kernel, bias in zip(step.kernels[:-1], step.biases[:-1], strict=True):
        hidden = jax.nn.relu(_product(hidden, kernel) + bias[None])
    added = _product(hidden, step.kernels[-1]) + step.biases[-1][None]
    return jnp.concatenate([x[:, :first], x[:, first:] + added], axis=1)


def negative_log_likelihood(flow: Flow, x: Float[Array, "n e"]) -> Float[Array, ""]:
    """Mean over vectors and their numbers, in nats."""
    z, log_determinant = through(flow, x)
    of_normal = jnp.mean(jnp.square(z)) / 2 + np.log(2 * np.pi) / 2
    return of_normal - jnp.mean(log_determinant) / x.shape[1]


@partial(jax.jit, donate_argnums=0)
def fitted(flow: Flow, batches: Float[Array, "batches n e"]) -> Flow:
    """Trains the flow by one step of Adam on each batch."""
    kernels = jax.tree.map(lambda array: array.ndim == 2, flow)
    optimizer = optax.chain(
        optax.clip_by_global_norm(CLIP_NORM),
        optax.adamw(LEARNING_RATE, eps=EPSILON, weight_decay=WEIGHT_DECAY, mask=kernels),
    )

    def update(state: tuple[Any, Any], batch: Array):
        flow, moments = state
        gradient = jax.grad(negative_log_likelihood)(flow, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, moments = optimizer.update(gradient, moments, flow)
        return (cast(Any, optax.apply_updates(flow, updates)), moments), None

    start: Any = (flow, optimizer.init(cast(Any, flow)))
    return jax.lax.scan(update, start, batches)[0][0]


def _product(x: Float[Array, "n i"], kernel: Float[Array, "i o"]) -> Float[Array, "n o"]:
    return jnp.matmul(x, kernel, precision=jax.lax.Precision.HIGHEST)
