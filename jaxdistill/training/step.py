"""The jitted training step: state, frozen teacher and batch in, next state and metrics out. The compiler moves arrays between devices;
the code only states how the arguments are sharded over the mesh."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import Array, Batch, Encoded, InputError, Objective, Params, Sizes, Tokens, TrainState
from jaxdistill.core.cluster.mesh import batch_sharding, replicated, unsharded
from jaxdistill.encoders.architecture import EncoderDefinition
from jaxdistill.encoders.sentence import vectors_and_states, word_embeddings

OBJECTIVE_KEY = 0x0B7EC71
"""Folded into the run's key, in place of a step, for the objective's first parameters."""

TrainStep = Callable[[TrainState, Params, Batch], tuple[TrainState, dict[str, Array]]]


def make_train_step(
    forward: "Forward",
    *,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    shardings: TrainState,
    accumulate: int = 1,
    average: Callable[[Any, dict[str, Params], Params], Params] | None = None,
) -> TrainStep:
    """The jitted step `(state, teacher_params, batch) -> (state, metrics)`; the state is donated.

    Args:
      shardings: shardings of the state, before and after the step.
      accumulate: number of parts of the batch that are computed one after the other; divides the groups of each device. If the
        loss couples examples, each part is computed twice, see `cached`.
      average: updates the average of the student's parameters, see `optim.make_average`; None: the state keeps none.
    """
    compute = gradients
    if accumulate > 1:
        compute = partial(cached if forward.objective.couples_examples else accumulated, parts=accumulate)

    def train_step(state: TrainState, teacher_params: Params, batch: Batch):
        key = jax.random.fold_in(state.key, state.step)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            (loss, (objective_state, metrics)), gradient = compute(forward, state, teacher_params, batch, key)
        # optax raises floats to integer powers
        with jax.named_scope("optimizer"), jax.numpy_dtype_promotion("standard"):
            updates, optimizer_state = optimizer.update(gradient, state.optimizer, state.params)
            params: Any = optax.apply_updates(state.params, updates)
            averaged = average(optimizer_state, params, state.evaluated_params) if average else None
        metrics = {"loss": loss, "gradient_norm": optax.tree.norm(gradient), **metrics}
        return TrainState(state.step + 1, params, optimizer_state, objective_state, state.key, averaged), metrics

    in_shardings = shardings, forward.teacher_shardings, batch_sharding(mesh)
    out_shardings = shardings, replicated(mesh)
    return jax.jit(train_step, in_shardings=in_shardings, out_shardings=out_shardings, donate_argnums=0)


class Forward(NamedTuple):
    """The forward passes of student and teacher, and the objective that compares them: all that is static in the loss."""

    student: EncoderDefinition
    """With its dropout rates for training."""
    teacher: EncoderDefinition | None
    """A live teacher; None without one. It reads its own tokens, or if the objective `reads` single tokens, the student's."""
    objective: Objective
    student_shardings: Mapping[str, NamedSharding]
    teacher_shardings: Mapping[str, NamedSharding]
    compute_dtype: DTypeLike
    remat: bool = False
    teacher_dropout: bool = False
    """Whether the teacher's dropout stays on, as in DistilCSE's code."""

    @jax.named_scope("teacher")
    def targets(self, teacher_params: Params, batch: Batch, key: jax.Array) -> Encoded | None:
        """The teacher's outputs for a batch: stored vectors, or those of its frozen encoder; None without a teacher."""
        if batch.targets is not None:
            return Encoded(batch.targets)
        if self.teacher is None:
            return None
        tokens = batch.student if self.objective.reads else batch.teacher
        assert tokens is not None  # a live teacher has them
        dropout_key = jax.random.fold_in(key, 1) if self.teacher_dropout else None
        views = self.objective.teacher_views
        shardings = self.teacher_shardings
        outputs = self.encoded(self.teacher, teacher_params, tokens, shardings, views, dropout_key, remat=False)
        return jax.lax.stop_gradient(outputs)

    @jax.named_scope("student")
    def vectors(self, params: Params, batch: Batch, key: jax.Array) -> Encoded:
        """The student's outputs for a batch."""
        views = self.objective.student_views
        return self.encoded(self.student, params, batch.student, self.student_shardings, views, key, remat=self.remat)

    def encoded(
        self,
        definition: EncoderDefinition,
        params: Params,
        tokens: Tokens,
        shardings: Mapping[str, NamedSharding],
        views: Sequence[str],
        key: jax.Array | None,
        *,
        remat: bool,
    ) -> Encoded:
        """An encoder's outputs for the objective: sentence vectors, and the further outputs that the objective `reads`. `key` draws
        dropout; None: no dropout."""
        dtype, reads = self.compute_dtype, self.objective.reads
        # Collects weights that are split over devices: all but stacked layers here, and these in the loop over layers.
        gather = partial(unsharded, shardings=shardings, dtype=dtype)
        params = gather(params)
        vectors, states = vectors_and_states(
            definition, params, tokens, key=key, compute_dtype=dtype, remat=remat, gather=gather
        )
        groups, sentences, width = vectors.shape
        return Encoded(
            # [groups, examples of a group * views, width] -> [examples, views, width], which moves nothing between devices
            sentences=vectors.reshape(groups * sentences // len(views), len(views), width),
            owner=tokens.owner if reads else None,
            embeddings=states[0] if "embeddings" in reads else None,
            hidden=jnp.stack(states[1:]) if "hidden" in reads else None,
            vocabulary=word_embeddings(definition, params, dtype) if "vocabulary" in reads else None,
        )

    @jax.named_scope("objective")
    def compared(self, params: Params, objective_state, vectors: Encoded, targets: Encoded | None, batch: Batch):
        """(mean loss, (the objective's next state, metrics)) of a batch, from the outputs of student and teacher."""
        vectors = vectors._replace(keys=batch.keys, active=batch.active)
        losses, objective_state, metrics = self.objective(params, objective_state, vectors, targets)
        count = len(vectors.sentences)
        if jnp.shape(losses) != (count,):  # their mean would have another scale, or be that of other examples
            found = f"{type(self.objective).__name__} returns losses of shape {jnp.shape(losses)} for {count} examples"
            raise InputError(f"{found}; it must return one loss per example.")
        return jnp.mean(losses), (objective_state, metrics)


def gradients(forward: Forward, state: TrainState, teacher_params: Params, batch: Batch, key: jax.Array):
    """((loss, (the objective's next state, metrics)), gradient) of a batch or part of one."""
    targets = forward.targets(teacher_params, batch, key)

    def loss(params):
        vectors = forward.vectors(params["student"], batch, key)
        return forward.compared(params["objective"], state.objective, vectors, targets, batch)

    return jax.value_and_grad(loss, has_aux=True)(state.params)


def accumulated(forward: Forward, state: TrainState, teacher_params: Params, batch: Batch, key: jax.Array, parts: int):
    """Computes `gradients` as the mean over parts of the batch. Raises `InputError` if the objective has a state, because each part
    would advance it from the same start."""
    if jax.tree.leaves(state.objective):
        raise InputError(
            f"run.accumulate={parts} does not go with an objective that keeps a state and has couples_examples=False; "
            "set couples_examples=True, or --config.run.accumulate=1."
        )
    split = keyed_parts(batch, key, parts)

    def means_of_part(keyed_part):
        part_key, part = keyed_part
        (loss, (_, metrics)), gradient = gradients(forward, state, teacher_params, part, part_key)
        return loss, metrics, gradient

    def add(total, keyed_part):
        means = means_of_part(keyed_part)
        return jax.tree.map(lambda summed, mean: summed + mean / parts, total, means), None

    # The sums start from zeros of the right shapes, so that one compiled body serves every part.
    shapes = jax.eval_shape(means_of_part, jax.tree.map(lambda x: x[0], split))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    (loss, metrics, gradient), _ = jax.lax.scan(add, zeros, split)
    return (loss, (state.objective, metrics)), gradient


def cached(forward: Forward, state: TrainState, teacher_params: Params, batch: Batch, key: jax.Array, parts: int):
    """Computes `gradients` of a loss over the whole batch, with the activations of only one part in memory at a time.
    Source: Gao et al. (gradient cache), Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, arXiv 2101.06983."""
    split = keyed_parts(batch, key, parts)

    # A first pass, without gradients: the outputs of all parts, on a leading axis.
    def encode_part(_, keyed_part):
        part_key, part = keyed_part
        student = forward.vectors(state.params["student"], part, part_key)
        return None, (student, forward.targets(teacher_params, part, part_key))

    _, (student, teacher) = jax.lax.scan(encode_part, None, split)

    # The loss of the whole batch, and its gradients with respect to the student's outputs and the objective's parameters.
    def loss(student: Encoded, params: Params):
        join = partial(join_groups, groups=batch.student.ids.shape[0])
        student, targets = jax.tree.map(join, (student, teacher))
        return forward.compared(params, state.objective, student, targets, batch)

    value_and_grad = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    value, (cotangents, objective_gradient) = value_and_grad(student, state.params["objective"])

    # A second pass: each part's outputs again, with the same dropout masks, to propagate their gradients to the parameters.
    def add_gradient(total, part_and_cotangent):
        (part_key, part), cotangent = part_and_cotangent
        _, pull_back = jax.vjp(lambda params: forward.vectors(params, part, part_key), state.params["student"])
        return jax.tree.map(jnp.add, total, pull_back(cotangent)[0]), None

    zeros = jax.tree.map(jnp.zeros_like, state.params["student"])
    student_gradient, _ = jax.lax.scan(add_gradient, zeros, (split, cotangents))
    return value, {"student": student_gradient, "objective": objective_gradient}


def keyed_parts(batch: Batch, key: jax.Array, count: int) -> tuple[jax.Array, Batch]:
    """Splits a batch into `count` batches of whole groups, each with a random key; keys and parts are on a new leading axis. Part i has
    every `count`-th group from the i-th on, so each device has groups in every part, and none moves."""
    groups = batch.student.ids.shape[0]

    def split(x: Array) -> Array:
        size = x.shape[0] // groups  # 1 in arrays of tokens `[g, ...]`, a group's examples in arrays `[b, ...]`
        by_group = x.reshape(groups // count, count, size, *x.shape[1:])
        by_part = by_group.swapaxes(0, 1)  # [count, groups of a part, size, ...]
        return by_part.reshape(count, groups // count * size, *x.shape[1:])

    keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count, dtype=jnp.int32))
    return keys, jax.tree.map(split, batch)


def join_groups(x: Float[Array, "part n *rest"], groups: int) -> Float[Array, "b *rest"]:
    """Undoes the split of `keyed_parts` for outputs of its parts, `n` examples each; the whole batch has `groups` groups."""
    count, examples = x.shape[:2]
    by_part = x.reshape(count, groups // count, count * examples // groups, *x.shape[2:])
    by_group = by_part.swapaxes(0, 1)  # [groups of a part, count, examples of a group, ...]
    return by_group.reshape(-1, *x.shape[2:])


def make_state(
    student: Params,
    seeds: Float[Array, "k e"] | None,
    key: jax.Array,
    *,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    sizes: Sizes,
    averages: bool = False,
) -> TrainState:
    """The state before step 1, from the `student`'s parameters and the `seeds` (the teacher's vectors that fill a queue, if there is
    one). Call it under `jax.jit`, so that the optimiser's state is sharded like the parameters."""
    objective_params, objective_state = objective.init(jax.random.fold_in(key, OBJECTIVE_KEY), sizes, seeds)
    params = {"student": student, "objective": objective_params}
    # A copy: jit would return the parameters' own buffers, and a step donates both.
    average = jax.tree.map(jnp.array, student) if averages else None
    return TrainState(jnp.int32(0), params, optimizer.init(params), objective_state, key, average)
