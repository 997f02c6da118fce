"""Queries, documents and their pairs, from which negatives are mined."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from jaxdistill.core import InputError


class Questions(NamedTuple):
    """Distinct queries and documents, and the documents that answer each query."""

    queries: list[str]
    documents: list[str]
    positives: list[list[int]]
    """For each query, the indices of its documents."""
    same: list[list[int]]
    """For each query, other documents whose text equals the query or a positive, ignoring case and white space."""

    def excluded(self) -> list[list[int]]:
        """For each query, the documents that cannot be its negatives."""
        return [list({*positives, *same}) for positives, same in zip(self.positives, self.same, strict=True)]


class Pairs(NamedTuple):
    """A lazy sequence of (query, document) texts, given by indices; supports only slices."""

    known: Questions
    queries: np.ndarray
    documents: np.ndarray

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, rows):
        both = zip(self.queries[rows], self.documents[rows], strict=True)
        return [(self.known.queries[query], self.known.documents[document]) for query, document in both]


def questions(
    pairs: Iterable[tuple[str, str]],
    corpus: Iterable[str] = (),
    own: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Questions:
    """Collects distinct, non-empty queries and documents; raises `InputError` if no pair remains.

    Args:
      own: maps a query to documents that are the same text with a title before it, and so cannot be its negatives.
    """
    queries: dict[str, dict[int, None]] = {}
    documents: dict[str, int] = {}
    for text in corpus:
        if text.strip():
            documents.setdefault(text.strip(), len(documents))
    for text, answer in ((text.strip(), answer.strip()) for text, answer in pairs):
        if text and answer:
            queries.setdefault(text, {})[documents.setdefault(answer, len(documents))] = None
    if not queries:
        raise InputError("no pair has both a query and a positive; check --pairs, --column and --positive_column.")
    texts, positives = list(documents), [list(rows) for rows in queries.values()]
    alike: dict[bytes, set[bytes]] = {}
    for query, rows in zip(queries, positives, strict=True):
        of_query = (query, *own.get(query, ()), *(texts[row] for row in rows))
        alike.setdefault(_key(query), set()).update(map(_key, of_query))
    written: dict[bytes, list[int]] = {key: [] for keys in alike.values() for key in keys}
    for row, text in enumerate(texts):
        if (key := _key(text)) in written:
            written[key].append(row)
    same = [
        sorted({row for key in alike[_key(query)] for row in written[key]}.difference(rows))
        for query, rows in zip(queries, positives, strict=True)
    ]
    return Questions(list(queries), texts, positives, same)


def _key(text: str) -> bytes:
    """A key that ignores case and white space; 8 bytes, because a corpus has millions of texts."""
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=8).digest()
