"""CKD: the student's vector picks its own teacher vector out of the batch's and of a queue of earlier ones.

Paper: Xu et al., DistilCSE: Effective Knowledge Distillation For Contrastive Sentence Embeddings, 2021, equation 5.
Code consulted: github.com/caskcsg/sentemb. The linear projection to the teacher's width is the student's head
(`student.head=linear`, `student.keep_head=False`).

Paper and code differ, and the options name both: the paper has a fixed temperature, the code learns it from e^-1 on
(`learn_temperature`); the code's teacher runs with dropout (`teacher.dropout`), the paper's does not.

Deliberate differences from the code:
  * One queue for all devices, in the train state and in every checkpoint; the code has one for each process, on the host.
  * The learned scale is bounded by 100, as CLIP bounds it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxdistill.core import Encoded, Params, Sizes
from jaxdistill.ops.norm import unit
from jaxdistill.ops.ring import Ring, push, softmax_over_ring
from jaxdistill.ranges import CountOrNone, Positive

LARGEST_SCALE = 100.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CKD:
    """Options of CKD."""

    temperature: Positive
    """Divides the cosine similarities; where it is learned, its start (code: 0.368, which is e^-1)."""
    learn_temperature: bool
    """Learn its logarithm with the student, as the code does."""
    queue_size: CountOrNone
    """Earlier teacher sentences that are negatives beside the batch's; the queue starts empty. 0: the batch alone."""
    view: str
    """What teacher and student read."""

    couples_examples = True
    reads = ()
    reserve_rows = 0

    @property
    def student_views(self) -> tuple[str, ...]:
        return (self.view,)

    @property
    def teacher_views(self) -> tuple[str, ...]:
        return (self.view,)

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Ring]:
        """The logarithm of the scale, if it is learned, and an empty queue."""
        blocks = -(-self.queue_size // sizes.batch_size) + 1
        ring = jnp.zeros((blocks, sizes.batch_size, sizes.width), jnp.float32)
        params = {"log_scale": jnp.float32(-math.log(self.temperature))} if self.learn_temperature else {}
        return params, Ring(ring, jnp.int32(0))

    def __call__(
        self, params: Params, state: Ring, student: Encoded, teacher: Encoded, *, mesh: Mesh
    ) -> tuple[Float[Array, " b"], Ring, dict[str, Float[Array, ""]]]:
        """InfoNCE of each student vector against its own teacher's; equation 5."""
        mine, own = unit(student.sentences[:, 0]), unit(jax.lax.stop_gradient(teacher.sentences[:, 0]))
        scale = 1.0 / self.temperature
        if self.learn_temperature:
            scale = jnp.minimum(jnp.exp(params["log_scale"]), LARGEST_SCALE)
        queue = push(state, own)
        skip = -self.queue_size % own.shape[0]
        lse, _ = softmax_over_ring(scale * mine[:, None], queue, skip=skip, starts_full=False, mesh=mesh)
        cosine = jnp.sum(mine * own, axis=-1)
        metrics = {"cosine/teacher": jnp.mean(cosine), "temperature": jnp.float32(1.0) / scale}
        return lse[:, 0] - scale * cosine, queue, metrics
