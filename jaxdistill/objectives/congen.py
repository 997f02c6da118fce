"""ConGen: the student's similarities to a queue of teacher vectors follow the teacher's, for two views of a sentence.

    p(z, temperature) = softmax over the keys d of cos(z, d) / temperature
    control           = CE(p(t(x1), teacher_temperature), p(s(x1), student_temperature))
    generalize        = CE(p(t(x1), teacher_temperature), p(s(x2), student_temperature))
    loss              = alpha * control + (1 - alpha) * generalize

Paper: Limkonchotiwat et al., ConGen: Unsupervised Control and Generalization Distillation For Sentence Representation,
Findings of EMNLP 2022, equations 1 and 2. Code consulted: github.com/KornWtp/ConGen.

Paper and code differ in the keys, and `key_set` offers both. In the code the keys are the queue and the batch (k + b), which
is enqueued afterwards. In the paper the batch is enqueued first, in place of the oldest rows, and the keys are the k rows
of the queue. `queue+own` is SEED's form: the queue and the sentence's own teacher vector.

Deliberate differences from the code:
  * The queue is part of the train state and of every checkpoint.
  * It holds exactly the newest `queue_size` rows; the code's is longer when drawn sentences repeat in the text.
  * A last short batch of an epoch is dropped, where the code enqueues it.
  * Similarities are multiplied in the run's precision and summed in float32, as the softmax is; the code multiplies in float16.
"""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float

from jaxdistill.core import Array, Count, Encoded, Fraction, LossAux, Objective, Params, Positive, Sizes, only
from jaxdistill.core.ops.ring import Ring, push, softmax_over_ring
from jaxdistill.core.ops.similarity import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConGen(Objective):
    """Options of ConGen."""

    alpha: Fraction = 0.5
    """Weight of the control term; 1 is SEED's single view. The code uses 0.5; the paper's table 5 compares values."""
    student_temperature: Positive = 0.05
    """Divides the student's similarities; the paper's table 7 has 0.05 to 0.1."""
    teacher_temperature: Positive = 0.05
    """Divides the teacher's similarities; lower values sharpen the target distribution."""
    queue_size: Count = 16384
    """Number of teacher vectors in the queue (k); need not be a multiple of the batch size. The ring that stores them has
    room for up to two batches more. Capped at a quarter of the text's rows."""
    key_set: Literal["queue+batch", "queue", "queue+own"] = "queue+batch"
    """Keys of the similarities: `queue+batch` (code), `queue` (paper) or `queue+own` (SEED)."""
    queue_init: Literal["sentences", "random"] = "sentences"
    """Initial queue: teacher vectors of sampled `sentences`, which are held out of training (of fewer than 100,000 rows at
    most a tenth, evaluation included), or `random` unit vectors."""
    control_view: str = "text"
    """View that the student reads for the control term, and the teacher for both terms."""
    generalize_view: str = "delete_words"
    """The student's second view: a column of the text (back-translation) or an augmentation (`delete_words`)."""

    couples_examples = True
    teacher_views = only("control_view")

    @property
    def _terms(self) -> dict[str, tuple[str, float]]:
        """Maps each term of positive weight to the view that the student reads for it, and its weight."""
        terms = {"control": (self.control_view, self.alpha), "generalize": (self.generalize_view, 1 - self.alpha)}
        return {name: (view, weight) for name, (view, weight) in terms.items() if weight > 0}

    @property
    def student_views(self) -> tuple[str, ...]:
        return tuple(view for view, _ in self._terms.values())

    @property
    def variant(self) -> str:
        return {1.0: "control term alone", 0.0: "generalization term alone"}.get(self.alpha, "")

    @property
    def reserve_rows(self) -> int:
        return self.queue_size if self.queue_init == "sentences" else 0

    def init(self, key: jax.Array, sizes: Sizes, seeds: Float[Array, "k e"] | None) -> tuple[Params, Ring]:
        """No parameters, and a queue full of normalised `seeds` or random vectors, oldest row first.

        The ring has `ceil(k / b)` blocks. `queue+batch` and `queue+own` need one more, because their k queued keys are older
        than the batch, which is written before the keys are read.
        """
        if self.queue_init == "random":
            seeds = jax.random.normal(key, (self.queue_size, sizes.width))
        blocks = math.ceil(self.queue_size / sizes.batch_size)
        if self.key_set != "queue":
            blocks += 1
        empty_rows = blocks * sizes.batch_size - self.queue_size
        rows = jnp.pad(unit(jnp.asarray(seeds)), ((empty_rows, 0), (0, 0)))
        ring = rows.reshape(blocks, sizes.batch_size, sizes.width).astype(sizes.precision)
        return {}, Ring(ring, jnp.int32(0))

    def __call__(self, params: Params, state: Ring, student: Encoded, teacher: Encoded) -> LossAux:
        """Equation 2 for each sentence: the cross-entropies of the control and generalize terms, weighted by alpha."""
        student_vectors = unit(student.sentences)
        teacher_vectors = unit(jax.lax.stop_gradient(teacher.sentences[:, 0]))
        queue = push(state, teacher_vectors)
        student_queries = student_vectors / self.student_temperature
        teacher_query = teacher_vectors[:, None] / self.teacher_temperature
        queries = jnp.concatenate([student_queries, teacher_query], axis=1)
        # The ring holds whole batches, so its oldest batch may begin with rows that are not among the newest `queue_size`.
        surplus = -self.queue_size % queue.ring.shape[1]
        own_keys = teacher_vectors if self.key_set == "queue+own" else None
        lse, average_keys = softmax_over_ring(queries, queue, own_keys, expired=(0, surplus), starts_full=True)
        # Cross-entropy is lse - query . average of the keys under the teacher's softmax, so the b x k probabilities are never
        # stored. The last query is the teacher's, and its cross-entropy is the entropy of the teacher's distribution.
        teacher_average = jax.lax.stop_gradient(average_keys[:, -1:])
        cross_entropies = lse - jnp.sum(queries * teacher_average, axis=-1)
        losses = cross_entropies[:, :-1]
        entropy = cross_entropies[:, -1]
        metrics = {f"loss/{name}": jnp.mean(losses[:, index]) for index, name in enumerate(self._terms)}
        weights = jnp.array([weight for _, weight in self._terms.values()], jnp.float32)
        # Not a matrix product, because TPUs and GPUs would round its operands.
        weighted = jnp.sum(losses * weights[None], axis=1)
        metrics["loss/kl"] = jnp.mean(weighted - entropy)
        metrics["cosine/teacher"] = jnp.mean(jnp.sum(student_vectors[:, 0] * teacher_vectors, axis=-1))
        return weighted, queue, metrics
