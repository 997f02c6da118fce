"""InfoNCE on labelled pairs, without a teacher: separates a query's document from the batch's other documents and hard negatives.

This is sentence-transformers' `MultipleNegativesRankingLoss`; with `run.accumulate`, its cached form. A batch has queries q, their
positives p and, optionally, hard negatives; the documents are all positives and hard negatives. Candidates by direction:

    query_to_doc    of q_i: all documents          query_to_query  of q_i: all other queries
    doc_to_query    of p_i: all queries            doc_to_doc      of p_i: all documents of other examples

    loss_i = log(sum of exp(cosine / temperature) over the candidates) - cosine(q_i, p_i) / temperature

Papers: van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018 (arXiv 1807.03748); Günther et al.,
Jina Embeddings 2, 2023 (arXiv 2310.19923), section 5, for the first two directions; Li et al., GTE, 2023 (arXiv 2308.03281), for
all four.
Code consulted: sentence-transformers' `MultipleNegativesRankingLoss`, whose names of options these are.

Deliberate difference: that code relies on batches without duplicates; here a text that repeats the query or the positive of an
example is none of its candidates, see `repeated`. `gist` also hides negatives that a teacher finds as similar as the positive.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Integer

from jaxdistill.core import Array, Encoded, InputError, LossAux, Objective, Params, Positive, Range, Sizes, alias
from jaxdistill.core.ops.similarity import HIDDEN, LearnedScale, products, scale, scale_params, unit

Direction = Literal["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(Objective):
    """Options of InfoNCE on labelled pairs."""

    temperature: Positive = 0.05
    """Divides the cosine similarities. If learned, its initial value."""
    learned_scale: LearnedScale = "none"
    """How 1 / temperature is learned with the student: `none`, by its logarithm (`log`) or directly (`linear`)."""
    directions: Annotated[tuple[Direction, ...], Range(least=1)] = ("query_to_doc",)
    """What is contrasted with what: `query_to_doc`, which is required, `doc_to_query`, `query_to_query` and `doc_to_doc`."""
    partition_mode: Literal["joint", "per_direction"] = "joint"
    """`joint`: one softmax over the candidates of all directions; `per_direction`: the mean of one loss per direction, for
    `query_to_doc` and `doc_to_query` only, because the others' candidates do not include the positive."""
    views: Annotated[tuple[str, ...], Range(least=2)] = ("text", "positive")
    """Columns of the query, its positive and any number of hard negatives, such as `("text", "positive", "negative_1")`."""

    couples_examples = compares_texts = True
    student_views = alias("views")

    def __post_init__(self):
        if "query_to_doc" not in self.directions:
            raise InputError(f"objective.directions={self.directions} must include query_to_doc.")
        if self.partition_mode == "per_direction" and not {*self.directions} <= {"query_to_doc", "doc_to_query"}:
            raise InputError(
                "objective.partition_mode='per_direction' takes only query_to_doc and doc_to_query as objective.directions; "
                "remove the others, or set partition_mode='joint'."
            )

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Any]:
        """The parameter of a learned scale."""
        return scale_params(self.temperature, self.learned_scale), ()

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: None) -> LossAux:
        """InfoNCE of each pair; `hidden` is the share of candidates that `repeated` hides."""
        vectors = unit(student.sentences)
        factor = scale(params, self.temperature, self.learned_scale)
        count, views, _ = vectors.shape
        hides = jnp.zeros((count, count, views), bool) if student.keys is None else repeated(student.keys)
        logits = []
        for direction in self.directions:
            anchor = 1 if direction.startswith("doc") else 0
            candidate_views = range(1, views) if direction.endswith("doc") else (0,)
            hidden = hides
            if direction in ("query_to_query", "doc_to_doc"):  # an example's own texts are no candidates
                hidden = hides | jnp.eye(count, dtype=bool)[:, :, None]
            blocks = []
            for view in candidate_views:
                block = factor * products(vectors[:, anchor], vectors[:, view])
                blocks.append(jnp.where(hidden[:, :, view], HIDDEN, block))
            logits.append(jnp.concatenate(blocks, axis=1))
        if self.partition_mode == "joint":
            logits = [jnp.concatenate(logits, axis=1)]
        cosine = jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        lse = jnp.stack([jax.nn.logsumexp(direction_logits, axis=1) for direction_logits in logits])
        losses = jnp.mean(lse, axis=0) - factor * cosine
        metrics = {"cosine/positive": jnp.mean(cosine), "hidden": jnp.mean(hides.astype(jnp.float32))}
        return losses, state, metrics | {"temperature": jnp.float32(1.0) / factor}


def repeated(keys: Integer[Array, "b v 2"]) -> Bool[Array, "b b v"]:
    """Whether view v of example j must not serve as a negative of example i, because a text repeats the query or the positive of i.

    The query and the positive of j (not i) are hidden if either of them repeats one; a hard negative only if it does so itself.
    """
    equal = jnp.any(jnp.all(keys[:, None, :2, None] == keys[None, :, None], axis=-1), axis=2)
    related = jnp.any(equal[:, :, :2], axis=2, keepdims=True) & ~jnp.eye(len(keys), dtype=bool)[:, :, None]
    return jnp.concatenate([related, related, equal[:, :, 2:]], axis=2)
