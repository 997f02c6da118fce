"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's format.

Documents are ranked exactly, by cosine with the query, or by dot product if the model's checkpoint says so. A model prepends its
prompts for queries and documents, if it has them. With an index model, queries are also run on its vectors of the documents; with
a reranker, a cross-encoder also reorders the first documents of each query.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer
from jaxdistill.evals import beir
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    RERANKED,
    Evaluation,
    MissingSet,
    Model,
    Result,
    Sources,
    TestSet,
    average_heading,
)
from jaxdistill.evals.ranking import DEPTH, NDCG, means, ordered, query_measures
from jaxdistill.evals.similarity import nonzero_vectors, refuse_same_vectors, unit_or_zero_vectors
from jaxdistill.files import matching
from jaxdistill.ops.nearest import nearest

Ranking = tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]
"""Scores and indices of the best documents for each query, best first; a score of minus infinity means no document."""
PROTOCOL = (
    f"cosine of queries and documents (title and text), or the dot product if the checkpoint says so, exact, {DEPTH:,} "
    "documents deep; measures of trec_eval over all judged queries"
)
RERANKED_DOCUMENTS = 100
"""Number of documents per query that a cross-encoder reorders."""
RERANKING = f"; the first {RERANKED_DOCUMENTS} by the rank of a cross-encoder's scores"
BLOCK_DOCUMENTS = 50_000
"""Number of documents compared at a time."""
METRICS: Mapping[str, str] = {split: f"retrieval-{split}/ndcg@10" for split in beir.SPLITS}
"""Maps splits to the metric that chooses checkpoints by their judgements."""


def ranked_by_vectors(
    embed_query: Embed, embed_document: Embed, known: RetrievalSet, *, similarity: str = "cosine"
) -> Ranking:
    """The `DEPTH` most similar documents of each query, by `cosine` or `dot`; a zero vector has similarity 0 to all."""
    read = nonzero_vectors if similarity == "dot" else unit_or_zero_vectors
    queries, texts = read(embed_query, list(known.queries.values())), list(known.documents.values())
    vectors = read(embed_document, texts)
    refuse_same_vectors(vectors, texts, f"{known.name}: the model finds all {len(vectors):,} documents")
    blocks = (vectors[at : at + BLOCK_DOCUMENTS] for at in range(0, len(vectors), BLOCK_DOCUMENTS))
    return nearest(queries, blocks, count=min(DEPTH, len(vectors)), dot=similarity == "dot")


def reranked(ranking: Ranking, reranker: Scorer, known: RetrievalSet) -> Ranking:
    """Reorders the first `RERANKED_DOCUMENTS` of each query by a cross-encoder's scores; later ones keep their order."""
    scores, rows = np.array(ranking[0], np.float64), np.array(ranking[1])
    asked, places = np.nonzero(scores[:, :RERANKED_DOCUMENTS] != -np.inf)
    if not len(asked):
        return ranking
    queries, texts = list(known.queries.values()), list(known.documents.values())
    read = [queries[query] for query in asked], [texts[row] for row in rows[asked, places]]
    judged = np.asarray(reranker.score(*read), np.float64)
    if bad := int((~np.isfinite(judged)).sum()):
        raise InputError(
            f"the reranker gives NaN or infinity for {bad:,} of {len(judged):,} pairs; its weights are wrong."
        )
    # Documents that the cross-encoder has read come first. By rank, not by an offset: added to a large number, scores of
    # 1e-17 would all be equal.
    scores[asked, places] = np.unique(judged, return_inverse=True)[1] + scores.max() + 1.0
    return _best_first(scores, rows)


def without_itself(ranking: Ranking, known: RetrievalSet) -> Ranking:
    """Removes from each query's ranking the document that is the query itself, unless it is judged relevant."""
    scores, rows = np.array(ranking[0], np.float64), ranking[1]
    place = {name: row for row, name in enumerate(known.documents)}
    for number, query in enumerate(known.queries):
        if query in known.also_documents and known.judged[query].get(query, 0) <= 0:
            scores[number, rows[number] == place[query]] = -np.inf
    return _best_first(scores, rows)


def _best_first(scores: np.ndarray, rows: np.ndarray) -> Ranking:
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def scored(ranking: Ranking, known: RetrievalSet) -> dict[str, float]:
    """`documents/NAME ndcg@10`, `... recall@10`, `... recall@100`, `... mrr@10` and `... map`, in [0, 1]."""
    return _mean_scores(_query_measures(ranking, known), known)


def _query_measures(ranking: Ranking, test_set: RetrievalSet) -> dict[str, dict[str, float]]:
    """Maps queries to the measures of their rankings."""
    rankings = dict(zip(test_set.queries, ordered(*ranking, list(test_set.documents)), strict=True))
    return query_measures(rankings, test_set.judged)


def _mean_scores(by_query: Mapping[str, Mapping[str, float]], test_set: RetrievalSet) -> dict[str, float]:
    return {f"documents/{test_set.name} {name}": score for name, score in means(by_query).items()}


def mean_ndcg(sets: Sequence[RetrievalSet], embed: Embed | Scorer, similarity: str = "cosine") -> Mapping[str, float]:
    """`retrieval-dev/ndcg@10`, in [0, 1], the mean over sets of one split; empty for a cross-encoder. `embed` must be a `RoleEmbed`."""
    if isinstance(embed, Scorer):
        return {}
    query, document = (partial(cast(RoleEmbed, embed), role=role) for role in ("query", "document"))
    ranked = partial(ranked_by_vectors, query, document, similarity=similarity)
    rankings = [without_itself(ranked(known), known) for known in sets]
    scores = [scored(ranking, known) for ranking, known in zip(rankings, sets, strict=True)]
    mean = np.mean([score for of_set in scores for name, score in of_set.items() if name.endswith(NDCG)])
    return {METRICS[sets[0].split]: float(mean)}


def _sets(sources: Sources) -> Iterable[TestSet]:
    """The named sets, or all in `retrieval/` of the data folder: the model alone, with another model's index, with a reranker."""
    specs = sources.retrieval
    if not specs and sources.data:
        inside = Path(sources.data) / "retrieval"
        matching(inside, "*")  # raises for a link to a set that was not fetched
        specs = sorted(str(folder) for folder in inside.glob("*/") if beir.is_set(folder))
    if not specs:
        where = f"{sources.data} has no sets in retrieval/" if sources.data else "no set is named"
        raise MissingSet(
            f"documents: {where}; name sets in BEIR's form with --retrieval=FOLDER, or put them into retrieval/ of --data."
        )
    for spec in dict.fromkeys(specs):
        name = beir.set_name(spec) + (f"-{sources.split}" if sources.split != "test" else "")
        try:
            content = replace(beir.set_files(spec, split=sources.split), name=name)
        except InputError as error:  # raised when it is scored, so that the others still are
            content = error
        asymmetric, reranked = ("", *[ASYMMETRIC] * sources.asymmetric), ("", *[RERANKED] * sources.reranked)
        for with_index, with_reranker in product(asymmetric, reranked):
            yield TestSet(
                name=f"{with_reranker}{with_index}documents/{name}",
                protocol=f"{PROTOCOL}; judgements of the split {sources.split}{RERANKING if with_reranker else ''}",
                files=() if isinstance(content, InputError) else tuple(content),
                content=content,
                prefix=f"{with_reranker}{with_index}",
                uses=tuple(name for name, used in (("index", with_index), ("reranker", with_reranker)) if used),
                is_averaged=not beir.is_crossing(spec),
            )


def _run(model: Model, test_set: TestSet) -> Result:
    if isinstance(test_set.content, InputError):
        raise test_set.content
    retrieval_set = beir.read_set(test_set.content)
    index = model.index if "index" in test_set.uses else None
    assert model.in_roles is not None
    document, similarity = (index or model.in_roles).document, (index or model).similarity
    ranking = without_itself(
        ranked_by_vectors(model.in_roles.query, document, retrieval_set, similarity=similarity), retrieval_set
    )
    if "reranker" in test_set.uses and model.reranker is not None:
        ranking = reranked(ranking, model.reranker, retrieval_set)
    by_query = _query_measures(ranking, retrieval_set)
    details = {f"documents/{retrieval_set.name} {NDCG}": {query: row[NDCG] for query, row in by_query.items()}}
    return Result(_mean_scores(by_query, retrieval_set), note=retrieval_set.note, details=details)


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over sets in one language, if there are several."""
    averages = {}
    for prefix in ("", ASYMMETRIC, RERANKED, f"{RERANKED}{ASYMMETRIC}"):
        scores = [
            score for name, score in measured.items() if name.startswith(f"{prefix}documents/") and name.endswith(NDCG)
        ]
        if len(scores) > 1:
            averages[f"{prefix}{AVERAGE}"] = float(np.mean(scores))
    return averages


def _headings(measured: Collection[str]) -> Mapping[str, str]:
    return average_heading(AVERAGE, "documents, nDCG@10")([name for name in measured if name.endswith(NDCG)])


AVERAGE = f"documents/average {NDCG}"
EVALUATION = Evaluation(
    task="documents",
    scores=("documents",),
    sets=_sets,
    run=_run,
    averages=_averages,
    measure="nDCG, recall, MRR, MAP × 100",
    headings=_headings,
    dev_headings={metric: f"retrieval {split}, nDCG@10" for split, metric in METRICS.items()},
)
