"""Measures of rankings, as trec_eval defines them: nDCG, recall, reciprocal rank, average precision.

All are means over judged queries, in [0, 1]. A document without a judgement counts as irrelevant, and a query without a
relevant document counts as 0. The gain of nDCG is the relevance itself (trec_eval, BEIR), not `2^relevance - 1`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Integer

DEPTH = 1000
"""Number of a ranking's documents that average precision reads, as in trec_eval."""
NDCG = "ndcg@10"
"""The main measure, as in BEIR."""


def query_measures(
    rankings: Mapping[str, Sequence[str]], judged: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, float]]:
    """nDCG@10, recall@10 and @100, MRR@10 and average precision of each query.

    Args:
      rankings: maps queries to documents, best first; at most `DEPTH` count.
      judged: maps queries to the relevance of their judged documents.
    """
    return {
        query: _of_query([judged[query].get(name, 0) for name in rankings[query][:DEPTH]], judged[query])
        for query in judged
    }


def means(by_query: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The means of `query_measures` over queries."""
    rows = [*by_query.values()]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def ordered(
    scores: Float[np.ndarray, "q best"], rows: Integer[np.ndarray, "q best"], names: Sequence[str]
) -> list[list[str]]:
    """Names of each query's documents, best first. Ties are ordered as in trec_eval, by descending name.

    Leaves out documents with a score of minus infinity.
    """
    place = np.empty(len(names), np.int64)
    place[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    order = np.lexsort((-place[rows], -scores), axis=1)
    scores, rows = np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
    return [[names[int(row)] for row in ranked[of != -np.inf]] for of, ranked in zip(scores, rows, strict=True)]


def _of_query(relevances: Sequence[int], judged: Mapping[str, int]) -> dict[str, float]:
    gains = np.maximum(np.array(relevances, np.float64), 0.0)
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
