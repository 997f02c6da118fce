"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's form.

Queries and documents are ranked by cosine similarity, exactly. A model with prompts for queries and documents puts them
before the texts. With an index model, its vectors of the documents are searched too; with a reranker, a cross-encoder
puts the first documents of each query in order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, Scorer
from jaxdistill.evals import beir
from jaxdistill.evals.beir import RetrievalSet, SetFiles
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    RERANKED,
    Evaluation,
    Model,
    Ranking,
    Sources,
    Unit,
    index_ways,
    no_folder,
)
from jaxdistill.evals.ranking import DEPTH, NDCG, measures, ordered
from jaxdistill.evals.similarity import unit_vectors
from jaxdistill.ops.nearest import nearest

PROTOCOL = f"cosine of queries and documents (title and text), exact, {DEPTH:,} documents deep; measures of trec_eval"
RERANKED_DOCUMENTS = 100
"""Documents of each query that a cross-encoder puts in order."""
RERANKING = f"; the first {RERANKED_DOCUMENTS} in the order of a cross-encoder"
BLOCK_DOCUMENTS = 50_000
"""Documents compared at a time."""
ENGLISH = "en"


def ranked_by_vectors(embed_query: Embed, embed_document: Embed, known: RetrievalSet) -> Ranking:
    """The `DEPTH` nearest documents of each query."""
    queries = unit_vectors(embed_query, list(known.queries.values()))
    vectors = unit_vectors(embed_document, list(known.documents.values()))
    blocks = (vectors[at : at + BLOCK_DOCUMENTS] for at in range(0, len(vectors), BLOCK_DOCUMENTS))
    return nearest(queries, blocks, count=min(DEPTH, len(vectors)))


def reranked(ranking: Ranking, reranker: Scorer, known: RetrievalSet) -> Ranking:
    """The first `RERANKED_DOCUMENTS` of each query in the order of a cross-encoder's scores; later ones keep their order."""
    scores, rows = np.array(ranking[0], np.float64), np.array(ranking[1])
    count = min(RERANKED_DOCUMENTS, rows.shape[1])
    texts = list(known.documents.values())
    first = [query for query in known.queries.values() for _ in range(count)]
    judged = np.asarray(reranker.score(first, [texts[row] for row in rows[:, :count].ravel()]), np.float64)
    # Above every cosine: what the cross-encoder has read comes first.
    scores[:, :count] = judged.reshape(-1, count) - judged.min() + scores.max() + 1.0
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def scored(ranking: Ranking, known: RetrievalSet) -> dict[str, float]:
    """`documents/NAME ndcg@10`, `... recall@10`, `... recall@100`, `... mrr@10` and `... map`, in [0, 1]."""
    named = dict(zip(known.queries, ordered(*ranking, list(known.documents)), strict=True))
    return {f"documents/{known.name} {name}": score for name, score in measures(named, known.judged).items()}


def specs(sources: Sources) -> Sequence[str]:
    """The sets to measure: those that are named, or all in `retrieval/` of the data folder.

    Of a set in several languages, `NAME-LANGUAGE`, the queries of each are also asked in the English documents.
    """
    if sources.retrieval or not sources.data:
        return sources.retrieval
    inside = Path(sources.data) / "retrieval"
    folders = sorted(folder for folder in inside.glob("*/") if beir.is_set(folder))
    english = {
        folder.name.removesuffix(f"-{ENGLISH}"): folder for folder in folders if folder.name.endswith(f"-{ENGLISH}")
    }
    crossed = [
        f"{folder}+{english[name]}"
        for folder in folders
        if (name := folder.name.rpartition("-")[0]) in english and folder != english[name]
    ]
    return [*map(str, folders), *crossed]


def _units(sources: Sources) -> Iterable[Unit | str]:
    found = [beir.set_files(spec) for spec in specs(sources)]
    if not found:
        yield f"documents: {sources.data} has no sets in retrieval/." if sources.data else no_folder("documents")
    for files in found:
        for asymmetric, is_reranked in product(index_ways(sources), (False, True) if sources.reranked else (False,)):
            prefix = RERANKED * is_reranked + ASYMMETRIC * asymmetric
            yield Unit(
                name=f"{prefix}documents/{files.name}",
                protocol=f"{PROTOCOL}{RERANKING * is_reranked}",
                files=tuple(files),
                run=partial(_values, files, prefix),
                asks_index=asymmetric,
                asks_reranker=is_reranked,
            )


def _values(files: SetFiles, prefix: str, model: Model) -> dict[str, dict[str, float]]:
    known = beir.read_set(files)
    if model.rank is not None and ASYMMETRIC in prefix:
        return {"scores": {}}  # it has no vectors to ask another model's index with
    if model.rank is not None:
        texts = list(known.documents.values())
        ranking = model.rank(list(known.queries.values()), texts, min(DEPTH, len(texts)))
    else:
        embed_document = model.index_document if ASYMMETRIC in prefix else model.embed_document
        assert model.embed_query is not None and embed_document is not None  # all models but BM25 have them
        ranking = ranked_by_vectors(model.embed_query, embed_document, known)
    if RERANKED in prefix and model.reranker is not None:
        ranking = reranked(ranking, model.reranker, known)
    return {"scores": {f"{prefix}{name}": value for name, value in scored(ranking, known).items()}}


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over sets in one language, if there are several."""
    found = {}
    for prefix in PREFIXES:
        begin = f"{prefix}documents/"
        own = [
            value
            for name, value in measured.items()
            if name.startswith(begin) and name.endswith(NDCG) and "+" not in name
        ]
        if len(own) > 1:
            found[f"{prefix}{AVERAGE}"] = float(np.mean(own))
    return found


def _headings(measured: Collection[str]) -> Mapping[str, str]:
    averages = {f"{prefix}{AVERAGE}": f"{prefix}documents, nDCG@10" for prefix in PREFIXES}
    found = {name: heading for name, heading in averages.items() if name in measured}
    return found or {name: name for name in measured if name.endswith(NDCG)}


PREFIXES = ("", ASYMMETRIC, RERANKED, f"{RERANKED}{ASYMMETRIC}")
AVERAGE = f"documents/average {NDCG}"
EVALUATION = Evaluation(
    group="documents",
    scores=("documents",),
    measure="nDCG, recall, MRR, MAP × 100",
    units=_units,
    averages=_averages,
    headings=_headings,
)
