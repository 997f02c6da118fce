"""Reads retrieval sets in BEIR's form: documents, queries, and judgements of which documents answer a query.

A set is a folder with

- `corpus.jsonl` (`_id`, `title`, `text`) or `corpus.tsv` (id, title, text; no header),
- `queries.jsonl` (`_id`, `text`) or `queries.tsv` (id, text; no header),
- `qrels/test.tsv` (query-id, corpus-id, score; with a header) or `qrels.tsv` (the same without a header),

each plain or `.gz` (BEIR, Thakur et al., NeurIPS Datasets 2021, https://arxiv.org/abs/2104.08663). It may also be the name
of such a data set on the Hugging Face hub. `A+B` asks the queries of A in the documents of B, which needs the same ids: a
set in two languages measures retrieval across them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxdistill.core import InputError
from jaxdistill.evals.read_table import table_suffix, text_lines
from jaxdistill.files.reading import foreign_errors, parsed_json

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.tsv", "corpus.tsv.gz")
QUERIES = ("queries.jsonl", "queries.jsonl.gz", "queries.tsv", "queries.tsv.gz")
QRELS = ("qrels/test.tsv", "qrels/test.tsv.gz", "qrels.tsv", "qrels.tsv.gz")


@dataclass(frozen=True, kw_only=True)
class RetrievalSet:
    """Documents, judged queries, and the judgements."""

    name: str
    documents: Mapping[str, str]
    """Id to title and text."""
    queries: Mapping[str, str]
    """Id to text, of the queries with at least one relevant document."""
    judged: Mapping[str, Mapping[str, int]]
    """Id of a query to its judged documents and their relevance; above 0 is relevant."""


@dataclass(frozen=True, kw_only=True)
class SetFiles:
    """The files of a set."""

    name: str
    corpus: Path
    queries: Path
    qrels: Path

    def __iter__(self) -> Iterator[Path]:
        return iter((self.corpus, self.queries, self.qrels))


def is_set(folder: Path) -> bool:
    """Whether a folder holds a corpus in one of the forms."""
    return any((folder / name).is_file() for name in CORPUS)


def set_files(spec: str) -> SetFiles:
    """The files of a set; raises `InputError` if the folder or one of them does not exist.

    Args:
      spec: a folder, the name `ORG/NAME` of a data set on the hub, or `A+B`: the queries and judgements of A, the documents
        of B.
    """
    asked, plus, indexed = (spec, "", "") if Path(spec).is_dir() else spec.partition("+")
    queries = _folder(asked, spec)
    documents = _folder(indexed, spec) if plus else queries
    return SetFiles(
        name="+".join(Path(part).name for part in ([asked, indexed] if plus else [asked])),
        corpus=_file(documents, CORPUS),
        queries=_file(queries, QUERIES),
        qrels=_file(queries, QRELS),
    )


def read_set(files: SetFiles) -> RetrievalSet:
    """Reads a set.

    Raises:
      InputError: with file and line, for a bad row, an id that appears twice, a text that is empty, or a judgement of a
        query or document that the set does not have; or if no query has a relevant document.
    """
    documents = dict(_texts(files.corpus, ("title", "text"), may_be_empty=True))
    queries = dict(_texts(files.queries, ("text",), may_be_empty=False))
    judged: dict[str, dict[str, int]] = {}
    for line, query, document, relevance in _judgements(files.qrels):
        for kind, found, known, path in (
            ("query", query, queries, files.queries),
            ("document", document, documents, files.corpus),
        ):
            if found not in known:
                raise InputError(f"{files.qrels}:{line} judges the {kind} {found!r:.60}, which {path} does not have.")
        if document in judged.setdefault(query, {}):
            raise InputError(f"{files.qrels}:{line} judges query {query!r:.60} and document {document!r:.60} twice.")
        judged[query][document] = relevance
    answered = {query: text for query, text in queries.items() if any(r > 0 for r in judged.get(query, {}).values())}
    if not answered:
        raise InputError(f"{files.qrels}: no query has a relevant document; at least one judgement must be above 0.")
    return RetrievalSet(
        name=files.name, documents=documents, queries=answered, judged={query: judged[query] for query in answered}
    )


def _texts(path: Path, fields: Sequence[str], *, may_be_empty: bool) -> Iterator[tuple[str, str]]:
    """`(id, text)` of each record, the fields joined by a space; raises `InputError` for an id that appears twice."""
    seen: set[str] = set()
    for line, name, cells in _records(path, fields):
        if name in seen:
            raise InputError(f"{path}:{line} has the id {name!r:.60}, as an earlier line; ids must differ.")
        seen.add(name)
        text = " ".join(cell.strip() for cell in cells if cell.strip())
        if not text and not may_be_empty:
            raise InputError(f"{path}:{line}: the query {name!r:.60} has no text.")
        yield name, text
    if not seen:
        raise InputError(f"{path} is empty: it has no record.")


def _records(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    for line, text in text_lines(path):
        if not text.strip():
            continue
        if table_suffix(path) == ".tsv":
            name, *cells = text.split("\t")
            if len(cells) != len(fields):
                raise InputError(f"{path}:{line}: {len(cells) + 1} fields; id, {', '.join(fields)} are expected.")
        else:
            record = parsed_json(text, f"{path}:{line}")
            if not isinstance(record, dict) or not isinstance(record.get("_id"), str | int):
                raise InputError(f"{path}:{line}: a record is a JSON object with _id, {' and '.join(fields)}.")
            name, cells = str(record["_id"]), [record.get(field) or "" for field in fields]
            if not all(isinstance(cell, str) for cell in cells):
                raise InputError(f"{path}:{line}: {' and '.join(fields)} must be text.")
        yield line, name, cells


def _judgements(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """`(line, query, document, relevance)` of each row; a first row that ends in no number is a header."""
    for line, text in text_lines(path):
        fields = text.split("\t")
        if not text.strip() or (line == 1 and len(fields) == 3 and not _is_number(fields[2])):
            continue
        if len(fields) != 3 or not _is_number(fields[2]):
            raise InputError(f"{path}:{line}: a judgement is query, document and a whole number, separated by tabs.")
        yield line, fields[0], fields[1], int(fields[2])


def _is_number(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def _file(folder: Path, names: Sequence[str]) -> Path:
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise InputError(f"{folder} is no retrieval set in BEIR's form: it has none of {', '.join(names)}.")
    return found[0]


def _folder(name: str, spec: str) -> Path:
    """The folder of a set, fetched from the hub if it is none here."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(f"--retrieval={spec}: {name or 'nothing'} is no folder, and no name ORG/SET of the hub.")
    from huggingface_hub import snapshot_download

    with foreign_errors(f"--retrieval={spec}: {name} cannot be fetched from the hub"):
        patterns = ["corpus.*", "queries.*", "qrels/*", "qrels.*"]
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=patterns))
