"""SimTDE, LRN-KD and LMX-KD: the student's tokens, layers and sentences equal the teacher's.

    SimTDE   alpha * L_TE + (1 - alpha) * L_SE: output of the embedding block, and sentence vectors
    LRN-KD   layer reduction: L_SE and the layers' outputs, same width (after BERT-PKD)
    LMX-KD   learnable matrices: the same from a narrower student, each output through a matrix of its own (TinyBERT)

Paper: Xie et al., SimTDE: Simple Transformer Distillation for Sentence Embeddings, SIGIR 2023, equations 1 to 5 and
table 2 for the comparisons and ablations. Its code is not public. Choices where the paper is silent:
  * L_TE compares the embedding blocks' outputs at the tokens of the batch (`token_loss=batch`), or the tables of word
    embeddings (`vocabulary`). The paper allows both: its matrix is width x vocabulary, its input a sentence.
  * L_TE is a mean over real tokens and numbers, L_SE over sentences and numbers.
  * `cosine_mse` and `cosine_mae` take section 4.3's "MSE and MAE loss on the cosine similarity" to mean how far the cosine of
    the student's vector and its teacher's is from 1.
  * LRN-KD and LMX-KD pair the student's layers with the teacher's `last` ones, or with `even`ly spaced ones.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Encoded, Fraction, InputError, NotNegative, Objective, Params, Sizes, alias
from jaxdistill.core.ops.similarity import unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimTDE(Objective):
    """Options of SimTDE; `loss = alpha * tokens + (1 - alpha) * sentences + hidden_weight * layers`."""

    alpha: Fraction = 0.5
    """Weight of the token loss; 0.5 in the paper."""
    token_loss: Literal["batch", "vocabulary"] = "batch"
    """What the token loss compares: outputs of the embedding block at the tokens of the `batch`, or the whole table of
    word embeddings (`vocabulary`)."""
    sentence_loss: Literal["mse", "kl", "cosine_mse", "cosine_mae"] = "mse"
    """Sentence loss: `mse` of the vectors, `kl` of their softmax, or 1 - cosine, squared (`cosine_mse`) or not
    (`cosine_mae`)."""
    hidden_weight: NotNegative = 0.0
    """Weight of the loss on layer outputs; 0 in SimTDE, positive in LRN-KD and LMX-KD."""
    hidden_map: Literal["last", "even"] = "last"
    """Teacher layers to compare the student's with: the `last` ones, or `even`ly spaced ones."""
    view: str = "text"
    """View that teacher and student read."""

    @property
    def similarity(self) -> str:
        return "" if self.sentence_loss in ("mse", "kl") else "cosine"

    @property
    def student_views(self) -> tuple[str, ...]:
        return (self.view,)

    teacher_views = alias("student_views")

    @property
    def reads(self) -> tuple[str, ...]:
        tokens = ("embeddings" if self.token_loss == "batch" else "vocabulary",) if self.alpha > 0 else ()
        return (*tokens, *(("hidden",) if self.hidden_weight > 0 else ()))

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Any]:
        """LMX-KD's matrices, if the widths differ."""
        if sizes.layers > sizes.teacher_layers > 0 and self.hidden_weight > 0:
            raise InputError(
                f"the student has {sizes.layers} layers, more than the teacher's {sizes.teacher_layers}; "
                "set --config.objective.hidden_weight=0, or give the student fewer layers."
            )
        if sizes.hidden == sizes.teacher_hidden or not self.reads:
            return {}, ()
        names = (["tokens"] if self.alpha > 0 else []) + (
            [f"layers/{layer}" for layer in range(sizes.layers)] if self.hidden_weight > 0 else []
        )
        shape, deviation = (sizes.hidden, sizes.teacher_hidden), sizes.hidden**-0.5
        keys = jax.random.split(key, len(names))
        return {
            f"matrix/{name}/kernel": deviation * jax.random.normal(one, shape, jnp.float32)
            for name, one in zip(names, keys, strict=True)
        }, ()

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: Encoded
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """Equation 5; the token and layer terms are averaged over the batch."""
        teacher = jax.lax.stop_gradient(teacher)
        sentences = self.sentence_losses(student.sentences[:, 0], teacher.sentences[:, 0])
        metrics: dict[str, Array] = {"loss/sentences": jnp.mean(sentences)}
        losses = (1.0 - self.alpha) * sentences
        if self.alpha > 0:
            metrics["loss/tokens"] = self.mean_token_loss(params, student, teacher)
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
            log_p, log_q = jax.nn.log_softmax(teacher, axis=-1), jax.nn.log_softmax(student, axis=-1)
            return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
        # 1 - cosine is never negative, so MAE needs no absolute value.
        missing = 1.0 - jnp.sum(unit(student) * unit(teacher), axis=-1)
        return jnp.square(missing) if self.sentence_loss == "cosine_mse" else missing

    def mean_token_loss(self, params: Params, student: Encoded, teacher: Encoded) -> Float[Array, ""]:
        """L_TE, equation 3."""
        if self.token_loss == "vocabulary":
            assert student.vocabulary is not None and teacher.vocabulary is not None  # named in `reads`
            return jnp.mean(jnp.square(_through(params, "tokens", student.vocabulary) - teacher.vocabulary))
        assert student.embeddings is not None and teacher.embeddings is not None and student.owner is not None
        return _masked_mean(_through(params, "tokens", student.embeddings) - teacher.embeddings, student.owner)

    def mean_layer_loss(self, params: Params, student: Encoded, teacher: Encoded) -> Float[Array, ""]:
        """Mean loss over the student's layers."""
        assert student.hidden is not None and teacher.hidden is not None and student.owner is not None
        layers, teacher_layers = len(student.hidden), len(teacher.hidden)
        chosen = range(teacher_layers - layers, teacher_layers)
        if self.hidden_map == "even":
            chosen = [round((layer + 1) * teacher_layers / layers) - 1 for layer in range(layers)]
        terms = [
            _masked_mean(
                _through(params, f"layers/{layer}", student.hidden[layer]) - teacher.hidden[other], student.owner
            )
            for layer, other in enumerate(chosen)
        ]
        return sum(terms, jnp.float32(0.0)) / len(terms)


def _through(params: Params, name: str, x: Float[Array, "... d"]) -> Float[Array, "... e"]:
    """Projects `x` to the teacher's width; unchanged if the widths are equal."""
    matrix = params.get(f"matrix/{name}/kernel")
    return x if matrix is None else jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST)


def _masked_mean(difference: Float[Array, "g r l d"], owner: Integer[Array, "g r l"]) -> Float[Array, ""]:
    """Mean square over the numbers of all tokens that are not padding."""
    real = (owner >= 0).astype(jnp.float32)
    return jnp.sum(jnp.mean(jnp.square(difference), axis=-1) * real) / jnp.maximum(jnp.sum(real), 1.0)
