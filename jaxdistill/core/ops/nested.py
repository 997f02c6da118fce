"""Any objective over nested widths of vectors: a vector's leading dimensions are a useful vector by themselves.

Source: Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022; none of the distillation papers uses it. A
shorter vector is compared with one of two targets:

    truncated   the teacher's vectors cut to the same width: right for a teacher that was itself trained with nested widths
    projected   the teacher's whole vectors, reached through one matrix per width that is not exported: right for any other
                teacher, whose leading dimensions mean no more than the last ones

Truncated, every width has its own state (such as a queue of that width); projected, all share one.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, Objective, Params, Sizes, alias


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nested(Objective):
    """An objective of the whole vector and of its leading dimensions, for each width in `dims`; the loss is the mean over the widths."""

    objective: Objective
    dims: tuple[int, ...]
    targets: str

    @property
    def _projected(self) -> bool:
        return self.targets == "projected" and bool(self.teacher_views)

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """The objective's parameters and the matrices; its states by width, of which the full one is named `whole`."""
        shorter = [dim for dim in self.dims if dim != sizes.width]
        matrices_key, whole_key, *keys = jax.random.split(key, 2 + len(shorter))
        params, whole = self.objective.init(whole_key, sizes, seeds)
        if self._projected:
            matrices = {
                f"nested/{dim}/kernel": dim**-0.5 * jax.random.normal(matrix_key, (dim, sizes.width), jnp.float32)
                for dim, matrix_key in zip(shorter, jax.random.split(matrices_key, len(shorter)), strict=True)
            }
            # All widths share the whole vector's state: mapped to the full width, they need no queue of their own.
            return {**params, **matrices}, {"whole": whole}
        states = {"whole": whole}
        for dim, width_key in zip(shorter, keys, strict=True):
            cut_seeds = None if seeds is None else jnp.asarray(seeds)[:, :dim]
            _, states[str(dim)] = self.objective.init(width_key, sizes._replace(width=dim), cut_seeds)
        return params, states

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded | None
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """Mean of the losses over the widths; the metrics are the full width's, plus each width's loss."""
        losses, whole, metrics = self.objective(params, state["whole"], student, teacher)
        total, states = losses, {"whole": whole}
        width = student.sentences.shape[-1]
        shorter = [dim for dim in self.dims if dim != width]
        for dim in shorter:
            cut_student = student._replace(sentences=student.sentences[..., :dim])
            if self._projected:
                matrix = params[f"nested/{dim}/kernel"]
                projected = jnp.matmul(cut_student.sentences, matrix, precision=jax.lax.Precision.HIGHEST)
                cut_student = cut_student._replace(sentences=projected)
                cut_losses, _, _ = self.objective(params, state["whole"], cut_student, teacher)
            else:
                cut_teacher = None if teacher is None else teacher._replace(sentences=teacher.sentences[..., :dim])
                cut_losses, states[str(dim)], _ = self.objective(params, state[str(dim)], cut_student, cut_teacher)
            metrics = {**metrics, f"loss/{dim}": jnp.mean(cut_losses)}
            total = total + cut_losses
        return total / (1 + len(shorter)), states, {**metrics, f"loss/{width}": jnp.mean(losses)}


for name in Objective.__annotations__:  # only the state and the loss differ from the objective's
    setattr(Nested, name, alias(f"objective.{name}"))
