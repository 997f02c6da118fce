"""Ranks documents by BM25, the lexical baseline of retrieval: `--model=bm25`.

Parameters as in BEIR's and Anserini's runs, k1 = 0.9 and b = 0.4; words of two letters and more in lower case, English stop
words left out, no stemming.
"""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.evals.evaluation import Ranking

NAME = "bm25"
K1, B = 0.9, 0.4


def rank(queries: Sequence[str], documents: Sequence[str], count: int) -> Ranking:
    """The `count` documents with the highest scores for each query."""
    import bm25s

    ranker = bm25s.BM25(k1=K1, b=B)
    ranker.index(bm25s.tokenize(list(documents), stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize(list(queries), stopwords="en", return_ids=False, show_progress=False)
    rows, scores = ranker.retrieve(asked, k=count, show_progress=False)
    return np.asarray(scores, np.float64), np.asarray(rows, np.int64)


def no_vectors(sentences: Sequence[str]) -> NoReturn:
    """In place of `embed`; raises `InputError`."""
    raise InputError(f"{NAME} has no vectors of sentences; it ranks documents only (--tasks=documents).")
