"""Trans-Encoder: a bi- or cross-encoder learns the scores y that other models gave to sentence pairs.

    bi      (cos(s(x1), s(x2)) - y)^2 (equation 3)
    cross   soft binary cross-entropy of sigmoid(s([x1, x2])) and y (equation 2)

Paper: Liu et al., Trans-Encoder, ICLR 2022, sections 2.2 to 2.4; code consulted: github.com/amzn/trans-encoder. A
cross-encoder learns a bi-encoder's cosine similarities, a bi-encoder a cross-encoder's sigmoids, averaged over several
labellers in mutual distillation. The paper's minus sign before equation 3 is a slip: the code minimises the squared error.

Differences: the code uses negative cosine similarities unchanged, which leaves the cross-entropy unbounded below
(`negatives=raw`); the default sets them to 0. Both orders of a pair are in the same batch, which then holds half as many
pairs; in the code they are anywhere in the epoch.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxdistill.core import LABELS, SECOND, Encoded, LossAux, Objective, Params
from jaxdistill.core.ops.similarity import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransEncoder(Objective):
    """Options of both directions of Trans-Encoder."""

    form: Literal["bi", "cross"] = "bi"
    """Kind of student: a `bi`-encoder, which predicts a cosine, or a `cross`-encoder, which predicts a logit."""
    loss: Literal["bce", "mse", "log_cosh"] = "mse"
    """Loss of prediction and label. Paper: `bce` for cross, `mse` for bi. By its table 8, `mse` for cross overfits the
    labels, and `bce` for bi does not converge; `log_cosh` for bi does not improve on `mse` (appendix)."""
    negatives: Literal["clip", "raw"] = "clip"
    """Sets negative labels to 0 (`clip`) or uses them unchanged (`raw`, the paper's code)."""
    both_orders: bool = False
    """Let a cross-encoder read each pair in both orders, as in the paper's code, except for QNLI."""

    teacher_views = (LABELS,)
    largest_label = 1.0

    @property
    def student_views(self) -> tuple[str, ...]:
        if self.form == "bi":
            return ("text", SECOND)
        return ("pair", "pair:reversed") if self.both_orders else ("pair",)

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """The loss of each pair's label and prediction, averaged over the orders in which it is read."""
        labels = jax.lax.stop_gradient(teacher.sentences[:, :, 0])
        metrics = {"label/negative": jnp.mean((labels < 0.0).astype(jnp.float32))}
        if self.negatives == "clip":
            labels = jnp.maximum(labels, 0.0)
        if self.form == "bi":
            vectors = unit(student.sentences)
            predictions = jnp.sum(vectors[:, :1] * vectors[:, 1:], axis=-1)
        else:
            predictions = student.sentences[:, :, 0]
        metrics |= {"prediction": jnp.mean(predictions), "label": jnp.mean(labels)}
        if self.loss == "bce":  # predictions are logits
            losses = jax.nn.softplus(predictions) - predictions * labels
        elif self.loss == "mse":
            losses = jnp.square(predictions - labels)
        else:  # log cosh, without overflow
            distance = jnp.abs(predictions - labels)
            losses = distance + jax.nn.softplus(-2.0 * distance) - jnp.log(jnp.float32(2.0))
        return jnp.mean(losses, axis=1), state, metrics
