"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's format.

Documents are ranked exactly, by cosine with the query, or by dot product if the model's checkpoint says so. A model prepends its
prompts for queries and documents, if it has them. With an index model, queries are also run on its vectors of the documents.

All measures are means over judged queries, in [0, 1], as trec_eval defines them. A document without a judgement counts as
irrelevant, and a query without a relevant document counts as 0. The gain of nDCG is the relevance itself (trec_eval, BEIR), not
`2^relevance - 1`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer
from jaxdistill.evals import beir
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    PREFIXES,
    Evaluation,
    MissingSet,
    Model,
    Result,
    Sources,
    TestSet,
)
from jaxdistill.evals.similarity import nonzero_vectors, refuse_same_vectors, unit_or_zero_vectors
from jaxdistill.ops.nearest import nearest

Ranking = tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]
"""Scores and indices of the best documents for each query, best first; a score of minus infinity means no document."""
DEPTH = 1000
"""Number of a ranking's documents that average precision reads, as in trec_eval."""
NDCG = "ndcg@10"
"""The main measure, as in BEIR."""
PROTOCOL = (
    f"cosine of queries and documents (title and text), or the dot product if the checkpoint says so, exact, {DEPTH:,} "
    "documents deep; measures of trec_eval over all judged queries"
)
BLOCK_DOCUMENTS = 50_000
"""Number of documents compared at a time."""
METRICS: Mapping[str, str] = {split: f"retrieval-{split}/{NDCG}" for split in beir.SPLITS}
"""Maps splits to the metric that chooses checkpoints by their judgements."""


def ranked_by_vectors(
    embed_query: Embed, embed_document: Embed, test_set: RetrievalSet, *, similarity: str = "cosine"
) -> Ranking:
    """The `DEPTH` most similar documents of each query, by `cosine` or `dot`; a zero vector has similarity 0 to all."""
    read = nonzero_vectors if similarity == "dot" else unit_or_zero_vectors
    queries, texts = read(embed_query, list(test_set.queries.values())), list(test_set.documents.values())
    vectors = read(embed_document, texts)
    refuse_same_vectors(vectors, texts, f"{test_set.name}: the model finds all {len(vectors):,} documents")
    blocks = (vectors[at : at + BLOCK_DOCUMENTS] for at in range(0, len(vectors), BLOCK_DOCUMENTS))
    return nearest(queries, blocks, count=min(DEPTH, len(vectors)), dot=similarity == "dot")


def without_itself(ranking: Ranking, test_set: RetrievalSet) -> Ranking:
    """Removes from each query's ranking the document that is the query itself, unless it is judged relevant."""
    scores, rows = np.array(ranking[0], np.float64), ranking[1]
    row_of = {name: row for row, name in enumerate(test_set.documents)}
    for number, query in enumerate(test_set.queries):
        if query in test_set.also_documents and test_set.judged[query].get(query, 0) <= 0:
            scores[number, rows[number] == row_of[query]] = -np.inf
    return _best_first(scores, rows)


def _best_first(scores: np.ndarray, rows: np.ndarray) -> Ranking:
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def ordered(
    scores: Float[np.ndarray, "q best"], rows: Integer[np.ndarray, "q best"], names: Sequence[str]
) -> list[list[str]]:
    """Names of each query's documents, best first. Ties are ordered as in trec_eval, by descending name.

    Leaves out documents with a score of minus infinity.
    """
    rank = np.empty(len(names), np.int64)
    rank[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    order = np.lexsort((-rank[rows], -scores), axis=1)
    scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return [[names[int(row)] for row in ranked[of != -np.inf]] for of, ranked in zip(scores, rows, strict=True)]


def query_measures(ranked: Sequence[str], judged: Mapping[str, int]) -> dict[str, float]:
    """nDCG@10, recall@10 and @100, MRR@10 and average precision of a query's documents, best first."""
    gains = np.maximum(np.array([judged.get(name, 0) for name in ranked[:DEPTH]], np.float64), 0.0)
    ideal = np.sort(np.array([value for value in judged.values() if value > 0], np.float64))[::-1]
    relevant, best = max(len(ideal), 1), _discounted(ideal[:10]) or 1.0
    hits = gains > 0
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    first = np.flatnonzero(hits[:10])
    return {
        NDCG: _discounted(gains[:10]) / best,
        "recall@10": float(hits[:10].sum() / relevant),
        "recall@100": float(hits[:100].sum() / relevant),
        "mrr@10": float(1.0 / (first[0] + 1)) if len(first) else 0.0,
        "map": float((precision * hits).sum() / relevant),
    }


def _discounted(gains: Float[np.ndarray, " best"]) -> float:
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))


def measures(ranking: Ranking, test_set: RetrievalSet) -> dict[str, dict[str, float]]:
    """Maps measures to their values by query."""
    rankings = zip(test_set.queries, ordered(*ranking, list(test_set.documents)), strict=True)
    by_query = {query: query_measures(ranked, test_set.judged[query]) for query, ranked in rankings}
    return {name: {query: row[name] for query, row in by_query.items()} for name in next(iter(by_query.values()))}


def scored(ranking: Ranking, test_set: RetrievalSet) -> dict[str, float]:
    """`documents/NAME ndcg@10`, `... recall@10`, `... recall@100`, `... mrr@10` and `... map`, in [0, 1]."""
    by_measure = measures(ranking, test_set)
    return {f"documents/{test_set.name} {name}": float(np.mean([*row.values()])) for name, row in by_measure.items()}


def mean_ndcg(sets: Sequence[RetrievalSet], embed: Embed | Scorer, similarity: str = "cosine") -> Mapping[str, float]:
    """`retrieval-dev/ndcg@10`, in [0, 1], the mean over sets of one split; empty for a cross-encoder. `embed` must be a `RoleEmbed`."""
    if isinstance(embed, Scorer):
        return {}
    query, document = (partial(cast(RoleEmbed, embed), role=role) for role in ("query", "document"))
    rankings = [without_itself(ranked_by_vectors(query, document, one, similarity=similarity), one) for one in sets]
    scores = [scored(ranking, one)[f"documents/{one.name} {NDCG}"] for ranking, one in zip(rankings, sets, strict=True)]
    return {METRICS[sets[0].split]: float(np.mean(scores))}


def _sets(sources: Sources) -> Iterable[TestSet]:
    """The named sets, or all in `retrieval/` of the data folder: the model alone, and with another model's index."""
    specs = sources.retrieval
    if not specs and sources.data:
        specs = sorted(str(folder) for folder in Path(sources.data).glob("retrieval/*/") if beir.is_set(folder))
    if not specs:
        where = f"{sources.data} has no sets in retrieval/" if sources.data else "no set is named"
        raise MissingSet(
            f"documents: {where}; name sets in BEIR's form with retrieval=FOLDER, or put them into retrieval/ of data."
        )
    for spec in dict.fromkeys(specs):
        name = beir.set_name(spec) + (f"-{sources.split}" if sources.split != "test" else "")
        try:
            content = replace(beir.set_files(spec, split=sources.split), name=name)
        except InputError as error:  # raised when it is scored, so that the others still are
            content = error
        for prefix in ("", *[ASYMMETRIC] * sources.asymmetric):
            yield TestSet(
                name=f"{prefix}documents/{name}",
                protocol=f"{PROTOCOL}; judgements of the split {sources.split}",
                files=() if isinstance(content, InputError) else tuple(content),
                content=content,
                prefix=prefix,
                uses=("index_model",) if prefix else (),
                is_averaged=not beir.is_crossing(spec),
            )


def _run(model: Model, test_set: TestSet) -> Result:
    if isinstance(test_set.content, InputError):
        raise test_set.content
    read = beir.read_set(test_set.content)
    document, similarity = model.document, model.similarity
    if "index_model" in test_set.uses:
        document, similarity = model.index, model.index_similarity
    assert model.query is not None and document is not None
    ranking = without_itself(ranked_by_vectors(model.query, document, read, similarity=similarity), read)
    details = {f"documents/{read.name} {NDCG}": measures(ranking, read)[NDCG]}
    return Result(scored(ranking, read), details=details)


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over sets in one language, if there are several."""
    of_prefix = {
        prefix: [
            score for name, score in measured.items() if name.startswith(f"{prefix}documents/") and name.endswith(NDCG)
        ]
        for prefix in PREFIXES
    }
    return {f"{prefix}{AVERAGE}": float(np.mean(scores)) for prefix, scores in of_prefix.items() if len(scores) > 1}


AVERAGE = f"documents/average {NDCG}"
EVALUATION = Evaluation(
    task="documents",
    scores=("documents",),
    sets=_sets,
    run=_run,
    averages=_averages,
    headings={AVERAGE: "documents, nDCG@10"},
    is_main=lambda name: name.endswith(NDCG),
    dev_headings={metric: f"retrieval {split}, nDCG@10" for split, metric in METRICS.items()},
)
