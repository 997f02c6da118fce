"""Queries, documents and their pairs, from which negatives are mined."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from jaxdistill.core import InputError


class Questions(NamedTuple):
    """Distinct queries and documents, and the documents that answer each query."""

    queries: list[str]
    documents: list[str]
    positives: list[list[int]]
    """For each query, the indices of its documents."""
    excluded: list[list[int]]
    """For each query, the documents that cannot be its negatives: its positives, and those whose text equals the query or a
    positive, ignoring case and white space."""


def questions(pairs: Iterable[tuple[str, str]], corpus: Iterable[str] = ()) -> Questions:
    """Collects distinct, non-empty queries and documents; raises `InputError` if no pair remains."""
    queries: dict[str, dict[int, None]] = {}
    documents: dict[str, int] = {}
    for text in filter(None, map(str.strip, corpus)):
        documents.setdefault(text, len(documents))
    for text, answer in ((text.strip(), answer.strip()) for text, answer in pairs):
        if text and answer:
            queries.setdefault(text, {})[documents.setdefault(answer, len(documents))] = None
    if not queries:
        raise InputError("no pair has both a query and a positive; check pairs, column and positive_column.")
    texts, positives = list(documents), [list(rows) for rows in queries.values()]
    same: dict[bytes, set[bytes]] = {}
    for query, rows in zip(queries, positives, strict=True):
        same.setdefault(_key(query), set()).update(map(_key, (query, *(texts[row] for row in rows))))
    written: dict[bytes, list[int]] = {key: [] for keys in same.values() for key in keys}
    for row, text in enumerate(texts):
        if (key := _key(text)) in written:
            written[key].append(row)
    excluded = [sorted({row for key in same[_key(query)] for row in written[key]}) for query in queries]
    return Questions(list(queries), texts, positives, excluded)


def _key(text: str) -> bytes:
    """A key that ignores case and white space; 8 bytes, because a corpus has millions of texts."""
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=8).digest()
