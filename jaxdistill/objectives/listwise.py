"""Margin and listwise distillation: the student scores a query's candidates as a teacher did.

With the student's scores s and the teacher's t for a query's k candidates, the positive first:

    margin  mean over j > 1 of ((s_1 - s_j) - (t_1 - t_j))^2
    kl      student_temperature^2 * KL(softmax(t / teacher_temperature) || softmax(s / student_temperature))

Papers: Hofstätter et al., Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation, 2020
(arXiv 2010.02666), section 3.1, for `margin`; Lin et al., Distilling Dense Representations for Ranking using
Tightly-Coupled Teachers, 2020 (arXiv 2010.11386), Ren et al., RocketQAv2, EMNLP 2021, and Santhanam et al., ColBERTv2, NAACL
2022, for `kl`. Code consulted: sentence-transformers' `MarginMSELoss` and `DistillKLDivLoss` (the factor temperature^2).

Only differences of scores count: adding a constant to them changes nothing. The labels of a cross-encoder are its logits with
`loss=margin` and `similarity=dot`, as in the paper. Otherwise they are the logits' sigmoids: cosines cannot follow logits, which
differ by more than 2, and `kl`'s temperatures suit scores in [0, 1].

Deliberate differences: a query is compared only with its own row's candidates; RocketQAv2 and ColBERTv2 add losses over
the batch, for which see GIST and SimCSE. The papers on `kl` use a cross-encoder's logits, which `mine --logits` writes.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax

from jaxdistill.core import LABELS, Encoded, LossAux, Objective, Params, Positive, Range, alias
from jaxdistill.core.ops.similarity import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listwise(Objective):
    """Options of MarginMSE and of listwise distillation."""

    loss: Literal["margin", "kl"] = "kl"
    """What is compared with the teacher: differences between the positive's score and each other one (`margin`), or the
    distributions over all candidates (`kl`)."""
    similarity: Literal["dot", "cosine"] = "cosine"
    """The student's score of query and candidate. `dot`, which the paper on `margin` uses, can follow scores of any size,
    such as a cross-encoder's logits."""
    student_temperature: Positive = 0.05
    """Divides the student's scores in `kl`; 1 is usual for dot products."""
    teacher_temperature: Positive = 0.05
    """Divides the teacher's scores in `kl`; 1 is usual for logits."""
    views: Annotated[tuple[str, ...], Range(least=3)] = ("text", "positive", "negative")
    """Columns of the query, the positive and one or more other candidates."""

    teacher_views = (LABELS,)
    student_views = scored = alias("views")

    @property
    def logits(self) -> bool:
        return self.loss == "margin" and self.similarity == "dot"

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """The loss of each query. `order` is the share of candidates whose margins have the same sign for both models."""
        teacher_scores = jax.lax.stop_gradient(teacher.sentences[:, 0, : len(self.views) - 1])  # [b k], of candidates
        vectors = unit(student.sentences) if self.similarity == "cosine" else student.sentences
        # HIGHEST: TPUs and GPUs would round the operands, by more than close candidates differ.
        scores = jnp.einsum("be,bke->bk", vectors[:, 0], vectors[:, 1:], precision=jax.lax.Precision.HIGHEST)
        student_margins = scores[:, :1] - scores[:, 1:]
        teacher_margins = teacher_scores[:, :1] - teacher_scores[:, 1:]
        if self.loss == "margin":
            losses = jnp.mean(jnp.square(student_margins - teacher_margins), axis=1)
        else:
            log_p = jax.nn.log_softmax(teacher_scores / self.teacher_temperature, axis=1)
            log_q = jax.nn.log_softmax(scores / self.student_temperature, axis=1)
            losses = self.student_temperature**2 * optax.losses.kl_divergence_with_log_targets(log_q, log_p)
        metrics = {"margin/student": jnp.mean(student_margins), "margin/teacher": jnp.mean(teacher_margins)}
        order = jnp.mean((jnp.sign(student_margins) == jnp.sign(teacher_margins)).astype(jnp.float32))
        return losses, state, metrics | {"order": order}
