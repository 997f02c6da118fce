"""Converts a retrieval set in BEIR's format to `Questions`, for mining hard negatives."""

from collections.abc import Iterable
from itertools import chain

from jaxdistill.core import Split
from jaxdistill.data.questions import Questions, questions
from jaxdistill.evals.beir import read_set
from jaxdistill.evals.beir_files import set_files


def of_retrieval_set(spec: str, split: Split, more: Iterable[str] = ()) -> Questions:
    """The judged queries of a split, and all documents of a set in BEIR's format together with `more` documents."""
    known = read_set(set_files(spec, split=split))
    pairs = (
        (text, known.documents[document])
        for query, text in known.queries.items()
        for document, relevance in known.judged[query].items()
        if relevance > 0
    )
    own: dict[str, list[str]] = {}
    for query, text in known.queries.items():
        if query in known.also_documents:
            own.setdefault(text.strip(), []).append(known.documents[query])
    return questions(pairs, chain(known.documents.values(), more), own)
