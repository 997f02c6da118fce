"""GIST: InfoNCE on pairs, without the negatives that a guide model finds as similar as the positive.

With the guide's cosine g and the student's s, anchors a, positives p and optional hard negatives n of a batch, a candidate
c of example i is hidden if its g reaches g(a_i, p_i) - margin:

    loss_i = log(exp(s(a_i, p_i) / temperature) + sum over all c not hidden of exp(s / temperature)) - s(a_i, p_i) / temperature

Candidates are the other positives and the hard negatives, compared with the anchor. `candidates=symmetric` adds the other
anchors, compared with the positive. `candidates=all` adds the other anchors, compared with the anchor, and the other positives,
compared with the example's own positive.

Paper: Solatorio, GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning, 2024 (arXiv
2402.16829), with a temperature of 0.01. Code consulted: sentence-transformers' `GISTEmbedLoss`, whose margin (`absolute`) the
paper lacks. The guide is the run's teacher, live or stored; its width may differ from the student's.

Deliberate differences: an anchor or positive is never a candidate of its own. In the code the guide hides them, unless it
finds anchor and positive equal. A candidate as similar as the positive (to 1e-5) is hidden. Paper and code hide only more
similar ones, so rounding decides when two rows of a batch share a positive.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, NotNegative, Objective, Params, Positive, Range, alias
from jaxdistill.core.ops.similarity import HIDDEN, products, unit, without_own

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
    """Negatives besides hard ones: the other `positives` for each anchor; also the other anchors for each positive (`symmetric`);
    or also the other anchors, and the other positives for each positive (`all`, the paper)."""
    views: Annotated[tuple[str, ...], Range(least=2)] = ("text", "positive")
    """Views of the anchor, the positive and any number of hard negatives, which guide and student read."""

    any_width = True
    couples_examples = True

    student_views = teacher_views = alias("views")

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """InfoNCE of each anchor; `hidden` is the share of candidates that the guide hides."""
        student_vectors, guide_vectors = unit(student.sentences), unit(jax.lax.stop_gradient(teacher.sentences))
        positive, limit = (
            jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1) for vectors in (student_vectors, guide_vectors)
        )
        candidates, guide_candidates = self.similarities(student_vectors), self.similarities(guide_vectors)
        is_own = candidates <= HIDDEN  # `similarities` writes HIDDEN where a sentence meets itself
        hides = ~is_own & (guide_candidates > (limit - self.margin - TIE)[:, None])
        logits = jnp.where(is_own | hides, HIDDEN, candidates / self.temperature)
        logits = jnp.concatenate([positive[:, None] / self.temperature, logits], axis=1)
        share = jnp.sum(hides.astype(jnp.float32)) / jnp.maximum(jnp.sum((~is_own).astype(jnp.float32)), 1.0)
        losses = jax.nn.logsumexp(logits, axis=1) - logits[:, 0]
        return losses, state, {"cosine/positive": jnp.mean(positive), "hidden": share}

    def similarities(self, vectors: Float[Array, "b v e"]) -> Float[Array, "b k"]:
        """Cosines of each example's k candidates; `HIDDEN` for its own sentences. k depends only on the shapes."""
        anchors, positives = vectors[:, 0], vectors[:, 1]
        parts = [without_own(products(anchors, positives))]
        if self.candidates == "all":
            parts += [without_own(products(one, one)) for one in (anchors, positives)]
        if self.candidates == "symmetric":
            parts.append(without_own(products(positives, anchors)))
        parts += [products(anchors, vectors[:, index]) for index in range(2, vectors.shape[1])]
        return jnp.concatenate(parts, axis=1)
