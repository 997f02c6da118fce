"""InfoNCE on labelled pairs, without a teacher: separates a query's document from the batch's other documents and hard negatives.

This is sentence-transformers' `MultipleNegativesRankingLoss`, whose names of options these are; with `run.accumulate`, its cached
form. A batch has queries q, their positives p and, optionally, hard negatives. Documents are all positives and hard negatives.
Candidates by direction:

    query_to_doc    of q_i: all documents          query_to_query  of q_i: all other queries
    doc_to_query    of p_i: all queries            doc_to_doc      of p_i: all documents of other examples

    loss_i = log(sum of exp(cosine / temperature) over the candidates) - cosine(q_i, p_i) / temperature

Papers: van den Oord et al., Contrastive Predictive Coding, 2018 (arXiv 1807.03748); for two directions Günther et al., Jina
Embeddings 2, 2023 (arXiv 2310.19923), section 5; for all four Li et al., GTE, 2023 (arXiv 2308.03281).

Deliberate difference: sentence-transformers relies on batches without duplicates; here a text that repeats an example's query or
positive is not among its negatives, see `false_negatives`. `gist` also hides those that a teacher finds as similar as the positive.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Array, Encoded, InputError, LossAux, Params, Range, alias
from jaxdistill.core.ops.similarity import HIDDEN, WithTemperature, products, unit

Direction = Literal["query_to_doc", "doc_to_query", "query_to_query", "doc_to_doc"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contrastive(WithTemperature):
    """Options of InfoNCE on labelled pairs."""

    directions: Annotated[tuple[Direction, ...], Range(least=1)] = ("query_to_doc",)
    """Which texts are contrasted: `query_to_doc`, which is required, `doc_to_query`, `query_to_query` and `doc_to_doc`."""
    partition_mode: Literal["joint", "per_direction"] = "joint"
    """`joint`: one softmax over the candidates of all directions; `per_direction`: the mean of one loss per direction, only for
    `query_to_doc` and `doc_to_query`, because candidates of `query_to_query` and `doc_to_doc` do not include the positive."""
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

    def __call__(self, params: Params, state: Any, student: Encoded, teacher: None) -> LossAux:
        """InfoNCE of each pair; the metric `hidden` is the share of texts that `false_negatives` hides from an example."""
        vectors = unit(student.sentences)
        logit_scale = self.scale(params)
        count, views, _ = vectors.shape
        is_hidden = jnp.zeros((count, count, views), bool) if student.keys is None else false_negatives(student.keys)
        logits = [direction_logits(direction, vectors, logit_scale, is_hidden) for direction in self.directions]
        if self.partition_mode == "joint":  # one softmax instead of one per direction
            logits = [jnp.concatenate(logits, axis=1)]
        cosine = jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        lse = jnp.stack([jax.nn.logsumexp(candidates, axis=1) for candidates in logits])
        losses = jnp.mean(lse, axis=0) - logit_scale * cosine
        metrics = {"cosine/positive": jnp.mean(cosine), "hidden": jnp.mean(is_hidden.astype(jnp.float32))}
        return losses, state, metrics | {"temperature": jnp.float32(1.0) / logit_scale}


def direction_logits(
    direction: Direction, vectors: Float[Array, "b v e"], logit_scale: Array, is_hidden: Bool[Array, "b b v"]
) -> Float[Array, "b k"]:
    """Logits of each example's candidates in one direction; `HIDDEN` if `is_hidden[i, j, v]`, for view v of example j and anchor i."""
    anchor_view = 1 if direction.startswith("doc") else 0
    candidate_views = range(1, vectors.shape[1]) if direction.endswith("doc") else (0,)
    if direction in ("query_to_query", "doc_to_doc"):  # texts of the same example are no candidates
        is_hidden = is_hidden | jnp.eye(len(vectors), dtype=bool)[:, :, None]
    blocks = []
    for view in candidate_views:
        logits = logit_scale * products(vectors[:, anchor_view], vectors[:, view])
        blocks.append(jnp.where(is_hidden[:, :, view], HIDDEN, logits))
    return jnp.concatenate(blocks, axis=1)


def false_negatives(keys: Integer[Array, "b v 2"]) -> Bool[Array, "b b v"]:
    """Whether view v of example j is a false negative of example i, as `[i, j, v]`: a text that repeats i's query or positive.

    A query and its positive belong together, so if one of them is a false negative, both are. `keys` are hashes of the texts.
    """
    is_equal = jnp.all(keys[:, None, :2, None] == keys[None, :, None], axis=-1)  # [i, j, query or positive of i, v]
    repeats = jnp.any(is_equal, axis=2)
    is_other = ~jnp.eye(len(keys), dtype=bool)[:, :, None]  # an example's own pair repeats itself
    pair_repeats = jnp.any(repeats[:, :, :2], axis=2, keepdims=True) & is_other
    return jnp.concatenate([pair_repeats, pair_repeats, repeats[:, :, 2:]], axis=2)
