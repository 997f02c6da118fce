"""Reads retrieval sets in BEIR's form: documents, queries, and judgements that say which documents answer a query.

A set is a folder with

- `corpus.jsonl` (`_id` or `id`, `title`, `text`) or `corpus.tsv` (id, title, text, or a header of these names in any order),
- `queries.jsonl` (`_id` or `id`, `text`) or `queries.tsv` (id, text, likewise),
- some of `qrels/train.tsv`, `qrels/dev.tsv` and `qrels/test.tsv` (query-id, corpus-id, score; a first line whose third field
  is not a number is a header, with names in any order); a lone `qrels.tsv` counts as test,

each plain or `.gz` (BEIR, Thakur et al., NeurIPS Datasets 2021, https://arxiv.org/abs/2104.08663). As in BEIR's sets on the
Hugging Face hub, the tables may also be `corpus/*.parquet` and `queries/*.parquet` with these columns, and the judgements
`test.tsv` and so on in a set NAME-qrels beside the set NAME. A set may be given by its name on the hub. `A+B` runs the queries
of A on the documents of B, which must have the same ids: for a set in two languages, this measures retrieval across them.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from jaxdistill.core import InputError, Split
from jaxdistill.data.formats import checked_text, rows
from jaxdistill.data.questions import Questions, questions
from jaxdistill.data.sources import column_map
from jaxdistill.evals.beir_files import SetFiles, set_files
from jaxdistill.evals.read_table import table_rows, table_suffix, text_lines
from jaxdistill.files.reading import LINE_BYTES, foreign_errors, parsed_json, regular

SCORE_NAMES = ("score", "relevance", "rel", "label")
"""Names of the column of judgements that holds the relevance."""
IDS = ("_id", "id")
"""Names of the id's field; the first one present counts."""
RELEVANCE = re.compile(r"([+-]?\d{1,9})(?:\.0*)?")
"""A whole number that fits trec_eval's integers, also as `1.0`."""

log = logging.getLogger(__name__)


class Record(NamedTuple):
    """A query or a document."""

    place: str
    """File and line, for errors."""
    name: str
    cells: list[str]
    """The text; for a document, title and text."""


Judgement = tuple[str, str, str, int]
"""(file and line, id of the query, id of the document, relevance)."""


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
    """Ids shared by a query and a document with the same text, as in ArguAna and Quora. For `A+B`: the documents of A."""

    note: str = ""
    """A line about the relevant documents that the corpus lacks; empty if it has all."""


def questions_of(spec: str, split: Split, more: Iterable[str] = ()) -> Questions:
    """For mining hard negatives: the judged queries of a split, and all documents of a set together with `more` documents."""
    known = read_set(set_files(spec, split=split))
    pairs = (
        (text, known.documents[document])
        for query, text in known.queries.items()
        for document, relevance in known.judged[query].items()
        if relevance > 0 and document in known.documents
    )
    own: dict[str, list[str]] = {}
    for query, text in known.queries.items():
        if query in known.also_documents:
            own.setdefault(text.strip(), []).append(known.documents[query])
    return questions(pairs, chain(known.documents.values(), more), own)


def judges_alike(first: Path, second: Path, *, split: Split) -> bool:
    """Whether more than half of one set's relevant pairs of ids are relevant in the other set too."""
    one, other = (
        {
            (query, document)
            for _, query, document, relevance in _judgements(set_files(str(folder), split=split).qrels)
            if relevance > 0
        }
        for folder in (first, second)
    )
    return 2 * len(one & other) > len(one)


def read_set(files: SetFiles) -> RetrievalSet:
    """Reads a set; raises `InputError` with file and line for a bad row, and like `set_of`."""
    return set_of(
        files.name,
        files.split,
        queries=_records(files.queries, ("text",)),
        corpus=_records(files.corpus, ("title", "text")),
        judgements=_judgements(files.qrels),
        places=(_shown(files.queries), _shown(files.corpus), str(files.qrels)),
        asked_corpus=_records(files.asked_corpus, ("title", "text")),
    )


def set_of(
    name: str,
    split: Split,
    *,
    queries: Iterable[Record],
    corpus: Iterable[Record],
    judgements: Iterable[Judgement],
    places: Sequence[str],
    asked_corpus: Iterable[Record] = (),
) -> RetrievalSet:
    """Builds a set from these records.

    Args:
      places: names of queries, corpus and judgements in errors.
      asked_corpus: for `A+B`, the documents of A.

    Raises:
      InputError: a duplicate id, an empty query, contradictory judgements, or a judged query that the set lacks; or no document
        has text, or no query has a relevant document that the set has.
    """
    texts = {name: _joined(cells) for name, cells in _texts(queries, places[0], may_be_empty=False)}
    documents, also_documents = {}, set()
    for document, cells in _texts(corpus, places[1], may_be_empty=True):
        documents[document] = _joined(cells)
        if _is_query(document, cells[-1], texts):
            also_documents.add(document)
    for _, document, cells in asked_corpus:
        if document in documents and _is_query(document, cells[-1], texts):
            also_documents.add(document)
    if not any(documents.values()):
        raise InputError(
            f"{places[1]}: none of its {len(documents):,} documents has text; at least one must have some."
        )
    judged = _judged(judgements, texts, places)
    relevant = {name for of_query in judged.values() for name, relevance in of_query.items() if relevance > 0}
    absent = len(relevant - documents.keys())
    if absent == len(relevant):
        raise InputError(
            f"{places[2]}: no query has a relevant document that {places[1]} has; at least one judgement must be above 0."
        )
    note = (
        f"{name}: {places[1]} lacks {absent:,} of the relevant documents; they count as never found" if absent else ""
    )
    if note:
        log.warning(note)
    return RetrievalSet(
        name=name,
        split=split,
        documents=documents,
        queries={query: text for query, text in texts.items() if query in judged},
        judged={query: judged[query] for query in texts if query in judged},
        also_documents=also_documents,
        note=note,
    )


def _judged(
    judgements: Iterable[Judgement], queries: Mapping[str, str], places: Sequence[str]
) -> Mapping[str, Mapping[str, int]]:
    judged: dict[str, dict[str, int]] = {}
    for place, query, document, relevance in judgements:
        if query not in queries:
            raise InputError(f"{place} judges the query {query!r:.60}, which {places[0]} does not have.")
        before = judged.setdefault(query, {}).setdefault(document, relevance)
        if before != relevance:
            raise InputError(
                f"{place} judges query {query!r:.60} and document {document!r:.60} twice, as {before} and {relevance}; "
                "keep one of the lines."
            )
    return judged


def _is_query(name: str, text: str, queries: Mapping[str, str]) -> bool:
    """Whether the query with a document's id has the same text, ignoring white space."""
    return name in queries and queries[name].split() == text.split()


def _joined(cells: Sequence[str]) -> str:
    return " ".join(cell for cell in cells if cell)


def _texts(records: Iterable[Record], where: str, *, may_be_empty: bool) -> Iterator[tuple[str, list[str]]]:
    """Yields (id, cells) of each record, without outer white space; raises `InputError` for a duplicate id."""
    seen: set[str] = set()
    for place, name, cells in records:
        if not name.strip():
            raise InputError(f"{place} has an empty id; each record needs its own.")
        if name in seen:
            raise InputError(f"{place} has the id {name!r:.60} of an earlier line; ids must differ.")
        seen.add(name)
        cells = [cell.strip() for cell in cells]
        if not any(cells) and not may_be_empty:
            raise InputError(f"{place}: the query {name!r:.60} has no text.")
        yield name, cells
    if not seen:
        raise InputError(f"{where} is empty: it has no record.")


def _records(paths: Sequence[Path], fields: Sequence[str]) -> Iterator[Record]:
    """Yields each record of the files; a first row with the fields' names is a header."""
    of_suffix = {".parquet": _parquet_records, ".tsv": _tsv_records}
    for path in paths:
        yield from of_suffix.get(table_suffix(path), _json_records)(path, fields)


def _tsv_records(path: Path, fields: Sequence[str]) -> Iterator[Record]:
    order = range(1 + len(fields))
    for line, cells in table_rows(path):
        place = f"{path}:{line}"
        if len(cells) != len(order):
            raise InputError(f"{place}: {len(cells)} fields; id, {', '.join(fields)} are expected.")
        if line == 1 and (named := _named_order(cells, fields)):
            order = named
            continue
        name, *rest = (cells[column] for column in order)
        yield Record(place, name, rest)


def _named_order(header: Sequence[str], fields: Sequence[str]) -> list[int]:
    """The columns of the id and of the fields; empty if the row is not a header."""
    names = [cell.strip().lower() for cell in header]
    others = [name for name in names if name not in fields]
    is_header = len(others) == 1 and others[0].endswith("id") and set(fields) < set(names)
    return [names.index(name) for name in (*others, *fields)] if is_header else []


def _json_records(path: Path, fields: Sequence[str]) -> Iterator[Record]:
    known: dict[str, None] = {}
    for place, _, text in _lines(path):
        record = parsed_json(text, place)
        own = next((name for name in IDS if isinstance(record, dict) and name in record), None)
        if own is None:
            raise InputError(f"{place}: a record is a JSON object with {' or '.join(IDS)}, {' and '.join(fields)}.")
        known |= dict.fromkeys(record)
        name, *cells = (_cell(record.get(field), place, field) for field in (own, *fields))
        yield Record(place, name, cells)
    if known and fields[-1] not in known:
        raise InputError(f"{path}: no record has the field {fields[-1]!r}; they have {', '.join(known):.80}.")


def _lines(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yields (place, number, text) of each line that is not blank."""
    return ((f"{path}:{line}", line, text) for line, text in text_lines(path) if text.strip())


def _parquet_records(path: Path, fields: Sequence[str]) -> Iterator[Record]:
    from pyarrow import parquet

    with foreign_errors(f"{path} is not a complete Parquet file"):
        available = parquet.read_schema(regular(path)).names
    own = next((name for name in IDS if name in available), IDS[0])
    lacking = [name for name in (own, fields[-1]) if name not in available]
    if lacking:
        raise InputError(
            f"{path} has no column {lacking[0]!r}; {' or '.join(IDS)}, {' and '.join(fields)} are expected."
        )
    columns = [own, *(field for field in fields if field in available)]
    for number, (name, *cells) in enumerate(rows(path, column_map(columns), cell=_cell), start=1):
        yield Record(f"{path} row {number}", name, cells)


def _cell(value: object, place: str, column: str, limit_bytes: int = LINE_BYTES) -> str:
    """Like `checked_text`, but an id must be present and may be a whole number."""
    if column not in IDS:
        return checked_text(value, place, column, limit_bytes)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{place}: {column} is {value!r:.40}; it must be text or a whole number.")
    return checked_text(str(value), place, column, limit_bytes)


def _judgements(path: Path) -> Iterator[Judgement]:
    """Yields the judgement of each row; a first row that does not end in a number is a header."""
    order = [0, 1, 2]
    for number, (place, _, text) in enumerate(_lines(path)):
        fields = text.split("\t")
        if number == 0 and len(fields) == 3 and not _is_number(fields[2]):
            order = _judgement_order(fields)
            continue
        fields = [fields[column] for column in order] if len(fields) == 3 else []
        relevance = RELEVANCE.fullmatch(fields[2].strip()) if fields else None
        if relevance is None:
            raise InputError(
                f"{place}: a judgement is query, document and a whole number of at most nine digits, "
                f"separated by tabs; got {text!r:.60}."
            )
        yield place, fields[0], fields[1], int(relevance[1])


def _judgement_order(header: Sequence[str]) -> list[int]:
    """The columns of query, document and relevance, by name; in BEIR's order if the names are unknown."""
    names = [cell.strip().lower() for cell in header]
    query = [column for column, name in enumerate(names) if name.startswith("q")]
    relevance = [column for column, name in enumerate(names) if name in SCORE_NAMES]
    if len(query) != 1 or len(relevance) != 1:
        return [0, 1, 2]
    return [*query, *({0, 1, 2} - {*query, *relevance}), *relevance]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(paths: Sequence[Path]) -> str:
    """The file, or the folder of several files, for errors."""
    return str(paths[0] if len(paths) == 1 else paths[0].parent)
