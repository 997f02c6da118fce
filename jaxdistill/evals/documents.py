"""Measures retrieval of documents: nDCG@10, recall, MRR@10 and MAP on sets in BEIR's format.

Documents are ranked exactly, by cosine with the query, or by dot product if the model's checkpoint says so. Measures are means over
judged queries, in [0, 1], as trec_eval defines them. A document without a judgement is irrelevant. A query without a relevant document
counts as 0. The gain of nDCG is the relevance itself (trec_eval, BEIR), not `2^relevance - 1`.

A set (BEIR, Thakur et al., NeurIPS Datasets 2021, https://arxiv.org/abs/2104.08663) is a folder with documents (`corpus`), queries
(`queries`) and judgements (`qrels`); docs/guide/evaluation.md has their names and forms.
"""

import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, InputError, RoleEmbed, Scorer, Split
from jaxdistill.core.files import foreign_errors
from jaxdistill.core.ops.nearest import nearest
from jaxdistill.core.paths import cache_folder, make_folder
from jaxdistill.data.text import cell_text, read
from jaxdistill.evals import evaluation
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Result, Sources, TestSet
from jaxdistill.models.vectors import finite_vectors, unit_rows

PARTS = ("corpus", "queries")
FORMS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", "/*.parquet")
"""Ends of the names of the `PARTS`."""
QRELS_COLUMNS = ("query-id", "corpus-id", "score")
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
    """The files of a set, with the judgements of one split; `corpus` and `queries` are one file each, or parts of a Parquet table."""

    name: str
    corpus: Sequence[Path]
    queries: Sequence[Path]
    qrels: Path
    split: Split

    @property
    def paths(self) -> tuple[Path, ...]:
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
    queries_in_corpus: Collection[str]
    """Ids of queries that are also documents, with the same id and text, as in ArguAna and Quora."""


def set_files(spec: str, *, split: Split, option: str = "split") -> SetFiles:
    """The files of a set, downloaded from the hub if needed; raises `InputError` if the folder or a file does not exist.

    Args:
      spec: a folder, `ORG/NAME` or `ORG/COLLECTION:SET` on the hub, or `A+B`: queries and judgements of A, documents of B.
      split: split of the judgements, `qrels/SPLIT.tsv`; a set need not have the other splits.
      option: the option that names the split, for errors.
    """
    specs = [spec] if Path(spec).is_dir() else spec.split("+", 1)  # the path of one set may contain `+`
    names, folders = zip(*map(_located, specs), strict=True)
    corpus = _part_files(folders[-1], "corpus")
    queries = _part_files(folders[0], "queries")
    qrels = _qrels_files(specs[0], folders[0])
    if not corpus or not queries or split not in qrels:
        advice = f", or give {option}={next(iter(qrels))}" if qrels and split not in qrels else ""
        raise InputError(
            f"{spec} is not a retrieval set in BEIR's format with judgements of the split {split}: it needs corpus.jsonl, queries.jsonl "
            f"(or others of their forms) and qrels/{split}.tsv; it has judgements of {', '.join(qrels) or 'no split'}. Add them{advice}."
        )
    return SetFiles("+".join(names), corpus, queries, qrels[split], split)


def _qrels_files(spec: str, folder: Path) -> dict[Split, Path]:
    """Maps each split that has judgements to their file, for the set `spec` that lies in `folder`."""
    # On the hub, judgements are in the set itself or in another one, `NAME-qrels`; local copies keep that name.
    other_folder = folder.resolve().with_name(f"{folder.resolve().name}-qrels")
    if not any(folder.glob("qrels*")) and not Path(spec).is_dir():
        _, other_folder = _located(f"{spec}-qrels")
    qrels: dict[Split, Path] = {}
    for split in SPLITS:
        candidates = [folder / f"qrels/{split}.tsv", other_folder / f"{split}.tsv"]
        if split == "test":
            candidates.append(folder / "qrels.tsv")  # names no split, as `_write_set` writes it
        existing = [path for tsv in candidates for path in (tsv, Path(f"{tsv}.gz")) if path.is_file()]
        if existing:
            qrels[split] = existing[0]
    return qrels


def _part_files(folder: Path, part: str) -> list[Path]:
    """The files of `corpus` or `queries` in the first of the `FORMS` that the folder has; empty if it has none."""
    return next(filter(None, (sorted(folder.glob(f"{part}{form}")) for form in FORMS)), [])


def _located(spec: str) -> tuple[str, Path]:
    """The name of a set and its folder, which is downloaded if `spec` names a set on the hub."""
    if Path(spec).is_dir():
        return os.path.basename(os.path.abspath(spec)), Path(spec)
    with foreign_errors(f"retrieval set {spec or 'nothing'} is no folder, and cannot be fetched from the hub"):
        if ":" not in spec:
            from huggingface_hub import snapshot_download

            patterns = [*(f"{part}{form}" for part in PARTS for form in FORMS), "qrels*", "*.tsv", "*.tsv.gz"]
            folder = snapshot_download(spec, repo_type="dataset", allow_patterns=patterns)
            return os.path.basename(spec), Path(folder)
        collection, split = spec.split(":")  # a set is a split of the collection's tables
        folder = cache_folder() / "retrieval" / collection.replace("/", "--") / split
        make_folder(folder, partial(_write_set, collection, split))
        return split, folder


def _write_set(collection: str, split: str, folder: Path) -> None:
    """Writes one set of a collection on the hub, which is a split of each of its tables; judgements without a grade get 1."""
    import datasets

    load: Any = partial(datasets.load_dataset, collection, split=split)
    for part in PARTS:
        load(part).to_json(folder / f"{part}.jsonl")
    lines = ["\t".join(QRELS_COLUMNS)]
    for row in load("qrels"):
        documents = row["corpus-id"] if isinstance(row["corpus-id"], list) else [row["corpus-id"]]
        lines += [f"{row['query-id']}\t{document}\t{row.get('score', 1)}" for document in documents]
    (folder / "qrels.tsv").write_text("\n".join(lines) + "\n", "utf-8")


def read_set(files: SetFiles) -> RetrievalSet:
    """Reads a set, without the queries that have no judgement. Raises `InputError` for a bad row or duplicate id, for judgements that
    contradict each other or the queries, and if no relevant document is in the corpus."""
    queries = {query: text for query, (text,) in _records(files.queries, ["text"]).items()}
    corpus = _records(files.corpus, ["title", "text"])
    judged = _judgements(files.qrels)
    if lacking := [query for query in judged if not queries.get(query)]:
        raise InputError(f"{files.qrels} judges the query {lacking[0]!r:.60}, of which {files.queries[0]} has no text.")
    relevant = {document for grades in judged.values() for document, relevance in grades.items() if relevance > 0}
    if not relevant & corpus.keys():
        raise InputError(f"{files.qrels}: no query has a relevant document that {files.corpus[0]} has, graded above 0.")
    if absent := len(relevant - corpus.keys()):
        log.warning("%s lacks %s of the relevant documents; they count as never found", files.corpus[0], f"{absent:,}")
    shared_ids = queries.keys() & corpus.keys()
    return RetrievalSet(
        name=files.name,
        split=files.split,
        documents={document: " ".join(filter(None, (title, text))) for document, (title, text) in corpus.items()},
        queries={query: text for query, text in queries.items() if query in judged},
        judged={query: judged[query] for query in queries if query in judged},
        # `[-1]` is the text of a document, after its title; `split` ignores differences in white space.
        queries_in_corpus={name for name in shared_ids if queries[name].split() == corpus[name][-1].split()},
    )


def _judgements(path: Path) -> dict[str, dict[str, int]]:
    """Maps each judged query to its judged documents and their relevance."""
    judged: dict[str, dict[str, int]] = {}
    with foreign_errors(f"{path}: a judgement is query, document and a whole number, separated by tabs"):
        rows = evaluation.read_table(path, QRELS_COLUMNS, headerless=True)
        # `read_table` only knows a header with the names in `QRELS_COLUMNS`.
        has_other_header = rows and not re.search(r"\d", rows[0][-1])
        if has_other_header and re.match("doc|corpus|passage", rows[0][0].lower()):
            raise InputError(f"{path} has the document's column {rows[0][0]:.60} before the query's; exchange them.")
        for query, document, grade in rows[1:] if has_other_header else rows:
            relevance = int(re.sub(r"\.0*$", "", grade))  # `1.0` is 1; `int` refuses `1.5`
            if judged.setdefault(query, {}).setdefault(document, relevance) != relevance:
                raise InputError(f"{path} has two grades of {document:.60} for the query {query:.60}; keep one.")
    return judged


def _records(paths: Sequence[Path], fields: Sequence[str]) -> dict[str, list[str]]:
    """Maps the id of each document or query to its `fields`, without outer white space; a missing title is empty."""
    records: dict[str, list[str]] = {}
    for path in paths:
        with foreign_errors(f"{path}: each record needs _id (or id) and {fields[-1]}"):
            for row in _rows(path, fields):
                row = {"title": "", **row, "id": row["_id" if "_id" in row else "id"]}
                values = [row[name] for name in ("id", *fields)]
                if any(isinstance(value, list | dict | bytes) for value in values):
                    raise InputError(f"{path}: a value of the record {values[0]!r:.60} is no text; make it a string.")
                identifier, *texts = [cell_text(value).strip() for value in values]
                if not any(texts) and ".tsv" in path.suffixes:
                    raise InputError(f"{path}: {identifier!r:.60} has no text; remove it, or a line end inside a cell.")
                "".join(texts).encode()  # raises for half of a surrogate pair, which no tokenizer takes
                if not identifier or identifier in records:
                    raise InputError(f"{path} has the id {identifier!r:.60} twice or an empty one; ids must differ.")
                records[identifier] = texts
    return records


def _rows(path: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file of documents or queries, with an `_id` or `id` each."""
    if ".tsv" in path.suffixes:
        columns = {"id": "_id|id", **{field: field for field in fields}}
        for row, cells in enumerate(read([str(path)], columns, numbers=True, headerless=True)):
            # `read` drops a header with these names, but takes one with capitals or other names for a row.
            is_header = row == 0 and re.fullmatch(r"_?(|p|q|doc|document|corpus|passage|query)[_-]?id", cells[0], re.I)
            if any(cells) and not is_header:
                yield dict(zip(columns, cells, strict=True))
    elif path.suffix == ".parquet":
        from pyarrow import parquet

        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    else:  # not by `read`, because published sets change the types of `metadata` from line to line
        import fsspec

        with fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig") as file:
            for number, line in enumerate(cast(Any, file), 1):
                try:
                    if line.strip():
                        yield json.loads(line)
                except ValueError as error:
                    raise InputError(f"{path}:{number} is no JSON ({error}).") from None


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
    """Ids of each query's documents, best first; on ties by descending id, as in trec_eval. Without the document that is the query
    itself, unless it is judged relevant."""
    scores, rows = ranking  # both [queries, best]
    ids = np.array(list(test_set.documents), dtype=object)
    alphabetic_rank = np.argsort(np.argsort(ids, kind="stable"))  # of each document
    # `lexsort` sorts by its last key first: by falling score, and then by falling id.
    order = np.lexsort((-alphabetic_rank[rows], -np.asarray(scores, np.float64)), axis=1)
    rankings = ids[np.take_along_axis(rows, order, axis=1)].tolist()
    for query, ranked in zip(test_set.queries, rankings, strict=True):
        if query in test_set.queries_in_corpus and query in ranked and test_set.judged[query].get(query, 0) <= 0:
            ranked.remove(query)
    return rankings


def query_measures(ranked: Sequence[str], judged: Mapping[str, int]) -> dict[str, float]:
    """nDCG@10, recall@10 and @100, MRR@10 and average precision of a query, in [0, 1]; `ranked` lists document ids, best first."""

    def discounted(gains: Float[np.ndarray, " best"]) -> float:
        return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))

    gains = np.maximum(np.array([judged.get(name, 0) for name in ranked[:DEPTH]], np.float64), 0.0)
    ideal_gains = np.sort(np.array([value for value in judged.values() if value > 0], np.float64))[::-1]
    relevant_count = max(len(ideal_gains), 1)  # so that all measures are 0 without a relevant document
    hits = gains > 0
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    early_hits = np.flatnonzero(hits[:10])
    return {
        NDCG: discounted(gains[:10]) / (discounted(ideal_gains[:10]) or 1.0),
        "recall@10": float(hits[:10].sum() / relevant_count),
        "recall@100": float(hits[:100].sum() / relevant_count),
        "mrr@10": float(1.0 / (early_hits[0] + 1)) if len(early_hits) else 0.0,
        "map": float((precision * hits).sum() / relevant_count),
    }


def scored(ranking: Ranking, test_set: RetrievalSet, name: str) -> Result:
    """Means over queries of the `query_measures`, called `NAME ndcg@10` and so on; `details` has the nDCG@10 of each query."""
    by_measure: dict[str, dict[str, float]] = {}
    for query, ranked in zip(test_set.queries, ordered(ranking, test_set), strict=True):
        for measure, value in query_measures(ranked, test_set.judged[query]).items():
            by_measure.setdefault(f"{name} {measure}", {})[query] = value
    scores = {measure: float(np.mean([*by_query.values()])) for measure, by_query in by_measure.items()}
    return Result(scores, details={f"{name} {NDCG}": by_measure[f"{name} {NDCG}"]})


def mean_ndcg(sets: Sequence[RetrievalSet], embed: Embed | Scorer, similarity: str = "cosine") -> Mapping[str, float]:
    """`retrieval-SPLIT/ndcg@10` of a `RoleEmbed`, the mean over sets of one split, in [0, 1]; empty for a cross-encoder."""
    if isinstance(embed, Scorer):
        return {}
    embed_query = partial(cast(RoleEmbed, embed), role="query")
    embed_document = partial(cast(RoleEmbed, embed), role="document")
    scores = []
    for test_set in sets:
        ranking = ranked_by_vectors(embed_query, embed_document, test_set, similarity=similarity)
        scores.append(scored(ranking, test_set, test_set.name).scores[f"{test_set.name} {NDCG}"])
    return {METRICS[sets[0].split]: float(np.mean(scores))}


def _sets(sources: Sources) -> Iterator[TestSet]:
    """The user's sets or those in the data folder, and NanoBEIR's if asked for; with an index model, each also on its document vectors."""
    specs = list(sources.retrieval)
    is_nanobeir_alone = {*sources.tasks} == {"nanobeir"}  # then the data folder's sets are not wanted
    if not specs and sources.data and not is_nanobeir_alone:
        specs = sorted(str(path) for path in Path(sources.data).glob("retrieval/*/") if [*path.glob("corpus*")])
    if "nanobeir" in sources.tasks:
        specs += NANOBEIR
    if not specs:
        raise MissingSet("needs sets in BEIR's format: retrieval=FOLDER, or retrieval/ in data=FOLDER.")
    prefixes = ["", ASYMMETRIC] if sources.index_model else [""]
    for spec in dict.fromkeys(specs):
        name = spec
        try:
            content = set_files(spec, split=sources.split)
            name = content.name + (f"-{sources.split}" if sources.split != "test" else "")
        except InputError as error:  # `_run` raises it, so that other sets are still scored
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
    """Scores the model on its own index, or on the index model's if the set refers to it; raises the error of a set that is missing."""
    if isinstance(test_set.content, InputError):
        raise test_set.content
    retrieval_set = read_set(test_set.content)
    index = model.index_model if test_set.references else model
    assert model.query is not None and index is not None and index.document is not None
    ranking = ranked_by_vectors(model.query, index.document, retrieval_set, similarity=index.similarity)
    return scored(ranking, retrieval_set, test_set.name)


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean nDCG@10 over several sets, for each kind of index; sets `A+B` are left out, as they measure retrieval across languages."""
    averages = {}
    for prefix in ("", ASYMMETRIC):
        all_names = [name for name in measured if name.startswith(f"{prefix}documents/") and name.endswith(NDCG)]
        names = [name for name in all_names if "+" not in name]
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
