"""Jasper, Stella and Luxical: the student's similarities inside a batch follow the teacher's.

With unit vectors s and t of n sentences, and their Gram matrices S = s s^T and T = t t^T:

    cosine    1 - s_i . t_i
    pair      mean square of S - T
    triplet   mean over all two pairs (i, j) and (k, l) of max(0, margin - (S_ij - S_kl)) if T_ij > T_kl, else 0
    kl        temperature^2 * KL(softmax_j(T_ij / temperature) || softmax_j(S_ij / temperature)), j other than i
    spread    a penalty on unrelated sentences that lie close together (`ops/similarity.py:spread_out`)

Papers: Zhang et al., Jasper and Stella: distillation of SOTA embedding models, 2024 (arXiv 2412.19048), for the first
three, with weights of 10, 200 and 20 and a margin of 0.015; Merrick et al., Luxical: High-Speed Lexical-Dense Text
Embeddings, 2025 (arXiv 2512.09015), for the fourth, with a temperature of 3. Code consulted: github.com/NLPJCL/RAG-Retrieval
(Jasper) and github.com/datologyai/luxical, the source of the divergence's direction, factor and missing diagonal.

Deliberate differences from the code:
  * Two pairs of equal similarity for the teacher add nothing to `triplet`; Jasper's code takes the second as preferred.
  * A Gram matrix covers the whole batch; in Jasper's code, one process's part of it.
  * Jasper's code compares each nested width's Gram matrix with the whole teacher's. Here `student.dims` cuts the
    teacher's vectors too, or maps the shorter ones to the teacher's width, as with any objective.
  * Luxical's code relies on its teacher's vectors having unit length; here they are normalised.
"""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec
from jaxtyping import Float

from jaxdistill.core import BATCH_AXES, Array, Encoded, LossAux, NotNegative, Objective, Params, Positive, Range, alias
from jaxdistill.core.cluster.mesh import batch_devices
from jaxdistill.core.ops.similarity import products, spread_out, unit, without_diagonal

BLOCK_PAIRS = 1024
"""Number of pairs that `order_loss` compares with all others at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gram(Objective):
    """Options of Jasper's, Stella's and Luxical's losses; a term of weight 0 is not computed."""

    cosine_weight: NotNegative = 10.0
    """Weight of 1 - cosine of each sentence's two vectors. 0: the vectors of student and teacher may differ in width."""
    pair_weight: NotNegative = 200.0
    """Weight of the mean squared difference of the two Gram matrices."""
    triplet_weight: NotNegative = 20.0
    """Weight of the order of similarities. It compares all pairs of the batch with each other: four times the work for
    1.4 times the batch. Use 0 for batches above 256."""
    triplet_margin: NotNegative = 0.015
    """Margin by which the student must prefer the pair that the teacher prefers."""
    kl_weight: NotNegative = 0.0
    """Weight of the divergence of each sentence's similarities to the others, as distributions (Luxical)."""
    kl_temperature: Positive = 3.0
    """Divides the similarities of both distributions."""
    spread_weight: NotNegative = 0.0
    """Weight of the spread-out regulariser, a penalty on unrelated sentences that lie close together."""
    views: Annotated[tuple[str, ...], Range(least=1)] = ("text",)
    """Views that teacher and student read; sentences of all views are in one Gram matrix."""

    couples_examples = True
    student_views = teacher_views = alias("views")

    @property
    def any_width(self) -> bool:
        return self.cosine_weight == 0

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """Weighted sum of the terms. `triplet` and `spread` are one number for the batch, repeated for every example."""
        student_vectors = unit(student.sentences)
        teacher_vectors = unit(jax.lax.stop_gradient(teacher.sentences))
        examples, views, _ = student_vectors.shape
        count = examples * views
        s = student_vectors.reshape(count, -1)
        t = teacher_vectors.reshape(count, -1)
        student_gram = products(s, s)
        teacher_gram = products(t, t)
        terms: dict[str, Float[Array, " bv"]] = {}
        if self.cosine_weight:
            terms["cosine"] = 1.0 - jnp.sum(s * t, axis=-1)
        if self.pair_weight:
            terms["pair"] = jnp.mean(jnp.square(student_gram - teacher_gram), axis=1)
        if self.triplet_weight:
            terms["triplet"] = jnp.full(count, order_loss(student_gram, teacher_gram, self.triplet_margin))
        if self.kl_weight:
            log_p = jax.nn.log_softmax(without_diagonal(teacher_gram / self.kl_temperature), axis=1)
            log_q = jax.nn.log_softmax(without_diagonal(student_gram / self.kl_temperature), axis=1)
            # The factor keeps gradients of the same size at any temperature.
            terms["kl"] = self.kl_temperature**2 * optax.losses.kl_divergence_with_log_targets(log_q, log_p)
        if self.spread_weight:
            terms["spread"] = jnp.full(count, spread_out(student_vectors))
        metrics = {f"loss/{name}": jnp.mean(term) for name, term in terms.items()}
        weighted = (getattr(self, f"{name}_weight") * term for name, term in terms.items())
        losses = sum(weighted, jnp.zeros(count, jnp.float32))
        if student_vectors.shape == teacher_vectors.shape:
            metrics["cosine/teacher"] = jnp.mean(jnp.sum(student_vectors * teacher_vectors, axis=-1))
        return jnp.mean(losses.reshape(examples, views), axis=1), state, metrics


def order_loss(student: Float[Array, "n n"], teacher: Float[Array, "n n"], margin: float) -> Float[Array, ""]:
    """The loss `triplet` (see the module's docstring) of two Gram matrices.

    One block of pairs at a time is compared with all pairs, also in the backward pass, so that memory does not grow with the
    square of the number of pairs.
    """
    upper_triangle = np.triu_indices(student.shape[0], 1)  # each pair of sentences once
    s = student[upper_triangle]
    t = teacher[upper_triangle]
    pairs = len(s)
    devices = batch_devices(jax.sharding.get_abstract_mesh())
    block_size = devices * max(min(BLOCK_PAIRS, pairs) // devices, 1)  # a multiple of `devices`, which split it
    padding = (0, -pairs % block_size)
    # The teacher prefers a pair of similarity minus infinity to no other, so padding adds nothing.
    padded = (jnp.pad(s, padding), jnp.pad(t, padding, constant_values=-jnp.inf))
    split = PartitionSpec(None, BATCH_AXES)
    blocks = tuple(jax.lax.with_sharding_constraint(x.reshape(-1, block_size), split) for x in padded)

    @jax.checkpoint
    def add_block(total, similarities):
        student_block, teacher_block = similarities  # [block_size]
        prefers = teacher_block[:, None] > t[None, :]  # [block_size, pairs]
        shortfall = jax.nn.relu(margin - (student_block[:, None] - s[None, :]))
        return total + jnp.sum(jnp.sum(jnp.where(prefers, shortfall, 0.0), axis=1)), None

    total, _ = jax.lax.scan(add_block, jnp.float32(0.0), blocks)
    return total / max(pairs * (pairs - 1) / 2, 1.0)
