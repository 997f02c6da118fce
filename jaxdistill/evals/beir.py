"""Reads retrieval sets in BEIR's form: documents, queries, and judgements that say which documents answer a query.

A set is a folder with

- `corpus.jsonl` (`_id` or `id`, `title`, `text`) or `corpus.tsv` (id, title, text, with or without a header),
- `queries.jsonl` (`_id` or `id`, `text`) or `queries.tsv` (id, text, likewise),
- some of `qrels/train.tsv`, `qrels/dev.tsv` and `qrels/test.tsv` (query-id, corpus-id, score; a first line whose third field
  is not a number is a header); a lone `qrels.tsv` counts as test,

each plain or `.gz` (BEIR, Thakur et al., NeurIPS Datasets 2021, https://arxiv.org/abs/2104.08663). As in BEIR's sets on the
Hugging Face hub, the tables may also be `corpus/*.parquet` and `queries/*.parquet` with these columns, and the judgements
`test.tsv` and so on in a set NAME-qrels beside the set NAME. A set may be given by its name on the hub. `A+B` runs the queries
of A on the documents of B, which must have the same ids: for a set in two languages, this measures retrieval across them.
"""

import gzip
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, get_args

from jaxdistill.core import InputError, Split
from jaxdistill.evals.read_table import cells
from jaxdistill.files import foreign_errors

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.tsv", "corpus.tsv.gz", "corpus/*.parquet")
QUERIES = ("queries.jsonl", "queries.jsonl.gz", "queries.tsv", "queries.tsv.gz", "queries/*.parquet")
SPLITS: tuple[Split, ...] = get_args(Split)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetFiles:
    """The files of a set; `corpus` and `queries` are one file each, or the parts of a Parquet table."""

    name: str
    corpus: Sequence[Path]
    queries: Sequence[Path]
    qrels: Path
    split: Split
    """The split of the judgements in `qrels`."""

    def __iter__(self) -> Iterator[Path]:
        return iter((*self.corpus, *self.queries, self.qrels))


@dataclass(frozen=True, kw_only=True)
class RetrievalSet:
    """Documents, judged queries, and the judgements."""

    name: str
    split: Split
    """The split of the judgements."""
    documents: Mapping[str, str]
    """Maps ids to title and text."""
    queries: Mapping[str, str]
    """Maps ids to texts, of judged queries only."""
    judged: Mapping[str, Mapping[str, int]]
    """Maps query ids to judged document ids and their relevance; above 0 is relevant."""
    also_documents: Collection[str]
    """Ids shared by a query and a document with the same text, as in ArguAna and Quora."""


def is_set(folder: Path) -> bool:
    """Whether a folder holds a corpus in one of the formats."""
    return bool(_found(folder, CORPUS))


def is_crossing(spec: str) -> bool:
    """Whether a spec runs the queries of one set on the documents of another (`A+B`)."""
    return len(_folders(spec)) > 1


def set_files(spec: str, *, split: Split, option: str = "split") -> SetFiles:
    """The files of a set, downloaded from the hub if needed; raises `InputError` if the folder or a file does not exist.

    Args:
      spec: a folder, the name `ORG/NAME` of a data set on the hub, or `A+B`: the queries and judgements of A, the documents
        of B.
      split: split of the judgements, `qrels/SPLIT.tsv`; a set need not have the other splits.
      option: the option that names the split, for errors.
    """
    names = _folders(spec)
    folders = [_local(name) for name in names]
    of_queries, of_corpus = folders[0], folders[-1]
    corpus, queries = _found(of_corpus, CORPUS), _found(of_queries, QUERIES)
    if not corpus or not queries:
        folder, patterns = (of_queries, QUERIES) if corpus else (of_corpus, CORPUS)
        raise InputError(f"{folder} is not a retrieval set in BEIR's format: it has none of {', '.join(patterns)}.")
    qrels = _qrels(of_queries, names[0])
    if split not in qrels:
        others = ", ".join(f"{other} ({path.name})" for other, path in qrels.items()) or "none"
        advice = f"add them, or give {option}={next(iter(qrels))}" if qrels else "add them"
        raise InputError(
            f"{of_queries} has no judgements of the split {split} (qrels/{split}.tsv), only of {others}; {advice}."
        )
    return SetFiles(set_name(spec), corpus, queries, qrels[split], split)


def set_name(spec: str) -> str:
    """The name of a set's folder; of `A+B`, both."""
    return "+".join(PurePath(os.path.abspath(part)).name for part in _folders(spec))


def _folders(spec: str) -> list[str]:
    """Splits `A+B` into the folders or hub names of queries and documents; a path itself may contain `+`."""
    if Path(spec).is_dir():
        return [spec]
    cuts = [[spec[:at], spec[at + 1 :]] for at, letter in enumerate(spec) if letter == "+"]
    return next((cut for cut in cuts if all(Path(part).is_dir() for part in cut)), spec.split("+", 1))


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that match the first pattern with any match."""
    return next((files for pattern in patterns if (files := sorted(folder.glob(pattern)))), [])


def _qrels(folder: Path, name: str) -> dict[Split, Path]:
    """Maps splits to their judgements, in a set's folder or in the folder `NAME-qrels` beside it or on the hub."""
    beside = folder.resolve().parent / f"{folder.resolve().name}-qrels"
    if not any([*folder.glob("qrels*"), *beside.glob("*.tsv*")]) and not Path(name).is_dir():
        beside = _fetched(f"{name}-qrels", ("*.tsv", "*.tsv.gz"))
    found: dict[Split, Path] = {}
    for split in SPLITS:
        paths = [folder / f"qrels/{split}.tsv", beside / f"{split}.tsv", *[folder / "qrels.tsv"] * (split == "test")]
        if path := next(filter(Path.is_file, (Path(f"{path}{end}") for path in paths for end in ("", ".gz"))), None):
            found[split] = path
    return found


def _local(name: str) -> Path:
    """The folder of a set, downloaded from the hub if it is not a local one."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"retrieval set {name or 'nothing'} is neither a folder nor a name ORG/SET on the hub.")
    return _fetched(name, (*CORPUS, *QUERIES, "qrels*"))


def _fetched(name: str, patterns: Sequence[str]) -> Path:
    """Downloads the files of a hub's data set that match these patterns; returns the folder."""
    from huggingface_hub import snapshot_download

    with foreign_errors(f"the retrieval set {name} cannot be fetched from the hub"):
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=list(patterns)))


def read_set(files: SetFiles) -> RetrievalSet:
    """Reads a set.

    Raises:
      InputError: a bad row, a duplicate id, a query without text, a judgement of a query that the set lacks, contradictory
        judgements, or no relevant document that the set has.
    """
    queries = {name: row[-1] for name, row in _records(files.queries, ["text"]).items()}
    corpus = _records(files.corpus, ["title", "text"])
    documents = {name: " ".join(filter(None, row)) for name, row in corpus.items()}
    if empty := [name for name, text in queries.items() if not text]:
        raise InputError(f"{_shown(files.queries)}: the query {empty[0]!r:.60} has no text.")
    if not any(documents.values()):
        raise InputError(f"{_shown(files.corpus)}: none of its {len(documents):,} documents has text.")
    judged: dict[str, dict[str, int]] = {}
    for query, document, relevance in _judgements(files.qrels):
        if query not in queries:
            raise InputError(
                f"{files.qrels} judges the query {query!r:.60}, which {_shown(files.queries)} does not have."
            )
        if judged.setdefault(query, {}).setdefault(document, relevance) != relevance:
            raise InputError(
                f"{files.qrels} judges query {query!r:.60} and document {document!r:.60} twice; keep one line."
            )
    relevant = {name for of_query in judged.values() for name, relevance in of_query.items() if relevance > 0}
    absent = len(relevant - documents.keys())
    if absent == len(relevant):
        raise InputError(
            f"{files.qrels}: no query has a relevant document that {_shown(files.corpus)} has; at least one judgement must be above 0."
        )
    if absent:
        log.warning(
            "%s lacks %s of the relevant documents; they count as never found", _shown(files.corpus), f"{absent:,}"
        )
    return RetrievalSet(
        name=files.name,
        split=files.split,
        documents=documents,
        queries={query: text for query, text in queries.items() if query in judged},
        judged={query: judged[query] for query in queries if query in judged},
        also_documents={
            name for name in queries.keys() & corpus.keys() if queries[name].split() == corpus[name][-1].split()
        },
    )


def _records(paths: Sequence[Path], fields: list[str]) -> dict[str, list[str]]:
    """Maps the id of each record to its fields, without outer white space; a missing title is empty."""
    records: dict[str, list[str]] = {}
    for path in paths:
        is_table = ".tsv" in path.suffixes
        for name, *row in _tsv_rows(path, fields) if is_table else _named_rows(path, fields):
            if not name or name in records:
                raise InputError(f"{path} has the id {name!r:.60} twice or an empty one; ids must differ.")
            records[name] = row
    if not records:
        raise InputError(f"{_shown(paths)} is empty: it has no record.")
    return records


def _tsv_rows(path: Path, fields: list[str]) -> list[list[str]]:
    """Id and fields of each row; a first row with the fields' names is a header."""
    rows = cells(path)
    if rows and len(rows[0]) != 1 + len(fields):
        raise InputError(f"{path}: {len(rows[0])} fields; id, {', '.join(fields)} are expected.")
    header = [name.lower() for name in rows[0]] if rows else []
    if not {*fields} <= {*header}:
        return rows
    order = [*(column for column, name in enumerate(header) if name not in fields), *map(header.index, fields)]
    return [[row[column] for column in order] for row in rows[1:]]


def _named_rows(path: Path, fields: list[str]) -> Iterator[list[str]]:
    """Id and fields of each record of a `.jsonl` or `.parquet` file."""
    with foreign_errors(f"{path} cannot be read"):
        if path.suffix == ".parquet":
            from pyarrow import parquet

            rows: Iterator[Any] = (
                row for batch in parquet.ParquetFile(path).iter_batches() for row in batch.to_pylist()
            )
        else:
            with (
                gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file
            ):
                rows = iter([json.loads(line) for line in file if line.strip()])
    for number, row in enumerate(rows, 1):
        key = "_id" if "_id" in row else "id"
        if lacking := [name for name in (key, "text") if name not in row]:
            raise InputError(f"{path}: record {number} has no {lacking[0]!r}; it has {', '.join(row)}.")
        yield ["" if (cell := row.get(name)) is None else str(cell).strip() for name in (key, *fields)]


def _judgements(path: Path) -> Iterator[tuple[str, str, int]]:
    """Query, document and relevance of each row; a first row that begins with q and does not end in a number is a header."""
    for number, row in enumerate(cells(path)):
        is_number = re.fullmatch(r"-?\d+(\.0*)?", row[-1]) is not None
        if len(row) != 3 or not is_number:
            if number == 0 and len(row) == 3 and row[0].lower().startswith("q") and row[-1].lower().isidentifier():
                continue
            raise InputError(
                f"{path}: a judgement is query, document and a whole number, separated by tabs; got {row!r:.60}."
            )
        yield row[0], row[1], int(float(row[2]))


def _shown(paths: Sequence[Path]) -> str:
    """The file, or the folder of several files, for errors."""
    return str(paths[0] if len(paths) == 1 else paths[0].parent)
