"""CoSENT: the student's cosines of sentence pairs have the same order as the pairs' labels.

    log(1 + sum exp((cos_i - cos_j) / temperature)), over all pairs i, j of the batch with label_i < label_j

Paper: Huang et al., CoSENT: Consistent Sentence Embedding via Similarity Ranking, IEEE/ACM TASLP 2024. Only the order of
labels counts: a teacher whose cosines lie between 0.7 and 1 teaches as well as one that uses the whole range.

The loss is one number for the batch, repeated for every example. It grows with the logarithm of the number of ordered
pairs, so losses of different batch sizes are not comparable.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxdistill.core import LABELS, SECOND, Encoded, LossAux, Objective, Params, Positive
from jaxdistill.core.ops.similarity import HIDDEN, unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoSENT(Objective):
    """Options of CoSENT."""

    temperature: Positive = 0.05
    """Divides the differences of cosines; the paper's scale of 20 is 0.05."""

    couples_examples = True
    student_views = ("text", SECOND)
    teacher_views = (LABELS,)

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """The loss of the batch. The metric `order` is the share of i, j with label_i < label_j that have cos_i < cos_j."""
        labels = jax.lax.stop_gradient(teacher.sentences[:, 0, 0])
        vectors = unit(student.sentences)
        cosines = jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        is_ordered = labels[:, None] < labels[None, :]
        differences = cosines[:, None] - cosines[None, :]
        # softplus(x) = log(1 + exp(x))
        loss = jax.nn.softplus(jax.nn.logsumexp(jnp.where(is_ordered, differences / self.temperature, HIDDEN)))
        agreeing_count = jnp.sum((is_ordered & (differences < 0.0)).astype(jnp.float32))
        ordered_count = jnp.maximum(jnp.sum(is_ordered.astype(jnp.float32)), 1.0)
        metrics = {"prediction": jnp.mean(cosines), "label": jnp.mean(labels), "order": agreeing_count / ordered_count}
        return jnp.full(labels.shape, loss), state, metrics
