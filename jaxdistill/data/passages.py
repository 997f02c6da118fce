"""Reads the texts of a corpus with their ids, whole or in passages that a model can read."""

from collections.abc import Iterator, Sequence
from itertools import groupby, tee
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.data.chunks import Chunking
from jaxdistill.data.formats import checked_text, number_or_text
from jaxdistill.data.sources import ID_NAMES, TEXT, Watched, has_columns, read
from jaxdistill.data.vectors import END, ID, START, columns_beside, source
from jaxdistill.files.reading import LINE_BYTES


class Passage(NamedTuple):
    """A text of a corpus, or a part of it."""

    text: str
    id: str
    """Of the whole text; the number of its row, from 1, where the corpus has no ids."""
    start: int
    """In characters of the whole text, as `end`."""
    end: int


def passages(specs: Sequence[str], column: str = TEXT, chunking: Chunking | None = None) -> Iterator[Passage]:
    """Yields the texts of a corpus in order.

    Args:
      specs: sources, see `sources`.
      column: of a table, that holds the texts.
      chunking: splits each text, so that one without words yields nothing; None: texts stay whole.
    """
    if chunking is None:
        yield from (Passage(text, name, 0, len(text)) for name, text in _texts(specs, column))
        return
    texts, split = tee(_texts(specs, column))
    for (name, text), of_text in zip(texts, chunking.spans(text for _, text in split), strict=True):
        yield from (Passage(text[start:end], name, start, end) for start, end in of_text)


def holds_passages(vectors: Path) -> bool:
    """Whether stored vectors are of passages."""
    return columns_beside(vectors) >= {TEXT, ID, START, END}


def kept_passages(table: Path) -> Iterator[Passage]:
    """Yields the passages of a table of vectors."""
    for text, name, start, end in read([source(table)], (TEXT, ID, START, END), cell=number_or_text):
        yield Passage(text, name, int(start), int(end))


def texts_of_passages(table: Path) -> Integer[np.ndarray, " n"]:
    """The number of the text that each passage of a table is a part of, from 0."""
    ids = (name for (name,) in read([source(table)], {TEXT: ID}, cell=number_or_text))
    return np.array([number for number, (_, run) in enumerate(groupby(ids)) for _ in run], np.int64)


def have_ids(specs: Sequence[str], column: str = TEXT) -> bool:
    """Whether all files of a corpus have a column of ids."""
    return all(has_columns(spec, _columns(column), cell=_cell) for spec in specs)


class Corpus(Watched):
    """Passages of texts that must not change while a program processes them."""

    def __init__(self, specs: Sequence[str], column: str = TEXT, chunking: Chunking | None = None):
        super().__init__(specs, {TEXT: column})
        self.chunking = chunking
        self._column = column

    @property
    def kept(self) -> tuple[str, ...]:
        """Columns that a table of vectors has beside the text, to tell which text a row is of."""
        if self.chunking:
            return ID, START, END
        return (ID,) if have_ids(self._specs, self._column) else ()

    def passages(self) -> Iterator[Passage]:
        """Yields the passages in order."""
        return passages(self._specs, self._column, self.chunking)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yields the texts of the passages."""
        return ((passage.text,) for passage in self.passages())


def _texts(specs: Sequence[str], column: str) -> Iterator[tuple[str, str]]:
    """`(id, text)` of each row."""
    if have_ids(specs, column):
        yield from ((name, text) for text, name in read(specs, _columns(column), cell=_cell))
    else:
        for number, (text,) in enumerate(read(specs, {TEXT: column}), start=1):
            yield str(number), text


def _columns(column: str) -> dict[str, str]:
    return {TEXT: column, ID: "|".join(ID_NAMES)}


def _cell(value: object, place: str, column: str, limit_bytes: int = LINE_BYTES) -> str:
    """Ids may be numbers."""
    return (number_or_text if column in ID_NAMES else checked_text)(value, place, column, limit_bytes)
