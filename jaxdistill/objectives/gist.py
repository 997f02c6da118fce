"""GIST: InfoNCE on pairs, without the negatives that a guide model finds as similar as the positive.

A batch has anchors a, positives p and, optionally, hard negatives n; s is the student's cosine of two texts, g the guide's.
Candidates of example i are these pairs, with j other than i:

    candidates=positives   (a_i, p_j), and (a_i, n_j) for all j
    candidates=symmetric   also (p_i, a_j)
    candidates=all         also (a_i, a_j) and (p_i, p_j), but not (p_i, a_j)

A candidate c is hidden if g(c) > g(a_i, p_i) - margin. With the candidates that remain,

    loss_i = -log(exp(s(a_i, p_i) / temperature) / (exp(s(a_i, p_i) / temperature) + sum over c of exp(s(c) / temperature)))

Paper: Solatorio, GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning, 2024 (arXiv
2402.16829), with a temperature of 0.01. Code consulted: sentence-transformers' `GISTEmbedLoss`, whose margin (`absolute`) the
paper lacks. The guide is the run's teacher, live or stored; its width may differ from the student's.

Deliberate differences: a text is never a candidate of itself; in the code the guide hides such candidates, unless it finds
anchor and positive equal. A candidate as similar as the positive (to 1e-5) is hidden; paper and code hide only more similar
ones, so that rounding decides when two rows of a batch share a positive.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, LossAux, NotNegative, Objective, Params, Positive, Range, alias
from jaxdistill.core.ops.similarity import HIDDEN, products, unit, without_diagonal

TIE = 1e-5
"""Two cosines that differ by no more than this are equal up to rounding."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GIST(Objective):
    """Options of GIST; the teacher is the guide."""

    temperature: Positive = 0.01
    """Divides the student's cosine similarities."""
    margin: NotNegative = 0.0
    """Also hides candidates that the guide scores at most this much below the positive."""
    candidates: Literal["all", "symmetric", "positives"] = "all"
    """Negatives besides hard ones: an anchor and another example's positive (`positives`); also a positive and another's anchor
    (`symmetric`), or instead of that also two anchors and two positives (`all`, the paper)."""
    views: Annotated[tuple[str, ...], Range(least=2)] = ("text", "positive")
    """Views of the anchor, the positive and any number of hard negatives, which guide and student read."""

    any_width = couples_examples = True
    student_views = teacher_views = alias("views")

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """InfoNCE of each anchor; the metric `hidden` is the share of candidates that the guide hides."""
        student_vectors = unit(student.sentences)
        guide_vectors = unit(jax.lax.stop_gradient(teacher.sentences))
        positive_cosines = jnp.sum(student_vectors[:, 0] * student_vectors[:, 1], axis=-1)
        guide_positive_cosines = jnp.sum(guide_vectors[:, 0] * guide_vectors[:, 1], axis=-1)
        cosines = self.candidate_cosines(student_vectors)
        threshold = (guide_positive_cosines - self.margin - TIE)[:, None]
        is_candidate = cosines != HIDDEN  # false for j = i
        is_hidden = is_candidate & (self.candidate_cosines(guide_vectors) > threshold)
        logits = jnp.where(is_candidate & ~is_hidden, cosines / self.temperature, HIDDEN)
        logits = jnp.concatenate([positive_cosines[:, None] / self.temperature, logits], axis=1)
        losses = jax.nn.logsumexp(logits, axis=1) - logits[:, 0]
        candidate_count = jnp.maximum(jnp.sum(is_candidate.astype(jnp.float32)), 1.0)
        hidden_share = jnp.sum(is_hidden.astype(jnp.float32)) / candidate_count
        return losses, state, {"cosine/positive": jnp.mean(positive_cosines), "hidden": hidden_share}

    def candidate_cosines(self, vectors: Float[Array, "b v e"]) -> Float[Array, "b k"]:
        """Cosines of each example's pairs, by the module's docstring; `HIDDEN` for j = i, except with hard negatives."""
        anchors, positives = vectors[:, 0], vectors[:, 1]
        blocks = [without_diagonal(products(anchors, positives))]
        if self.candidates == "all":
            blocks += [without_diagonal(products(anchors, anchors)), without_diagonal(products(positives, positives))]
        if self.candidates == "symmetric":
            blocks.append(without_diagonal(products(positives, anchors)))
        blocks += [products(anchors, vectors[:, view]) for view in range(2, vectors.shape[1])]
        return jnp.concatenate(blocks, axis=1)
