"""Ranks documents by BM25, the lexical baseline of retrieval: `--model=bm25`.

Parameters are BEIR's and Anserini's, k1 = 0.9 and b = 0.4. Words of two or more letters count, in lower case,
without English stop words and without stemming. Scripts without spaces between words are split into pairs of neighbouring
characters, as Lucene does for Chinese and Japanese.
"""

import hashlib
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import numpy as np
import regex

from jaxdistill.core import InputError
from jaxdistill.evals.evaluation import Ranking
from jaxdistill.versions import versions

NAME = "bm25"
K1, B = 0.9, 0.4
_WORD = regex.compile(r"\w\w+")
"""Letters with their vowel signs, which `re` would split words at."""
_UNSPACED = regex.compile(
    r"[[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Thai}\p{scx=Laoo}\p{scx=Khmr}\p{scx=Mymr}]&&[\p{L}\p{M}\p{Nl}]]+",
    regex.V1,
)
"""A run of letters and marks of Chinese, Japanese, Thai, Lao, Khmer or Burmese."""
_CHARACTER = regex.compile(r"\X")
"""A character with its marks: a Thai consonant and its vowel signs are one."""


def digest() -> str:
    """SHA-256 of what determines the scores: this file, and the versions of the libraries that split and count words."""
    used = versions(("bm25s", "regex"))
    return hashlib.sha256(Path(__file__).read_bytes() + repr(used).encode()).hexdigest()


def rank(queries: Sequence[str], documents: Sequence[str], count: int) -> Ranking:
    """The `count` highest-scoring documents for each query; the score is minus infinity if a document shares no word with it.

    Raises:
      InputError: no document has a word.
    """
    import bm25s

    read = [words(text) for text in documents]
    if not any(read):
        raise InputError(
            f"{NAME} finds no word in any of {len(documents):,} documents; one needs a word of two letters or more "
            "that is not an English stop word."
        )
    ranker = bm25s.BM25(k1=K1, b=B)
    ranker.index(read, show_progress=False)
    rows, scores = ranker.retrieve([words(text) for text in queries], k=count, show_progress=False)
    scores = np.asarray(scores, np.float64)
    return np.where(scores > 0.0, scores, -np.inf), np.asarray(rows, np.int64)


def words(text: str) -> list[str]:
    """The words of a text in order, without stop words; pairs of characters where its script has no spaces."""
    from bm25s.stopwords import STOPWORDS_EN

    # Normalises full-width letters, ligatures and composed accents; a capital I with a dot becomes an i.
    text, terms, at = unicodedata.normalize("NFKC", text).casefold().replace("i\u0307", "i"), [], 0
    for run in _UNSPACED.finditer(text):
        terms += _WORD.findall(text, at, run.start())
        characters = _CHARACTER.findall(run[0])
        terms += [first + second for first, second in pairwise(characters)] or characters
        at = run.end()
    return [word for word in terms + _WORD.findall(text, at) if word not in STOPWORDS_EN]


def no_vectors(sentences: Sequence[str]) -> NoReturn:
    """Takes the place of `embed`; raises `InputError`."""
    raise InputError(f"{NAME} has no vectors of sentences; it ranks documents only (--tasks=documents).")
