"""CKD: InfoNCE between student and teacher; negatives are the batch's other teacher vectors and a queue of earlier ones.

Paper: Gao et al., DistilCSE: Effective Knowledge Distillation For Contrastive Sentence Embeddings, 2021 (arXiv 2112.05638),
equations 5 and 6, which leave the temperature open; the default of 0.05 is SimCSE's.
Code consulted: github.com/caskcsg/sentemb. The linear projection to the teacher's width is the student's head
(`student.head=linear`, `student.keep_head=False`).

The options cover both where paper and code differ: the paper has a fixed temperature, the code learns it, starting at
e^-1 (`learned_scale="log"`); the code's teacher runs with dropout (`teacher.dropout`), the paper's does not.

Deliberate differences from the code:
  * All devices share one queue, in the train state and in every checkpoint; in the code, each process has one on its host.
    Negatives come from the whole batch and the queue: 4,096 + 65,536 in the preset `code`. In the code, each of eight
    processes contrasts its 512 sentences with 512 + 65,536 that the same process has seen.
  * The learned scale is bounded by 100, as CLIP bounds it.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, CountOrNone, Encoded, Objective, Params, Positive, Sizes, alias
from jaxdistill.core.ops.ring import Ring, push, softmax_over_ring
from jaxdistill.core.ops.similarity import LearnedScale, scale, scale_params, unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CKD(Objective):
    """Options of CKD."""

    temperature: Positive = 0.05
    """Divides the cosine similarities. If learned, its initial value (code: 0.368, which is e^-1)."""
    learned_scale: LearnedScale = "none"
    """How 1 / temperature is learned with the student: `none`, by its logarithm (`log`, as in the code) or directly
    (`linear`)."""
    queue_size: CountOrNone = 65536
    """Number of earlier teacher sentences used as negatives besides the batch's; capped at a quarter of the text's
    rows. The queue starts empty. 0: the batch alone."""
    view: str = "text"
    """View that teacher and student read."""

    couples_examples = True

    @property
    def student_views(self) -> tuple[str, ...]:
        return (self.view,)

    teacher_views = alias("student_views")

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Ring]:
        """The parameter of a learned scale, and an empty queue."""
        blocks = -(-self.queue_size // sizes.batch_size) + 1
        ring = jnp.zeros((blocks, sizes.batch_size, sizes.width), sizes.precision)
        return scale_params(self.temperature, self.learned_scale), Ring(ring, jnp.int32(0))

    def __call__(
        self, params: Params, state: Ring, student: Encoded, teacher: Encoded
    ) -> tuple[Float[Array, " b"], Ring, Mapping[str, Float[Array, ""]]]:
        """InfoNCE with each sentence's teacher vector as the positive; equation 5."""
        student_vectors = unit(student.sentences[:, 0])
        teacher_vectors = unit(jax.lax.stop_gradient(teacher.sentences[:, 0]))
        factor = scale(params, self.temperature, self.learned_scale)
        queue = push(state, teacher_vectors)
        batch_size = teacher_vectors.shape[0]
        # The code keeps the first rows of [batch, queue], so it drops the end of the oldest batch first.
        expired = ((self.queue_size - 1) % batch_size + 1, batch_size)
        lse, _ = softmax_over_ring(factor * student_vectors[:, None], queue, expired=expired, starts_full=False)
        cosine = jnp.sum(student_vectors * teacher_vectors, axis=-1)
        metrics = {"cosine/teacher": jnp.mean(cosine), "temperature": jnp.float32(1.0) / factor}
        return lse[:, 0] - factor * cosine, queue, metrics
