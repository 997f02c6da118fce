"""Any objective over nested widths of vectors: a vector's leading dimensions are a useful vector by themselves.

Source: Kusupati et al., Matryoshka Representation Learning, NeurIPS 2022. A shorter vector is compared with one of two targets:

    truncated   the teacher's vectors cut to the same width: right for a teacher that was itself trained with nested widths
    projected   the teacher's whole vectors, to which one matrix per width projects (not exported): right for any other
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
    """Averages an objective's loss over the whole vector and its first `dim` dimensions, for each `dim` in `dims`."""

    objective: Objective
    dims: tuple[int, ...]
    """Widths; the full width counts once, whether or not it is listed."""
    targets: Literal["truncated", "projected"]

    @property
    def _projected(self) -> bool:
        """Whether shorter vectors are projected to full width. Without a teacher there is no target to reach, so they are not."""
        return self.targets == "projected" and bool(self.teacher_views)

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """The objective's parameters, with any projecting matrices, and a dict of its states: by width, `whole` for full width."""
        shorter = [dim for dim in self.dims if dim != sizes.width]
        matrices_key, whole_key, *width_keys = jax.random.split(key, 2 + len(shorter))
        params, whole_state = self.objective.init(whole_key, sizes, seeds)
        if self._projected:
            matrices = {  # of variance 1 / inputs
                f"nested/{dim}/kernel": dim**-0.5 * jax.random.normal(matrix_key, (dim, sizes.width), jnp.float32)
                for dim, matrix_key in zip(shorter, jax.random.split(matrices_key, len(shorter)), strict=True)
            }
            return {**params, **matrices}, {"whole": whole_state}
        states = {"whole": whole_state}
        for dim, width_key in zip(shorter, width_keys, strict=True):
            truncated_seeds = None if seeds is None else jnp.asarray(seeds)[:, :dim]
            _, states[str(dim)] = self.objective.init(width_key, sizes._replace(width=dim), truncated_seeds)
        return params, states

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded | None) -> LossAux:
        """Averages the losses of all widths; returns the full width's metrics, and the mean loss of each width."""
        total, whole_state, metrics = self.objective(params, state["whole"], student, teacher)
        states = {"whole": whole_state}
        width = student.sentences.shape[-1]
        metrics = {**metrics, f"loss/{width}": jnp.mean(total)}
        shorter = [dim for dim in self.dims if dim != width]
        for dim in shorter:
            truncated = student._replace(sentences=student.sentences[..., :dim])
            if self._projected:
                matrix = params[f"nested/{dim}/kernel"]
                vectors = jnp.matmul(truncated.sentences, matrix, precision=jax.lax.Precision.HIGHEST)
                projected = student._replace(sentences=vectors)
                # All widths read the state from before the step; the full width alone updates it.
                losses, _, _ = self.objective(params, state["whole"], projected, teacher)
            else:
                targets = None if teacher is None else teacher._replace(sentences=teacher.sentences[..., :dim])
                losses, states[str(dim)], _ = self.objective(params, state[str(dim)], truncated, targets)
            metrics[f"loss/{dim}"] = jnp.mean(losses)
            total = total + losses
        return total / (1 + len(shorter)), states, metrics


for name in Objective.__annotations__:  # forwards each attribute, such as `student_views`, to the wrapped objective
    setattr(Nested, name, alias(f"objective.{name}"))
