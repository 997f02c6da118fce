"""SimTDE, LRN-KD and LMX-KD: the student's tokens, layers and sentences equal the teacher's.

    SimTDE   alpha * L_TE + (1 - alpha) * L_SE: squared differences of token embeddings and of sentence vectors
    LRN-KD   layer reduction: L_SE and squared differences of the layers' outputs, same width (after BERT-PKD)
    LMX-KD   learnable matrices: LRN-KD for a narrower student, each output through a matrix of its own (after TinyBERT)

Paper: Xie et al., SimTDE: Simple Transformer Distillation for Sentence Embeddings, SIGIR 2023, equations 1 to 5 and
table 2 for the comparisons and ablations. Its code is not public. Choices where the paper is silent:
  * L_TE compares the embedding blocks' outputs at the tokens of the batch (`token_loss=batch`), or the tables of word
    embeddings (`vocabulary`). The paper allows both: its matrix is width x vocabulary, its input a sentence.
  * L_TE is a mean over real tokens and numbers, L_SE over sentences and numbers.
  * `cosine_mse` and `cosine_mae` take section 4.3's "MSE and MAE loss on the cosine similarity" to be the square and the
    absolute value of 1 - cosine of the student's and the teacher's vector.
  * LRN-KD and LMX-KD pair the student's layers with the teacher's `last` ones, or with `even`ly spaced ones.
"""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Encoded, Fraction, InputError, LossAux, NotNegative, Objective, Params, Sizes, only
from jaxdistill.core.ops.similarity import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimTDE(Objective):
    """Options of SimTDE; `loss = alpha * tokens + (1 - alpha) * sentences + hidden_weight * layers`."""

    alpha: Fraction = 0.5
    """Weight of the token loss; 0.5 in the paper."""
    token_loss: Literal["batch", "vocabulary"] = "batch"
    """What the token loss compares: embeddings of the tokens in the `batch`, or of the whole `vocabulary`."""
    sentence_loss: Literal["mse", "kl", "cosine_mse", "cosine_mae"] = "mse"
    """Sentence loss: `mse` of the vectors, `kl` of their softmax, 1 - cosine (`cosine_mae`) or its square (`cosine_mse`)."""
    hidden_weight: NotNegative = 0.0
    """Weight of the loss on layer outputs; 0 in SimTDE, positive in LRN-KD and LMX-KD."""
    hidden_map: Literal["last", "even"] = "last"
    """Teacher layers to compare the student's with: the `last` ones, or `even`ly spaced ones."""
    view: str = "text"
    """View that teacher and student read."""

    student_views = teacher_views = only("view")

    @property
    def similarity(self) -> str:
        return "" if self.sentence_loss in ("mse", "kl") else "cosine"

    @property
    def reads(self) -> tuple[str, ...]:
        names = []
        if self.alpha > 0:
            names.append("embeddings" if self.token_loss == "batch" else "vocabulary")
        if self.hidden_weight > 0:
            names.append("hidden")
        return tuple(names)

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Any]:
        """A random matrix for each layer or embedding that is compared, if widths differ. Raises `InputError` for too many layers."""
        if sizes.layers > sizes.teacher_layers > 0 and self.hidden_weight > 0:
            raise InputError(
                f"the student has {sizes.layers} layers, more than the teacher's {sizes.teacher_layers}; "
                "set --config.objective.hidden_weight=0, or give the student fewer layers."
            )
        if sizes.hidden == sizes.teacher_hidden or not self.reads:
            return {}, ()
        names = ["tokens"] if self.alpha > 0 else []
        if self.hidden_weight > 0:
            names += [f"layers/{layer}" for layer in range(sizes.layers)]
        shape = (sizes.hidden, sizes.teacher_hidden)
        matrices = {}
        for name, matrix_key in zip(names, jax.random.split(key, len(names)), strict=True):
            matrices[f"matrix/{name}/kernel"] = sizes.hidden**-0.5 * jax.random.normal(matrix_key, shape, jnp.float32)
        return matrices, ()

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: Encoded) -> LossAux:
        """Equation 5, plus the weighted layer term. Token and layer terms are means over the batch, repeated for each example."""
        teacher = jax.lax.stop_gradient(teacher)
        sentences = self.sentence_losses(student.sentences[:, 0], teacher.sentences[:, 0])
        metrics: dict[str, Array] = {"loss/sentences": jnp.mean(sentences)}
        losses = (1.0 - self.alpha) * sentences
        if self.alpha > 0:  # L_TE, equation 3
            if self.token_loss == "vocabulary":
                assert student.vocabulary is not None and teacher.vocabulary is not None  # named in `reads`
                differences = _projected(params, "tokens", student.vocabulary) - teacher.vocabulary
                metrics["loss/tokens"] = jnp.mean(jnp.square(differences))
            else:
                assert student.embeddings is not None and teacher.embeddings is not None and student.owner is not None
                differences = _projected(params, "tokens", student.embeddings) - teacher.embeddings
                metrics["loss/tokens"] = _mse_of_tokens(differences, student.owner)
            losses = losses + self.alpha * metrics["loss/tokens"]
        if self.hidden_weight > 0:
            metrics["loss/layers"] = self.mean_layer_loss(params, student, teacher)
            losses = losses + self.hidden_weight * metrics["loss/layers"]
        cosine = jnp.sum(unit(student.sentences[:, 0]) * unit(teacher.sentences[:, 0]), axis=-1)
        metrics["cosine/teacher"] = jnp.mean(cosine)
        return losses, state, metrics

    def sentence_losses(self, student: Float[Array, "b e"], teacher: Float[Array, "b e"]) -> Float[Array, " b"]:
        """L_SE, equation 4, or an alternative of the paper's section 4.3."""
        if self.sentence_loss == "mse":
            return jnp.mean(jnp.square(student - teacher), axis=-1)
        if self.sentence_loss == "kl":
            log_p = jax.nn.log_softmax(teacher, axis=-1)
            log_q = jax.nn.log_softmax(student, axis=-1)
            return optax.losses.kl_divergence_with_log_targets(log_q, log_p)
        # Never negative, so MAE needs no absolute value.
        distance = 1.0 - jnp.sum(unit(student) * unit(teacher), axis=-1)
        return jnp.square(distance) if self.sentence_loss == "cosine_mse" else distance

    def mean_layer_loss(self, params: Params, student: Encoded, teacher: Encoded) -> Float[Array, ""]:
        """Mean squared difference of the student's layers from the teacher's that `hidden_map` chooses."""
        assert student.hidden is not None and teacher.hidden is not None and student.owner is not None
        layers, teacher_layers = len(student.hidden), len(teacher.hidden)
        if self.hidden_map == "last":
            target_layers = range(teacher_layers - layers, teacher_layers)
        else:  # the last layers are paired, and those before them by their share of the depth
            target_layers = [round((layer + 1) * teacher_layers / layers) - 1 for layer in range(layers)]
        total = jnp.float32(0.0)
        for layer, target in enumerate(target_layers):
            projected = _projected(params, f"layers/{layer}", student.hidden[layer])
            total = total + _mse_of_tokens(projected - teacher.hidden[target], student.owner)
        return total / layers


def _projected(params: Params, name: str, x: Float[Array, "... d"]) -> Float[Array, "... e"]:
    """Projects `x` to the teacher's width by its matrix `name`; without one, the widths are equal and `x` is returned."""
    matrix = params.get(f"matrix/{name}/kernel")
    return x if matrix is None else jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST)


def _mse_of_tokens(difference: Float[Array, "g r l d"], owner: Integer[Array, "g r l"]) -> Float[Array, ""]:
    """Mean squared difference over all tokens but padding, whose `owner` is -1."""
    is_token = (owner >= 0).astype(jnp.float32)
    return jnp.sum(jnp.mean(jnp.square(difference), axis=-1) * is_token) / jnp.maximum(jnp.sum(is_token), 1.0)
