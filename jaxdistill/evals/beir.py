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

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import get_args

from jaxdistill.core import InputError, Split
from jaxdistill.data.columns import MissingColumn
from jaxdistill.data.text import read, tables
from jaxdistill.evals.read_table import table_rows, table_suffix, text_lines
from jaxdistill.files import matching
from jaxdistill.files.reading import foreign_errors

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
    note: str = ""
    """A line about the relevant documents that the corpus lacks; empty if it has all."""


def is_set(folder: Path) -> bool:
    """Whether a folder holds a corpus in one of the formats."""
    return bool(_found(folder, CORPUS))


def is_crossing(spec: str) -> bool:
    """Whether a spec runs the queries of one set on the documents of another (`A+B`)."""
    return len(_folders(spec)) > 1


def set_files(spec: str, *, split: Split, option: str = "--split") -> SetFiles:
    """The files of a set, downloaded from the hub if needed; raises `InputError` if the folder or a file does not exist.

    Args:
      spec: a folder, the name `ORG/NAME` of a data set on the hub, or `A+B`: the queries and judgements of A, the documents
        of B.
      split: split of the judgements, `qrels/SPLIT.tsv`; a set need not have the other splits.
      option: the option that names the split, for errors.
    """
    asked, *others = (_local(name) for name in _folders(spec))
    corpus, queries = ((others or [asked])[0], CORPUS), (asked, QUERIES)
    for folder, patterns in (corpus, queries):
        if not _found(folder, patterns):
            raise InputError(f"{folder} is not a retrieval set in BEIR's format: it has none of {', '.join(patterns)}.")
    qrels = _qrels(asked, _folders(spec)[0])
    if split not in qrels:
        others = ", ".join(f"{other} ({path.name})" for other, path in qrels.items())
        advice = f"add them, or give {option}={next(iter(qrels))}" if qrels else "add them"
        raise InputError(
            f"{asked} has no judgements of the split {split} (qrels/{split}.tsv), only of {others or 'none'}; {advice}."
        )
    return SetFiles(set_name(spec), _found(*corpus), _found(*queries), qrels[split], split)


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
    return next(filter(None, (matching(folder, pattern) for pattern in patterns)), [])


def _qrels(folder: Path, name: str) -> dict[Split, Path]:
    """Maps splits to their judgements, in a set's folder or in the folder `NAME-qrels` beside it or on the hub."""
    beside = folder.resolve().parent / f"{folder.resolve().name}-qrels"
    found = _splits(folder, beside)
    if not found and not Path(name).is_dir():
        found = _splits(folder, _fetched(f"{name}-qrels", ("*.tsv", "*.tsv.gz")))
    return found


def _splits(folder: Path, beside: Path) -> dict[Split, Path]:
    found: dict[Split, Path] = {}
    for split in SPLITS:
        lone = ["qrels.tsv", "qrels.tsv.gz"] if split == "test" else []
        inside = [folder / name for name in (f"qrels/{split}.tsv", f"qrels/{split}.tsv.gz", *lone)]
        paths = [*inside, beside / f"{split}.tsv", beside / f"{split}.tsv.gz"]
        if path := next(filter(Path.is_file, paths), None):
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
    queries = {name: cells[0] for name, cells in _texts(files.queries, ("text",)).items()}
    if empty := [name for name, text in queries.items() if not text]:
        raise InputError(f"{_shown(files.queries)}: the query {empty[0]!r:.60} has no text.")
    corpus = _texts(files.corpus, ("title", "text"))
    documents = {name: " ".join(filter(None, cells)) for name, cells in corpus.items()}
    if not any(documents.values()):
        raise InputError(f"{_shown(files.corpus)}: none of its {len(documents):,} documents has text.")
    judged: dict[str, dict[str, int]] = {}
    for where, query, document, relevance in _judgements(files.qrels):
        if query not in queries:
            raise InputError(f"{where} judges the query {query!r:.60}, which {_shown(files.queries)} does not have.")
        before = judged.setdefault(query, {}).setdefault(document, relevance)
        if before != relevance:
            raise InputError(
                f"{where} judges query {query!r:.60} and document {document!r:.60} twice, as {before} and {relevance}; "
                "keep one of the lines."
            )
    relevant = {name for of_query in judged.values() for name, relevance in of_query.items() if relevance > 0}
    absent, note = len(relevant - documents.keys()), ""
    if absent == len(relevant):
        raise InputError(
            f"{files.qrels}: no query has a relevant document that {_shown(files.corpus)} has; at least one judgement must be above 0."
        )
    if absent:
        note = f"{files.name}: {_shown(files.corpus)} lacks {absent:,} of the relevant documents; they count as never found"
        log.warning(note)
    return RetrievalSet(
        name=files.name,
        split=files.split,
        documents=documents,
        queries={query: text for query, text in queries.items() if query in judged},
        judged={query: judged[query] for query in queries if query in judged},
        also_documents={
            name for name in queries.keys() & corpus.keys() if queries[name].split() == corpus[name][-1].split()
        },
        note=note,
    )


def _texts(paths: Sequence[Path], fields: Sequence[str]) -> dict[str, list[str]]:
    """Maps the id of each record to its cells, without outer white space."""
    texts: dict[str, list[str]] = {}
    for path in paths:
        for name, *cells in (_tsv_records if table_suffix(path) == ".tsv" else _records)(path, fields):
            if not name.strip() or name in texts:
                raise InputError(
                    f"{path} has the id {name!r:.60} {'twice' if name in texts else 'for a record'}; ids must differ and not be empty."
                )
            texts[name] = [cell.strip() for cell in cells]
    if not texts:
        raise InputError(f"{_shown(paths)} is empty: it has no record.")
    return texts


def _records(path: Path, fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields id and fields of each record of a `.jsonl` or `.parquet` file, which may lack titles."""
    names = {"id": "_id|id"} | {field: field for field in fields}
    try:
        next(tables(str(path), names, numbers=True), None)
    except MissingColumn:
        if "title" not in fields:
            raise
        del names["title"]
    yield from read([str(path)], names, numbers=True)


def _tsv_records(path: Path, fields: Sequence[str]) -> Iterator[list[str]]:
    """Yields id and fields of each row; a first row with the fields' names is a header."""
    order = [*range(1 + len(fields))]
    for number, (line, cells) in enumerate(table_rows(path)):
        if len(cells) != len(order):
            raise InputError(f"{path}:{line}: {len(cells)} fields; id, {', '.join(fields)} are expected.")
        names = [cell.strip().lower() for cell in cells]
        if number == 0 and {*fields} <= {*names}:
            order = [*(set(order) - {names.index(field) for field in fields}), *map(names.index, fields)]
        else:
            yield [cells[column] for column in order]


def _judgements(path: Path) -> Iterator[tuple[str, str, str, int]]:
    """Yields (file and line, query, document, relevance) of each row; a first row that does not end in a number is a header."""
    for number, (line, text) in enumerate((line, text) for line, text in text_lines(path) if text.strip()):
        cells = text.split("\t")
        try:
            relevance = float(cells[2])
        except (ValueError, IndexError):
            relevance = float("nan")
        if number == 0 and len(cells) == 3 and relevance != relevance and cells[0].lower().startswith("q"):
            continue
        if len(cells) != 3 or not relevance.is_integer():
            raise InputError(
                f"{path}:{line}: a judgement is query, document and a whole number, separated by tabs; got {text!r:.60}."
            )
        yield f"{path}:{line}", cells[0], cells[1], int(relevance)


def _shown(paths: Sequence[Path]) -> str:
    """The file, or the folder of several files, for errors."""
    return str(paths[0] if len(paths) == 1 else paths[0].parent)
