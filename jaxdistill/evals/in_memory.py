"""A caller's sets in memory: graded pairs; and queries, documents, and the documents that answer each query."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.evals.beir import Record, RetrievalSet, set_of
from jaxdistill.evals.pairs import GradedPairs

NAME = "in-memory"
"""Name of the set of documents in scores."""
PARTS = ("queries", "corpus", "relevant_docs")
PAIR = "(sentence1, sentence2, score)"


class InMemory(NamedTuple):
    """Sets that a caller passes as objects."""

    pairs: GradedPairs | None = None
    retrieval: RetrievalSet | None = None

    def described(self) -> dict[str, str]:
        """Descriptions for the results file, keyed by the options that otherwise name files."""
        lines = {}
        if self.pairs:
            lines["pairs"] = f"{len(self.pairs.scores):,} pairs in memory"
        if self.retrieval:
            queries, documents = len(self.retrieval.queries), len(self.retrieval.documents)
            lines["retrieval"] = f"{queries:,} judged queries and {documents:,} documents in memory"
        return lines


def graded_pairs(pairs: Any) -> GradedPairs:
    """Graded pairs from `(sentence1, sentence2, score)`; raises `InputError` with the index of a wrong one."""
    if not isinstance(pairs, Iterable):
        raise InputError(f"pairs has type {type(pairs).__name__}; give several {PAIR}, or the path of a file.")
    rows = list(pairs)
    for place, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 3:
            raise InputError(f"pairs[{place}] is {row!r:.60}; each pair is {PAIR}.")
        *sentences, score = row
        if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
            raise InputError(f"pairs[{place}] is {row!r:.60}; both sentences must be texts that are not empty.")
        if not isinstance(score, Real) or isinstance(score, bool) or not math.isfinite(score):
            raise InputError(f"pairs[{place}] has the score {score!r:.40}; it must be a finite number: {PAIR}.")
    if len(rows) < 2:
        raise InputError(f"pairs has {len(rows)} graded pairs; a correlation needs at least 2.")
    first, second, scores = zip(*rows, strict=True)
    return GradedPairs(name=NAME, first=first, second=second, scores=np.array(scores, np.float64))


def retrieval_set(queries: Any, corpus: Any, relevant_docs: Any) -> RetrievalSet:
    """The set with these queries, documents and judgements; raises `InputError` like `evals.beir.set_of`.

    Args:
      queries: maps ids to texts.
      corpus: maps ids to texts, or to mappings with `text` and, optionally, `title`.
      relevant_docs: maps query ids to the ids of the relevant documents, or to mappings of document ids to whole numbers,
        which are above 0 for relevant ones.
    """
    given = dict(zip(PARTS, (queries, corpus, relevant_docs), strict=True))
    for name, part in given.items():
        if not isinstance(part, Mapping):
            what = "is missing" if part is None else f"has type {type(part).__name__}"
            raise InputError(f"{name} {what}; {', '.join(PARTS)} belong together, and each is a mapping of ids.")
    return set_of(
        NAME,
        "test",
        queries=[
            Record(f"queries[{name!r}]", str(name), [_text(text, f"queries[{name!r}]")])
            for name, text in queries.items()
        ],
        corpus=[_document(name, document) for name, document in corpus.items()],
        judgements=(judgement for query, judged in relevant_docs.items() for judgement in _judgements(query, judged)),
        places=PARTS,
    )


def _document(name: Any, document: Any) -> Record:
    place = f"corpus[{name!r}]"
    if not isinstance(document, Mapping):
        return Record(place, str(name), ["", _text(document, place)])
    if "text" not in document:
        raise InputError(f"{place} has no 'text'; a document is a text, or a mapping with 'text' and perhaps 'title'.")
    return Record(place, str(name), [_text(document.get(key) or "", f"{place}[{key!r}]") for key in ("title", "text")])


def _text(text: Any, place: str) -> str:
    if not isinstance(text, str):
        raise InputError(f"{place} is {text!r:.60}; it must be a text.")
    return text


def _judgements(query: Any, judged: Any) -> Iterable[tuple[str, str, str, int]]:
    place = f"relevant_docs[{query!r}]"
    if isinstance(judged, str) or not isinstance(judged, Iterable):
        raise InputError(f"{place} is {judged!r:.60}; it must be a set of ids, or a mapping of ids to whole numbers.")
    relevance = judged if isinstance(judged, Mapping) else dict.fromkeys(judged, 1)
    for document, grade in relevance.items():
        if not isinstance(grade, int | np.integer):
            raise InputError(f"{place} judges {document!r:.60} as {grade!r:.40}; it must be a whole number.")
        yield place, str(query), str(document), int(grade)
