"""Any objective over nested widths of vectors: a vector's leading dimensions are a useful vector by themselves.

Source: Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022. A shorter vector is compared with one of two
targets:

    truncated   the teacher's vectors cut to the same width: right for a teacher that was itself trained with nested widths
    projected   the teacher's whole vectors, reached through one matrix per width that is not exported: right for any other
                teacher, whose leading dimensions mean no more than the last ones

With `truncated`, every width has its own state, such as a queue of that width; with `projected`, all share one.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, LossAux, Objective, Params, Sizes, alias


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nested(Objective):
    """The mean of an objective over the whole vector and its first `dim` dimensions, for each `dim` in `dims`."""

    objective: Objective
    dims: tuple[int, ...]
    """Widths; the full one counts once, whether or not it is among them."""
    targets: Literal["truncated", "projected"]

    @property
    def _projected(self) -> bool:
        return self.targets == "projected" and bool(self.teacher_views)

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """The objective's parameters and the matrices, and its states by width; the full width's is named `whole`."""
        shorter = [dim for dim in self.dims if dim != sizes.width]
        matrices_key, whole_key, *keys = jax.random.split(key, 2 + len(shorter))
        params, whole = self.objective.init(whole_key, sizes, seeds)
        if self._projected:
            matrices = {
                f"nested/{dim}/kernel": dim**-0.5 * jax.random.normal(matrix_key, (dim, sizes.width), jnp.float32)
                for dim, matrix_key in zip(shorter, jax.random.split(matrices_key, len(shorter)), strict=True)
            }
            return {**params, **matrices}, {"whole": whole}
        states = {"whole": whole}
        for dim, width_key in zip(shorter, keys, strict=True):
            cut_seeds = None if seeds is None else jnp.asarray(seeds)[:, :dim]
            _, states[str(dim)] = self.objective.init(width_key, sizes._replace(width=dim), cut_seeds)
        return params, states

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded | None) -> LossAux:
        """Mean of the losses over the widths; the metrics are the full width's, plus each width's loss."""
        total, whole_state, metrics = self.objective(params, state["whole"], student, teacher)
        states = {"whole": whole_state}
        width = student.sentences.shape[-1]
        metrics = {**metrics, f"loss/{width}": jnp.mean(total)}
        shorter = [dim for dim in self.dims if dim != width]
        for dim in shorter:
            cut = student.sentences[..., :dim]
            if self._projected:
                projected = jnp.matmul(cut, params[f"nested/{dim}/kernel"], precision=jax.lax.Precision.HIGHEST)
                projected_student = student._replace(sentences=projected)
                # All widths read the state from before the step; the full width alone updates it.
                losses, _, _ = self.objective(params, state["whole"], projected_student, teacher)
            else:
                cut_teacher = None if teacher is None else teacher._replace(sentences=teacher.sentences[..., :dim])
                cut_student = student._replace(sentences=cut)
                losses, states[str(dim)], _ = self.objective(params, state[str(dim)], cut_student, cut_teacher)
            metrics[f"loss/{dim}"] = jnp.mean(losses)
            total = total + losses
        return total / (1 + len(shorter)), states, metrics


for name in Objective.__annotations__:  # what a nested objective needs is what the objective itself needs
    setattr(Nested, name, alias(f"objective.{name}"))
