"""L2, Dual-L2, SKD, DistilCSE's KD and LEAF: the student's vectors s equal the teacher's vectors t.

    L2        distance(s(x1), t(x1))
    Dual-L2   L2 + distance(s(x2), t(x1)), x2 a second view or a translation (Reimers and Gurevych, EMNLP 2020)
    SKD       Dual-L2 + distance(s(x1), s(x2)), or with `third=teacher` distance(s(x1), t(x2)), as in CL-ReLKT's code
    KD        L2 with `student.head=linear`, `student.keep_head=False`, so distance(W s(x1) + b, t(x1))
    LEAF      L2 with `student.head=linear`, `student.keep_head=True`: the student can search the teacher's index

Papers: ConGen (Limkonchotiwat et al., Findings of EMNLP 2022), section 4.2, for the first three, whose code is not public;
DistilCSE (Gao et al., 2021), equation 3, for KD; Vujanic and Rueckstiess, LEAF, 2025 (arXiv 2509.12539). ConGen does not state
the weights of the terms; here they are equal.

Differences: distances are means over a vector's numbers, and the loss is a mean over the batch, as in DistilCSE's code; its
equations sum over the batch. `distance=cosine` is in none of the papers; sentence-transformers recommends it.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, InputError, LossAux, NotNegative, Objective, Params
from jaxdistill.core.ops.similarity import spread_out, unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding(Objective):
    """Options of L2, Dual-L2, SKD, KD and LEAF."""

    distance: Literal["squared", "cosine"] = "squared"
    """Distance of two vectors: the mean `squared` difference of their numbers, or 1 - `cosine` similarity."""
    normalize: bool = True
    """Normalise vectors before the comparison. False: compare the models' outputs directly (KD)."""
    view: str = "text"
    """View that teacher and student read."""
    second_view: str = ""
    """The student's second view, with the same target (Dual-L2, SKD); empty: none."""
    third: Literal["none", "views", "teacher"] = "none"
    """SKD's third term: `none`, `views` (between the student's views) or `teacher` (with the teacher's second view)."""
    spread_weight: NotNegative = 0.0
    """Weight of the spread-out regulariser, a penalty on unrelated sentences that lie close together."""

    def __post_init__(self):
        if self.third != "none" and not self.second_view:
            raise InputError(f"objective.third={self.third!r} compares two views; set --config.objective.second_view.")

    @property
    def similarity(self) -> str:
        return "cosine" if self.normalize or self.distance == "cosine" else ""

    @property
    def couples_examples(self) -> bool:
        return self.spread_weight > 0

    @property
    def student_views(self) -> tuple[str, ...]:
        return (self.view, self.second_view) if self.second_view else (self.view,)

    @property
    def teacher_views(self) -> tuple[str, ...]:
        return (self.view, self.second_view) if self.third == "teacher" else (self.view,)

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """The mean of the terms that the options choose (see the module's docstring), plus the weighted regulariser."""
        student_vectors = student.sentences
        teacher_vectors = jax.lax.stop_gradient(teacher.sentences)
        if self.similarity == "cosine":
            student_vectors = unit(student_vectors)
            teacher_vectors = unit(teacher_vectors)
        terms = {"first": self.distances(student_vectors[:, 0], teacher_vectors[:, 0])}
        if self.second_view:
            terms["second"] = self.distances(student_vectors[:, 1], teacher_vectors[:, 0])
        if self.third != "none":
            compared = student_vectors if self.third == "views" else teacher_vectors
            terms["third"] = self.distances(student_vectors[:, 0], compared[:, 1])
        metrics: dict[str, Array] = {f"loss/{name}": jnp.mean(term) for name, term in terms.items()}
        cosine = jnp.sum(unit(student_vectors[:, 0]) * unit(teacher_vectors[:, 0]), axis=-1)
        metrics["cosine/teacher"] = jnp.mean(cosine)
        losses = sum(terms.values(), jnp.float32(0.0)) / len(terms)
        if self.spread_weight:
            metrics["loss/spread"] = spread_out(unit(student_vectors))
            losses = losses + self.spread_weight * metrics["loss/spread"]
        return losses, state, metrics

    def distances(self, x: Float[Array, "b e"], y: Float[Array, "b e"]) -> Float[Array, " b"]:
        """The distance of each row of `x` to the same row of `y`; for `cosine`, rows have unit length."""
        if self.distance == "cosine":
            return 1.0 - jnp.sum(x * y, axis=-1)
        return jnp.mean(jnp.square(x - y), axis=-1)
