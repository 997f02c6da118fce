"""InfoNCE on labelled pairs, without a teacher: separates a query's document from the batch's other documents and hard negatives.

sentence-transformers calls it `MultipleNegativesRankingLoss`, and its cached form is `run.accumulate`. With the cosines of queries q,
their positives p, and all documents of the batch, positives and hard negatives, each direction has candidates:

    query_to_doc    of q_i: all documents          query_to_query  of q_i: all other queries
    doc_to_query    of p_i: all queries            doc_to_doc      of p_i: all documents of other examples

    loss_i = log(sum of exp(cosine / temperature) over the candidates) - cosine(q_i, p_i) / temperature

Papers: van den Oord et al., Representation Learning with Contrastive Predictive Coding, 2018 (arXiv 1807.03748); Günther et al.,
Jina Embeddings 2, 2023 (arXiv 2310.19923), section 4, for both directions; Li et al., GTE, 2023 (arXiv 2308.03281), for all four.
Code consulted: sentence-transformers' `MultipleNegativesRankingLoss`, whose names of options these are.

Deliberate difference: that code relies on batches without duplicates; here equal texts of a batch are hidden from each other, see
`repeated`. `gist` also hides negatives that a teacher finds as similar as the positive.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Array, Encoded, InputError, Objective, Params, Positive, Range, Sizes, alias
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
    """What is contrasted with what: `query_to_doc`, which is always one, `doc_to_query`, `query_to_query` and `doc_to_doc`."""
    partition_mode: Literal["joint", "per_direction"] = "joint"
    """One softmax over the candidates of all directions (`joint`), or the mean of one loss for each (`per_direction`), which only
    query_to_doc and doc_to_query have."""
    views: Annotated[tuple[str, ...], Range(least=2)] = ("text", "positive")
    """Columns of the query, its positive and any number of hard negatives, such as `("text", "positive", "negative_1", "negative_2")`."""

    couples_examples = compares_texts = True

    student_views = alias("views")

    def __post_init__(self):
        alone = {"query_to_query", "doc_to_doc"} & {*self.directions} if self.partition_mode == "per_direction" else ()
        if "query_to_doc" not in self.directions or alone:
            raise InputError(
                f"objective.directions={self.directions} must include query_to_doc and, with partition_mode='per_direction', no other "
                "than doc_to_query."
            )

    def init(self, key: jax.Array, sizes: Sizes, seeds: None) -> tuple[Params, Any]:
        """The parameter of a learned scale."""
        return scale_params(self.temperature, self.learned_scale), ()

    def __call__(
        self, params: Params, state: Any, student: Encoded, teacher: None
    ) -> tuple[Float[Array, " b"], Any, Mapping[str, Float[Array, ""]]]:
        """InfoNCE of each pair; `hidden` is the share of sentences that equal texts hide from an example."""
        vectors, factor = unit(student.sentences), scale(params, self.temperature, self.learned_scale)
        count, views, _ = vectors.shape
        hides = jnp.zeros((count, count, views), bool) if student.keys is None else repeated(student.keys)
        documents, logits = range(1, views), []
        for direction in self.directions:
            anchor, others = int(direction.startswith("doc")), documents if direction.endswith("doc") else (0,)
            hidden = hides
            if direction in ("query_to_query", "doc_to_doc"):
                hidden = hides | jnp.eye(count, dtype=bool)[:, :, None]
            blocks = [factor * products(vectors[:, anchor], vectors[:, other]) for other in others]
            blocks = [
                jnp.where(hidden[:, :, other], HIDDEN, block) for other, block in zip(others, blocks, strict=True)
            ]
            logits.append(jnp.concatenate(blocks, axis=1))
        if self.partition_mode == "joint":
            logits = [jnp.concatenate(logits, axis=1)]
        cosine = jnp.sum(vectors[:, 0] * vectors[:, 1], axis=-1)
        losses = jnp.mean(jnp.stack([jax.nn.logsumexp(one, axis=1) for one in logits]), axis=0) - factor * cosine
        metrics = {"cosine/positive": jnp.mean(cosine), "hidden": jnp.mean(hides.astype(jnp.float32))}
        return losses, state, metrics | {"temperature": jnp.float32(1.0) / factor}


def repeated(keys: Integer[Array, "b v 2"]) -> Bool[Array, "b b v"]:
    """Whether view v of example j must not serve as a negative of example i, because a text repeats the query or the positive of i.

    The query and the positive of j (not i) are hidden if either of them repeats one; a hard negative only if it does so itself.
    """
    equal = jnp.any(jnp.all(keys[:, None, :2, None] == keys[None, :, None], axis=-1), axis=2)
    related = jnp.any(equal[:, :, :2], axis=2, keepdims=True) & ~jnp.eye(len(keys), dtype=bool)[:, :, None]
    return jnp.concatenate([related, related, equal[:, :, 2:]], axis=2)
