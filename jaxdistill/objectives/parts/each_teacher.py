"""Any objective with several teachers, each compared with its own segment of the student's vector.

The student's head maps to the widths of all teachers side by side, so each segment is one teacher's head. With the weight
w_k of teacher k, its vectors t_k and the student's segment s_k for it:

    loss = sum over k of w_k * objective(s_k, t_k), where the w_k add up to 1

The teachers' vectors have unit length. Each teacher has its own state (such as a queue of its width) and parameters.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Float

from jaxdistill.core import Array, Encoded, Params, Sizes
from jaxdistill.objectives.parts.wrapped import Wrapped


class Segment(NamedTuple):
    """One teacher's segment of the joined vectors."""

    name: str
    share: float
    numbers: slice

    def of_joined(self, vectors: Float[Array, "*n e"]) -> Float[Array, "*n _"]:
        """The teacher's unit vectors, from vectors that `data.targets.joined` made: it scales a segment by the share's root."""
        return vectors[..., self.numbers] / self.share**0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class EachTeacher(Wrapped):
    """An objective for each of several teachers; the loss is their weighted mean."""

    widths: tuple[int, ...]
    shares: tuple[float, ...]
    """Weights of the teachers; their sum is 1."""

    @property
    def any_width(self) -> bool:
        return False

    @property
    def parts(self) -> Iterator[Segment]:
        first = 0
        for number, (width, share) in enumerate(zip(self.widths, self.shares, strict=True), start=1):
            yield Segment(f"teacher{number}", share, slice(first, first + width))
            first += width

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Any]:
        """The objective's parameters and state, once for each teacher."""
        params, states = {}, {}
        for index, (part, width) in enumerate(zip(self.parts, self.widths, strict=True)):
            of_part = None if seeds is None else part.of_joined(jnp.asarray(seeds))
            sized = sizes._replace(width=width)
            own, states[part.name] = self.objective.init(jax.random.fold_in(key, index), sized, of_part)
            params |= {f"{part.name}/{path}": array for path, array in own.items()}
        return params, states

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded | None, *, mesh: Mesh
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """Weighted mean of the losses; metric names are prefixed with the teacher's."""
        assert teacher is not None  # there are several
        total, states, metrics = jnp.zeros(len(student.sentences), jnp.float32), {}, {}
        for part in self.parts:
            before = f"{part.name}/"
            own = {path.removeprefix(before): array for path, array in params.items() if path.startswith(before)}
            mine = student._replace(sentences=student.sentences[..., part.numbers])
            wanted = teacher._replace(sentences=part.of_joined(teacher.sentences))
            losses, states[part.name], logged = self.objective(own, state[part.name], mine, wanted, mesh=mesh)
            total = total + part.share * losses
            metrics |= {f"{name}/{part.name}": value for name, value in logged.items()}
        return total, states, metrics
