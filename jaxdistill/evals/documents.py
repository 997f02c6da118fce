"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's format.

Documents are ranked exactly, by cosine with the query, or by dot product if the model's checkpoint says so. A model prepends its
prompts for queries and documents, if it has them. With an index model, queries are also run on its vectors of the documents; with
a reranker, a cross-encoder also reorders the first documents of each query.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer, Split
from jaxdistill.evals import beir, beir_files
from jaxdistill.evals.beir import RetrievalSet
from jaxdistill.evals.beir_files import SetFiles
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    RERANKED,
    Absent,
    Evaluation,
    Model,
    Ranking,
    Shown,
    Sources,
    Unit,
    records_digest,
)
from jaxdistill.evals.ranking import DEPTH, NDCG, measures, ordered
from jaxdistill.evals.similarity import nonzero_vectors, refuse_same_vectors, unit_or_zero_vectors
from jaxdistill.files import matching
from jaxdistill.ops.nearest import nearest

PROTOCOL = (
    f"cosine of queries and documents (title and text), or the dot product if the checkpoint says so, exact, {DEPTH:,} "
    "documents deep; measures of trec_eval over all judged queries"
)
RERANKED_DOCUMENTS = 100
"""Number of documents per query that a cross-encoder reorders."""
RERANKING = f"; the first {RERANKED_DOCUMENTS} by the rank of a cross-encoder's scores"
BLOCK_DOCUMENTS = 50_000
"""Number of documents compared at a time."""
ENGLISH = "en"
METRICS: Mapping[str, str] = {split: f"retrieval-{split}/ndcg@10" for split in beir_files.SPLITS}
"""Maps splits to the metric that chooses checkpoints by their judgements."""


def ranked_by_vectors(
    embed_query: Embed, embed_document: Embed, known: RetrievalSet, *, similarity: str = "cosine"
) -> Ranking:
    """The `DEPTH` most similar documents of each query, by `cosine` or `dot`; a zero vector has similarity 0 to all.

    Raises:
      InputError: a vector is not finite, all are zero, or all documents have the same vector.
    """
    read = nonzero_vectors if similarity == "dot" else unit_or_zero_vectors
    queries, texts = read(embed_query, list(known.queries.values())), list(known.documents.values())
    vectors = read(embed_document, texts)
    refuse_same_vectors(vectors, texts, f"{known.name}: the model finds all {len(vectors):,} documents")
    blocks = (vectors[at : at + BLOCK_DOCUMENTS] for at in range(0, len(vectors), BLOCK_DOCUMENTS))
    return nearest(queries, blocks, count=min(DEPTH, len(vectors)), dot=similarity == "dot")


def reranked(ranking: Ranking, reranker: Scorer, known: RetrievalSet) -> Ranking:
    """Reorders the first `RERANKED_DOCUMENTS` of each query by a cross-encoder's scores; later ones keep their order.

    Raises:
      InputError: a score is NaN or infinity.
    """
    scores, rows = np.array(ranking[0], np.float64), np.array(ranking[1])
    asked, places = np.nonzero(scores[:, :RERANKED_DOCUMENTS] != -np.inf)
    if not len(asked):
        return ranking
    queries, texts = list(known.queries.values()), list(known.documents.values())
    read = [queries[query] for query in asked], [texts[row] for row in rows[asked, places]]
    judged = np.asarray(reranker.score(*read), np.float64)
    useless = ~np.isfinite(judged)
    if useless.any():
        raise InputError(
            f"the reranker gives NaN or infinity for {useless.sum():,} of {len(judged):,} pairs, the first with the "
            f"document {read[1][int(np.argmax(useless))]!r:.60}; its weights are wrong."
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
    named = dict(zip(known.queries, ordered(*ranking, list(known.documents)), strict=True))
    return {f"documents/{known.name} {name}": score for name, score in measures(named, known.judged).items()}


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


def specs(sources: Sources) -> Sequence[str]:
    """The sets to measure: the named ones, or all in `retrieval/` of the data folder.

    If the folder has a set in several languages (`NAME-LANGUAGE`), the queries of each language are also run on the English
    documents, provided that most of their answers have the same ids there.
    """
    if sources.retrieval or not sources.data:
        return sources.retrieval
    inside = Path(sources.data) / "retrieval"
    matching(inside, "*")  # raises for a link to a set that was not fetched
    folders = sorted(folder for folder in inside.glob("*/") if beir_files.is_set(folder))
    english = {
        folder.name.removesuffix(f"-{ENGLISH}"): folder for folder in folders if folder.name.endswith(f"-{ENGLISH}")
    }
    crossed = [
        f"{folder}+{english[name]}"
        for folder in folders
        if (name := folder.name.rpartition("-")[0]) in english
        and folder != english[name]
        and _answers_are_those_of(folder, english[name], sources.split)
    ]
    return [*map(str, folders), *crossed]


def _answers_are_those_of(folder: Path, english: Path, split: Split) -> bool:
    try:
        return beir.judges_alike(folder, english, split=split)
    except InputError:  # the set's own unit reports it
        return False


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    named = beir_files.named_sets(specs(sources))
    if not named:
        begin = f"{sources.data} has no sets in retrieval/" if sources.data else "no set is named"
        yield Absent(
            f"documents: {begin}; name sets in BEIR's form with --retrieval=FOLDER, or put them into retrieval/ of --data."
        )
    for spec, name in named.items():
        name = name if sources.split == "test" else f"{name}-{sources.split}"
        yield from units_of(
            _files(spec, name, sources.split), name, sources, is_averaged=not beir_files.is_crossing(spec)
        )


def units_of(
    known: SetFiles | RetrievalSet | InputError, name: str, sources: Sources, *, is_averaged: bool = True
) -> Iterator[Unit]:
    """The units of a set, in files or in memory: the model alone, with another model's index, and with a reranker."""
    in_memory = [known.documents, known.queries, known.judged] if isinstance(known, RetrievalSet) else None
    ways = product((False, True) if sources.asymmetric else (False,), (False, True) if sources.reranked else (False,))
    for asymmetric, is_reranked in ways:
        prefix = RERANKED * is_reranked + ASYMMETRIC * asymmetric
        yield Unit(
            name=f"{prefix}documents/{name}",
            protocol=f"{PROTOCOL}; judgements of the split {sources.split}{RERANKING * is_reranked}",
            files=tuple(known) if isinstance(known, SetFiles) else (),
            content=records_digest(in_memory) if in_memory else "",
            run=partial(_values, known, prefix),
            asks=(*(("index",) if asymmetric else ()), *(("reranker",) if is_reranked else ())),
            is_averaged=is_averaged,
        )


def _files(spec: str, name: str, split: Split) -> SetFiles | InputError:
    """The files of a set, or the error if one is missing; its units raise the error when they run, so others still run."""
    try:
        return replace(beir_files.set_files(spec, split=split), name=name)
    except InputError as error:
        return error


def _values(known: SetFiles | RetrievalSet | InputError, prefix: str, model: Model) -> dict[str, Any]:
    if isinstance(known, InputError):
        raise known
    known = beir.read_set(known) if isinstance(known, SetFiles) else known
    if model.rank is not None and ASYMMETRIC in prefix:
        return {"scores": {}}  # it has no vectors with which to query another model's index
    if model.rank is not None:
        texts = list(known.documents.values())
        ranking = model.rank(list(known.queries.values()), texts, min(DEPTH, len(texts)))
    else:
        searched = model.index if ASYMMETRIC in prefix else model.in_roles
        assert model.in_roles is not None and searched is not None  # all models but BM25 have them
        similarity = model.index_similarity if ASYMMETRIC in prefix else model.similarity
        ranking = ranked_by_vectors(model.in_roles.query, searched.document, known, similarity=similarity)
    ranking = without_itself(ranking, known)
    if RERANKED in prefix and model.reranker is not None:
        ranking = reranked(ranking, model.reranker, known)
    scores = {f"{prefix}{name}": value for name, value in scored(ranking, known).items()}
    return {"scores": scores, **({"note": known.note} if known.note else {})}


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over sets in one language, if there are several; NaN if the unit of a set failed."""
    averages = {}
    for prefix in PREFIXES:
        begin = f"{prefix}documents/"
        own = [
            value
            for name, value in measured.items()
            if name.startswith(begin) and (name.endswith(NDCG) or math.isnan(value))
        ]
        if len(own) > 1:
            averages[f"{prefix}{AVERAGE}"] = float(np.mean(own))
    return averages


def _headings(measured: Collection[str]) -> Mapping[str, str]:
    averages = {f"{prefix}{AVERAGE}": f"{prefix}documents, nDCG@10" for prefix in PREFIXES}
    shown = {name: heading for name, heading in averages.items() if name in measured}
    return shown or {name: name for name in measured if name.endswith(NDCG)}


PREFIXES = ("", ASYMMETRIC, RERANKED, f"{RERANKED}{ASYMMETRIC}")
AVERAGE = f"documents/average {NDCG}"
EVALUATION = Evaluation(
    group="documents",
    scores=("documents",),
    units=_units,
    averages=_averages,
    shown=Shown(
        measure="nDCG, recall, MRR, MAP × 100",
        headings=_headings,
        dev_headings={metric: f"retrieval {split}, nDCG@10" for split, metric in METRICS.items()},
    ),
)
