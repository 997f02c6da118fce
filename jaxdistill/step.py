"""What is jitted: one training step, and the embedding of sentences.

The step is pure: state, frozen teacher and batch in, next state and metrics out. Every array that it needs from another
device is the compiler's business; the code says only how its arguments lie on the mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxdistill.core import Batch, Objective, Params, Tokens, TrainState
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.sentence import embed
from jaxdistill.mesh import batch_sharding, replicated

TrainStep = Callable[[TrainState, Params, Batch], tuple[TrainState, dict[str, Array]]]


def make_train_step(
    *,
    student: EncoderDefinition,
    teacher: EncoderDefinition | None,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    teacher_shardings: Any,
    compute_dtype: DTypeLike,
    remat: bool,
) -> TrainStep:
    """The jitted step `(state, teacher_params, batch) -> (state, metrics)`; the state is donated.

    Args:
      student: its dropout rates are those of training.
      teacher: None when targets come from a store.
      shardings: how the state lies on the mesh, before and after.
    """
    views = len(objective.student_views)

    def targets_of(teacher_params: Params, batch: Batch) -> Float[Array, "b w e"]:
        if batch.targets is not None:
            return batch.targets
        vectors = embed(teacher, teacher_params, batch.teacher, compute_dtype=compute_dtype)
        return jax.lax.stop_gradient(by_example(vectors, len(objective.teacher_views)))

    def loss_of(params, objective_state, targets, batch: Batch, key: Array):
        vectors = embed(
            student,
            params["student"],
            batch.student,
            key=key,
            compute_dtype=compute_dtype,
            remat=remat,
            normalize=False,
        )
        losses, objective_state, metrics = objective(
            params["objective"], objective_state, by_example(vectors, views), targets, mesh=mesh
        )
        return jnp.mean(losses), (objective_state, metrics)

    def train_step(state: TrainState, teacher_params: Params, batch: Batch):
        key = jax.random.fold_in(state.key, state.step)
        targets = targets_of(teacher_params, batch)
        gradient = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (objective_state, metrics)), gradients = gradient(state.params, state.objective, targets, batch, key)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradients), **metrics}
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, optimizer_state, objective_state, state.key), metrics

    return jax.jit(
        train_step,
        in_shardings=(shardings, teacher_shardings, batch_sharding(mesh)),
        out_shardings=(shardings, replicated(mesh)),
        donate_argnums=0,
    )


def by_example(vectors: Float[Array, "g n e"], views: int) -> Float[Array, "b v e"]:
    """Group-major sentence vectors as examples and their views; example-major, so that a sharded batch stays in place."""
    groups, sentences, width = vectors.shape
    return vectors.reshape(groups * sentences // views, views, width)


def make_state(
    student: Params,
    seeds: Float[Array, "k e"] | None,
    key: Array,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    width: int,
) -> TrainState:
    """The state before step 1; run it under `jax.jit` so that the optimiser's state lies as the parameters do."""
    objective_params, objective_state = objective.init(
        jax.random.fold_in(key, 0x0B7EC71), batch_size=batch_size, width=width, seeds=seeds
    )
    params = {"student": student, "objective": objective_params}
    return TrainState(jnp.int32(0), params, optimizer.init(params), objective_state, key)


def make_embed(
    definition: EncoderDefinition, mesh: Mesh, compute_dtype: DTypeLike
) -> Callable[[Params, Tokens], Array]:
    """The jitted function `(params, tokens) -> [g, n, e]`, without dropout.

    Groups are split over the mesh; every process gets all vectors.
    """

    def embed_batch(params: Params, tokens: Tokens) -> Array:
        return embed(definition, params, tokens, compute_dtype=compute_dtype)

    return jax.jit(embed_batch, in_shardings=(None, batch_sharding(mesh)), out_shardings=replicated(mesh))
