"""SimCSE and Mirror-BERT: contrast two views of a sentence with the batch's other sentences, without a teacher.

    loss_i = -log(exp(s(h_i, h_i+)) / sum over j of (exp(s(h_i, h_j+)) + exp(s(h_i, h_j-)))), s = cosine / temperature

h_i is the anchor, h_i+ its positive and h_i- its hard negative, if there is one.
    unsupervised SimCSE   views ("text", "text"): the same sentence under two dropout masks
    supervised SimCSE     views ("text", "positive", "negative"): columns of the text; also DistilCSE's second stage
    Mirror-BERT           views ("text", "mask_span"), `among="both"`, random span masks, drophead
    DistilFACE            unsupervised SimCSE with the mean of the last four layers

Papers: Gao et al., SimCSE, EMNLP 2021, equations 4 and 5; Liu et al., Mirror-BERT, EMNLP 2021, equation 1; Gao et al.,
DistilCSE, 2021, equation 7. Code consulted: github.com/princeton-nlp/SimCSE, github.com/cambridgeltl/mirror-bert,
github.com/caskcsg/sentemb (stage 2, whose temperature is learned). The MLP of SimCSE is the student's head
(`student.head=tanh`), kept or not at export.
"""

import dataclasses
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp

from jaxdistill.core import Encoded, InputError, LossAux, Params, Positive, TwoOrThree, alias
from jaxdistill.core.ops.similarity import WithTemperature, products, unit, without_diagonal


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimCSE(WithTemperature):
    """Options of SimCSE and Mirror-BERT."""

    views: TwoOrThree = ("text", "text")
    """Views of the anchor, the positive and, optionally, the hard negative."""
    negative_weight: Positive = 1.0
    """Factor of an example's hard negative in its sum of exponentials (alpha in SimCSE's section 6.3 and table 7); hard
    negatives of other examples have factor 1."""
    among: Literal["others", "both"] = "others"
    """`others`: each anchor is contrasted with the batch's positives and hard negatives; `both`: each of the 2b sentences
    with the 2b - 1 others (NT-Xent, Mirror-BERT)."""

    couples_examples = True
    student_views = alias("views")

    def __post_init__(self):
        if self.among == "both" and len(self.views) == 3:
            raise InputError("objective.among='both' does not use a hard negative; give two views.")

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: None) -> LossAux:
        """Equation 5 of SimCSE (equation 4 without hard negatives), or with `among="both"` NT-Xent."""
        vectors = unit(student.sentences)
        logit_scale = self.scale(params)
        count, views, width = vectors.shape
        if self.among == "both":  # the mean loss of an example's two sentences
            sentences = vectors.reshape(count * views, width)
            logits = without_diagonal(logit_scale * products(sentences, sentences))
            lse = jnp.mean(jax.nn.logsumexp(logits, axis=1).reshape(count, views), axis=1)
        else:
            logits = logit_scale * products(vectors[:, 0], vectors[:, 1])
            if views == 3:
                negatives = logit_scale * products(vectors[:, 0], vectors[:, 2])
                log_weights = math.log(self.negative_weight) * jnp.eye(count, dtype=jnp.float32)  # elsewhere factor 1
                logits = jnp.concatenate([logits, negatives + log_weights], axis=1)
            lse = jax.nn.logsumexp(logits, axis=1)
        cosine = jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        metrics = {"cosine/positive": jnp.mean(cosine), "temperature": jnp.float32(1.0) / logit_scale}
        return lse - logit_scale * cosine, state, metrics
