"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's format.

Documents are ranked exactly, by cosine with the query, or by dot product if the model's checkpoint says so.

All measures are means over judged queries, in [0, 1], as trec_eval defines them. A document without a judgement is irrelevant. A query
without a relevant document counts as 0. The gain of nDCG is the relevance itself (trec_eval, BEIR), not `2^relevance - 1`.

A set (BEIR, Thakur et al., NeurIPS Datasets 2021, https://arxiv.org/abs/2104.08663) is a folder with documents (`corpus`), queries
(`queries`) and judgements (`qrels`); docs/guide/evaluation.md has their names and forms.
"""

import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer, Split
from jaxdistill.core.files import foreign_errors, make_folder_atomic
from jaxdistill.core.ops.nearest import nearest
from jaxdistill.core.paths import cache_folder
from jaxdistill.data.text import read
from jaxdistill.evals import evaluation
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Result, Sources, TestSet
from jaxdistill.models.vectors import finite_vectors, unit_rows

PARTS = ("corpus", "queries")
FORMS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", "/*.parquet")
"""Ends of the names of the `PARTS`."""
JUDGEMENT = ("query-id", "corpus-id", "score")
SPLITS: tuple[Split, ...] = get_args(Split)
NANOBEIR = tuple(
    f"sentence-transformers/NanoBEIR-en:Nano{name}"
    for name in "ArguAna ClimateFEVER DBPedia FEVER FiQA2018 HotpotQA MSMARCO NFCorpus NQ QuoraRetrieval SCIDOCS SciFact Touche2020".split()
)
"""50 queries of each set of BEIR, and a few thousand documents."""
ASYMMETRIC = "asymmetric "
"""Prefix of scores of retrieval in another model's index."""
DEPTH = 1000
"""Number of documents in a ranking, as in trec_eval."""
NDCG = "ndcg@10"
AVERAGE = f"documents/average {NDCG}"
PROTOCOL = (
    f"cosine of queries and documents (title and text), or the dot product if the checkpoint says so, exact, {DEPTH:,} "
    "documents deep; measures of trec_eval over all judged queries"
)
BLOCK_DOCUMENTS = 50_000
METRICS: Mapping[str, str] = {split: f"retrieval-{split}/{NDCG}" for split in SPLITS}
"""Maps splits to the metric that chooses checkpoints by their judgements."""
Ranking = tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]
"""Scores and indices of the most similar documents for each query, best first."""

log = logging.getLogger(__name__)


class SetFiles(NamedTuple):
    """The files of a set; `corpus` and `queries` are one file each, or the parts of a Parquet table."""

    name: str
    corpus: Sequence[Path]
    queries: Sequence[Path]
    qrels: Path
    split: Split
    """Of the judgements in `qrels`."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files of the set."""
        return (*self.corpus, *self.queries, self.qrels)


@dataclass(frozen=True, kw_only=True)
class RetrievalSet:
    """Documents, judged queries, and the judgements."""

    name: str
    split: Split
    documents: Mapping[str, str]
    """Maps ids to title and text."""
    queries: Mapping[str, str]
    """Maps ids to texts, of judged queries only."""
    judged: Mapping[str, Mapping[str, int]]
    """Maps query ids to judged document ids and their relevance; above 0 is relevant."""
    also_documents: Collection[str]
    """Ids shared by a query and a document with the same text, as in ArguAna and Quora."""


def set_files(spec: str, *, split: Split, option: str = "split") -> SetFiles:
    """The files of a set, downloaded from the hub if needed; raises `InputError` if the folder or a file does not exist.

    Args:
      spec: a folder, `ORG/NAME` or `ORG/COLLECTION:SET` on the hub, or `A+B`: queries and judgements of A, documents of B.
      split: split of the judgements, `qrels/SPLIT.tsv`; a set need not have the other splits.
      option: the option that names the split, for errors.
    """
    specs = [spec] if Path(spec).is_dir() else spec.split("+", 1)  # the path of one set may contain `+`
    names, folders = zip(*map(_located, specs), strict=True)
    query_folder, corpus_folder = folders[0], folders[-1]
    qrels_folder = query_folder.resolve().with_name(f"{query_folder.resolve().name}-qrels")
    if not any(query_folder.glob("qrels*")) and not Path(specs[0]).is_dir():
        _, qrels_folder = _located(f"{specs[0]}-qrels")
    qrels: dict[Split, Path] = {}
    for name in SPLITS:
        paths = [query_folder / f"qrels/{name}.tsv", qrels_folder / f"{name}.tsv"]
        if name == "test":
            paths.append(query_folder / "qrels.tsv")
        existing = [path for plain in paths for path in (plain, Path(f"{plain}.gz")) if path.is_file()]
        if existing:
            qrels[name] = existing[0]
    corpus, queries = (
        next(filter(None, (sorted(folder.glob(f"{part}{form}")) for form in FORMS)), [])
        for folder, part in zip((corpus_folder, query_folder), PARTS, strict=True)
    )
    if not corpus or not queries or split not in qrels:
        advice = f", or give {option}={next(iter(qrels))}" if qrels else ""
        raise InputError(
            f"{spec} is not a retrieval set in BEIR's format with judgements of the split {split}: it needs corpus.jsonl, queries.jsonl "
            f"(or others of their forms) and qrels/{split}.tsv; it has judgements of {', '.join(qrels) or 'no split'}. Add them{advice}."
        )
    return SetFiles("+".join(names), corpus, queries, qrels[split], split)


def _located(spec: str) -> tuple[str, Path]:
    """The name and the folder of a set; downloads it if it is a data set of the hub, or one set of a collection
    (`ORG/COLLECTION:SET`), whose judgements without a grade are 1."""
    if Path(spec).is_dir():
        return os.path.basename(os.path.abspath(spec)), Path(spec)

    def fill(draft: Path) -> None:
        """Writes the set that is the split `split` of each part of a collection."""
        import datasets

        load: Any = partial(datasets.load_dataset, collection, split=split)
        for part in PARTS:
            load(part).to_json(draft / f"{part}.jsonl")
        lines = ["\t".join(JUDGEMENT)]
        for row in load("qrels"):
            relevant = row["corpus-id"] if isinstance(row["corpus-id"], list) else [row["corpus-id"]]
            lines += [f"{row['query-id']}\t{document}\t{row.get('score', 1)}" for document in relevant]
        (draft / "qrels.tsv").write_text("\n".join(lines) + "\n", "utf-8")

    with foreign_errors(f"retrieval set {spec or 'nothing'} is no folder, and cannot be fetched from the hub"):
        if ":" not in spec:
            from huggingface_hub import snapshot_download

            patterns = [*(f"{part}{form}" for part in PARTS for form in FORMS), "qrels*", "*.tsv", "*.tsv.gz"]
            folder = snapshot_download(spec, repo_type="dataset", allow_patterns=patterns)
            return os.path.basename(spec), Path(folder)
        collection, split = spec.split(":")
        folder = cache_folder() / "retrieval" / collection.replace("/", "--") / split
        if not folder.is_dir():
            make_folder_atomic(folder, fill, what="retrieval sets")
        return split, folder


def read_set(files: SetFiles) -> RetrievalSet:
    """Reads a set, without the queries that have no judgement.

    Raises:
      InputError: a bad row, a duplicate id, two grades of a document for a query, a judged query without text, or no
        relevant document in the corpus.
    """
    queries = {name: row[-1] for name, row in _records(files.queries, ["text"]).items()}
    corpus = _records(files.corpus, ["title", "text"])
    judged: dict[str, dict[str, int]] = {}
    with foreign_errors(f"{files.qrels}: a judgement is query, document and a whole number, separated by tabs"):
        rows = evaluation.read_table(files.qrels, JUDGEMENT, headerless=True)
        has_other_header = rows and not re.fullmatch(r"-?\d+(\.0*)?", rows[0][-1])
        for query, document, grade in rows[1:] if has_other_header else rows:
            relevance = int(re.sub(r"\.0*$", "", grade))
            if judged.setdefault(query, {}).setdefault(document, relevance) != relevance:
                raise InputError(f"{files.qrels} has two grades of {document:.60} for the query {query:.60}; keep one.")
    if lacking := [query for query in judged if not queries.get(query)]:
        raise InputError(f"{files.qrels} judges the query {lacking[0]!r:.60}, of which {files.queries[0]} has no text.")
    relevant = {name for grades in judged.values() for name, relevance in grades.items() if relevance > 0}
    if not relevant & corpus.keys():
        raise InputError(
            f"{files.qrels}: no query has a relevant document that {files.corpus[0]} has; at least one judgement must be above 0."
        )
    if absent := len(relevant - corpus.keys()):
        log.warning("%s lacks %s of the relevant documents; they count as never found", files.corpus[0], f"{absent:,}")
    shared_ids = queries.keys() & corpus.keys()
    return RetrievalSet(
        name=files.name,
        split=files.split,
        documents={name: " ".join(filter(None, row)) for name, row in corpus.items()},
        queries={query: text for query, text in queries.items() if query in judged},
        judged={query: judged[query] for query in queries if query in judged},
        # The last column is the text; `split` ignores differences in white space.
        also_documents={name for name in shared_ids if queries[name].split() == corpus[name][-1].split()},
    )


def _records(paths: Sequence[Path], fields: Sequence[str]) -> dict[str, list[str]]:
    """Maps the id of each record to its fields, without outer white space; a missing title is empty."""
    import fsspec

    records: dict[str, list[str]] = {}
    columns = {"id": "_id|id", **dict(zip(fields, fields, strict=True))}
    for path in paths:
        rows: Iterable[dict[str, Any]]
        with foreign_errors(f"{path}: each record needs the fields _id (or id), {', '.join(fields)}"):
            if ".tsv" in path.suffixes:
                cells = read([str(path)], columns, numbers=True, headerless=True)
                rows = (dict(zip(columns, row, strict=True)) for row in cells if any(row))
                headers = ["_id", "text"], ["id", "text"]  # `read` knows them only in lower case
                rows = (row for row in rows if [row["id"].lower(), row["text"].lower()] not in headers)
            elif path.suffix == ".parquet":
                from pyarrow import parquet

                table = parquet.ParquetFile(path)
                rows = (row for batch in table.iter_batches() for row in batch.to_pylist())
            else:  # not by `read`, because published sets change the types of `metadata` from line to line
                with fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig") as file:
                    rows = [json.loads(line) for line in cast(Any, file) if line.strip()]
            for row in rows:
                row = {"title": "", **row, "id": row["_id" if "_id" in row else "id"]}
                name, *texts = (str("" if row[field] is None else row[field]).strip() for field in columns)
                if not name or name in records:
                    raise InputError(f"{path} has the id {name!r:.60} twice or an empty one; ids must differ.")
                records[name] = texts
    return records


def ranked_by_vectors(
    embed_query: Embed, embed_document: Embed, test_set: RetrievalSet, *, similarity: str = "cosine"
) -> Ranking:
    """The `DEPTH` most similar documents of each query, by `cosine` or `dot`; a zero vector has similarity 0 to all."""
    texts = list(test_set.documents.values())
    queries = finite_vectors(embed_query, list(test_set.queries.values()))
    vectors = finite_vectors(embed_document, texts)
    if similarity != "dot":
        queries, vectors = unit_rows(queries), unit_rows(vectors)
    evaluation.refuse_same_vectors(vectors, texts, f"documents of {test_set.name}")
    blocks = (vectors[start : start + BLOCK_DOCUMENTS] for start in range(0, len(vectors), BLOCK_DOCUMENTS))
    return nearest(queries, blocks, count=min(DEPTH, len(vectors)), dot=similarity == "dot")


def ordered(ranking: Ranking, test_set: RetrievalSet) -> list[list[str]]:
    """Ids of each query's documents, best first. Ties are ordered as in trec_eval, by descending id.

    Leaves out the document that is the query itself, unless it is judged relevant.
    """
    scores, rows = ranking
    ids = list(test_set.documents)
    alphabetic_rank = np.argsort(np.argsort(np.array(ids, dtype=object), kind="stable"))
    order = np.lexsort((-alphabetic_rank[rows], -np.asarray(scores, np.float64)), axis=1)
    rows = np.take_along_axis(rows, order, axis=1)
    rankings = []
    for query, ranked in zip(test_set.queries, rows, strict=True):
        is_itself = query in test_set.also_documents and test_set.judged[query].get(query, 0) <= 0
        rankings.append([ids[row] for row in ranked if not is_itself or ids[row] != query])
    return rankings


def query_measures(ranked: Sequence[str], judged: Mapping[str, int]) -> dict[str, float]:
    """nDCG@10, recall@10 and @100, MRR@10 and average precision of a query, in [0, 1]; `ranked` lists document ids, best first."""

    def discounted(gains: Float[np.ndarray, " best"]) -> float:
        return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))

    gains = np.maximum(np.array([judged.get(name, 0) for name in ranked[:DEPTH]], np.float64), 0.0)
    ideal = np.sort(np.array([value for value in judged.values() if value > 0], np.float64))[::-1]
    # Without a relevant document, all measures are 0.
    relevant, ideal_dcg = max(len(ideal), 1), discounted(ideal[:10]) or 1.0
    hits = gains > 0
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    first = np.flatnonzero(hits[:10])
    return {
        NDCG: discounted(gains[:10]) / ideal_dcg,
        "recall@10": float(hits[:10].sum() / relevant),
        "recall@100": float(hits[:100].sum() / relevant),
        "mrr@10": float(1.0 / (first[0] + 1)) if len(first) else 0.0,
        "map": float((precision * hits).sum() / relevant),
    }


def scored(ranking: Ranking, test_set: RetrievalSet, name: str) -> Result:
    """The means over queries of `query_measures`, in [0, 1], as `NAME ndcg@10` and so on; nDCG@10 of each query by its id as details."""
    by_query: dict[str, dict[str, float]] = {}
    for query, ranked in zip(test_set.queries, ordered(ranking, test_set), strict=True):
        for measure, value in query_measures(ranked, test_set.judged[query]).items():
            by_query.setdefault(f"{name} {measure}", {})[query] = value
    scores = {measure: float(np.mean([*values.values()])) for measure, values in by_query.items()}
    return Result(scores, details={f"{name} {NDCG}": by_query[f"{name} {NDCG}"]})


def mean_ndcg(sets: Sequence[RetrievalSet], embed: Embed | Scorer, similarity: str = "cosine") -> Mapping[str, float]:
    """`retrieval-dev/ndcg@10`, in [0, 1], the mean over sets of one split; empty for a cross-encoder. `embed` must be a `RoleEmbed`."""
    if isinstance(embed, Scorer):
        return {}
    query, document = (partial(cast(RoleEmbed, embed), role=role) for role in ("query", "document"))
    scores = []
    for test_set in sets:
        ranking = ranked_by_vectors(query, document, test_set, similarity=similarity)
        scores.append(scored(ranking, test_set, test_set.name).scores[f"{test_set.name} {NDCG}"])
    return {METRICS[sets[0].split]: float(np.mean(scores))}


def _sets(sources: Sources) -> Iterator[TestSet]:
    """The named sets, or all in `retrieval/` of the data folder: the model alone, and with another model's index."""
    specs = sources.retrieval
    if not specs and sources.data and {*sources.tasks} != {"nanobeir"}:
        specs = sorted(str(path) for path in Path(sources.data).glob("retrieval/*/") if [*path.glob("corpus*")])
    specs = [*specs, *(NANOBEIR if "nanobeir" in sources.tasks else ())]
    if not specs:
        raise MissingSet("needs sets in BEIR's format: retrieval=FOLDER, or retrieval/ in data=FOLDER.")
    prefixes = ["", ASYMMETRIC] if sources.index_model else [""]
    for spec in dict.fromkeys(specs):
        name = spec
        try:
            content = set_files(spec, split=sources.split)
            name = content.name + (f"-{sources.split}" if sources.split != "test" else "")
        except InputError as error:  # raised when it is scored, so that the others still are
            content = error
        for prefix in prefixes:
            yield TestSet(
                name=f"{prefix}documents/{name}",
                protocol=f"{PROTOCOL}; judgements of the split {sources.split}",
                files=content.paths if isinstance(content, SetFiles) else (),
                content=content,
                references=("index_model",) if prefix else (),
            )


def _run(model: Model, test_set: TestSet) -> Result:
    """Scores the model on an index of its own, or on that of the index model; raises the error of a set that was not found."""
    if isinstance(test_set.content, InputError):
        raise test_set.content
    retrieval_set = read_set(test_set.content)
    index = model.index_model if test_set.references else model
    assert model.query is not None and index is not None and index.document is not None
    ranking = ranked_by_vectors(model.query, index.document, retrieval_set, similarity=index.similarity)
    return scored(ranking, retrieval_set, test_set.name)


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over sets if there are several, without sets `A+B`, which measure retrieval across languages."""
    averages = {}
    for prefix in ("", ASYMMETRIC):
        begin = f"{prefix}documents/"
        names = [name for name in measured if name.startswith(begin) and name.endswith(NDCG) and "+" not in name]
        if len(names) > 1:
            averages[f"{prefix}{AVERAGE}"] = float(np.mean([measured[name] for name in names]))
    return averages


EVALUATION = Evaluation(
    task="documents",
    names=("nanobeir",),
    scores=("documents", f"{ASYMMETRIC}documents"),
    sets=_sets,
    run=_run,
    averages=_averages,
    headings={
        AVERAGE: "documents, nDCG@10",
        f"{ASYMMETRIC}{AVERAGE}": f"{ASYMMETRIC}documents, nDCG@10",
        **{metric: f"retrieval {split}, nDCG@10" for split, metric in METRICS.items()},
    },
)
