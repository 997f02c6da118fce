"""CKD: InfoNCE between student and teacher; negatives are the batch's other teacher vectors and a queue of earlier ones.

    loss_i = -log(exp(cos(s_i, t_i) / temperature) / sum over t of exp(cos(s_i, t) / temperature)), t in batch or queue

Paper: Gao et al., DistilCSE: Effective Knowledge Distillation For Contrastive Sentence Embeddings, 2021 (arXiv 2112.05638),
equation 5; the default temperature of 0.05 is SimCSE's, because the paper names none. Code consulted:
github.com/caskcsg/sentemb. Equation 6 adds a linear projection to the teacher's width, which is the student's head
(`student.head=linear`, `student.keep_head=False`).

Unlike the paper, the code learns the temperature (`learned_scale="log"`), and its teacher has dropout (`teacher.dropout`).

Deliberate differences from the code:
  * All devices share one queue, in the train state and in every checkpoint, and negatives come from the whole batch. In the
    code, each process has its own queue, and contrasts its part of the batch with that part alone.
  * The learned scale is bounded by 100, as CLIP bounds it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from jaxdistill.core import CountOrNone, Encoded, LossAux, Params, Sizes, only
from jaxdistill.core.ops.ring import Ring, push, softmax_over_ring
from jaxdistill.core.ops.similarity import WithTemperature, unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CKD(WithTemperature):
    """Options of CKD."""

    queue_size: CountOrNone = 65536
    """Number of earlier teacher vectors used as negatives, at most a quarter of the text's rows; initially none. 0: no queue."""
    view: str = "text"
    """View that teacher and student read."""

    couples_examples = True
    student_views = teacher_views = only("view")

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Ring]:
        """The parameter of a learned scale, and an empty queue with room for one more batch, the current one."""
        blocks = math.ceil(self.queue_size / sizes.batch_size) + 1
        ring = jnp.zeros((blocks, sizes.batch_size, sizes.width), sizes.precision)
        return super().init(key, sizes, seeds)[0], Ring(ring, jnp.int32(0))

    def __call__(self, params: Params, state: Ring, student: Encoded, teacher: Encoded) -> LossAux:
        """Equation 5 for each sentence; its positive is the teacher's vector of the same sentence."""
        student_vectors = unit(student.sentences[:, 0])
        teacher_vectors = unit(jax.lax.stop_gradient(teacher.sentences[:, 0]))
        logit_scale = self.scale(params)
        queue = push(state, teacher_vectors)
        batch_size = teacher_vectors.shape[0]
        # The ring holds whole batches. Of the oldest, only the first rows (1 to `batch_size`) stay negatives, so that exactly
        # `queue_size` earlier vectors are. The code keeps the same ones: it cuts off the end of [batch, queue].
        rows_of_oldest = (self.queue_size - 1) % batch_size + 1
        queries = logit_scale * student_vectors[:, None]
        lse, _ = softmax_over_ring(queries, queue, expired=(rows_of_oldest, batch_size), starts_full=False)
        cosine = jnp.sum(student_vectors * teacher_vectors, axis=-1)
        metrics = {"cosine/teacher": jnp.mean(cosine), "temperature": jnp.float32(1.0) / logit_scale}
        return lse[:, 0] - logit_scale * cosine, queue, metrics
