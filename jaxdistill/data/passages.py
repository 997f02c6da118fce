"""Reads a corpus's texts with their ids, whole or split into passages short enough for a model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, tee
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import InputError
from jaxdistill.data.chunks import Chunking
from jaxdistill.data.formats import checked_text, number_or_text
from jaxdistill.data.row_keys import text_key
from jaxdistill.data.sources import ID_NAMES, TEXT, Watched, has_columns, read
from jaxdistill.data.vectors import END, ID, START, columns_beside, source
from jaxdistill.files.reading import LINE_BYTES


class Passage(NamedTuple):
    """A text of a corpus, or part of one."""

    text: str
    id: str
    """Id of the whole text; its row number, from 1, if the corpus has no ids."""
    start: int
    """First character in the whole text; `end` is the one after the last."""
    end: int


def passages(specs: Sequence[str], column: str = TEXT, chunking: Chunking | None = None) -> Iterator[Passage]:
    """Yields the texts of a corpus in order.

    Args:
      specs: see `sources`.
      column: the column of the texts, if the sources are tables.
      chunking: splits each text; a text without words then yields nothing. None: texts stay whole.

    Raises:
      InputError: a text to split has no id, or an earlier one's; passages of an id are of one text.
    """
    if chunking is None:
        yield from (Passage(text, name, 0, len(text)) for name, text in _texts(specs, column))
        return
    texts, split = tee(_with_own_ids(_texts(specs, column), ", ".join(specs)))
    for (name, text), of_text in zip(texts, chunking.spans(text for _, text in split), strict=True):
        yield from (Passage(text[start:end], name, start, end) for start, end in of_text)


def holds_passages(vectors: Path) -> bool:
    """Whether stored vectors belong to passages."""
    return columns_beside(vectors) >= {TEXT, ID, START, END}


def kept_passages(table: Path) -> Iterator[Passage]:
    """Yields the passages that a table of vectors stores beside them."""
    for text, name, start, end in read([source(table)], (TEXT, ID, START, END), cell=number_or_text):
        yield Passage(text, name, int(start), int(end))


def texts_of_passages(table: Path) -> Integer[np.ndarray, " n"]:
    """For each passage of a table, the index of the text that it comes from."""
    ids = (name for (name,) in read([source(table)], {TEXT: ID}, cell=number_or_text))
    return np.array([number for number, (_, run) in enumerate(groupby(ids)) for _ in run], np.int64)


def have_ids(specs: Sequence[str], column: str = TEXT) -> bool:
    """Whether all files of a corpus have a column of ids."""
    return all(has_columns(spec, _columns(column), cell=_cell) for spec in specs)


class Corpus(Watched):
    """A corpus of passages that must not change while a program processes it."""

    def __init__(self, specs: Sequence[str], column: str = TEXT, chunking: Chunking | None = None):
        super().__init__(specs, {TEXT: column})
        self.chunking = chunking
        self._column = column

    @property
    def kept(self) -> tuple[str, ...]:
        """Columns that a table of vectors needs, besides the text, to tell which text a row comes from."""
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
    """Yields (id, text) of each row."""
    if have_ids(specs, column):
        yield from ((name, text) for text, name in read(specs, _columns(column), cell=_cell))
    else:
        for number, (text,) in enumerate(read(specs, {TEXT: column}), start=1):
            yield str(number), text


def _with_own_ids(texts: Iterable[tuple[str, str]], where: str) -> Iterator[tuple[str, str]]:
    keys: set[int] = set()
    for row, (name, text) in enumerate(texts, start=1):
        if not name.strip() or (key := text_key(name)) in keys:
            what = f"the id {name!r:.60} of an earlier row" if name.strip() else "no id"
            raise InputError(f"row {row:,} of {where} has {what}; each text that is split needs its own.")
        keys.add(key)
        yield name, text


def _columns(column: str) -> dict[str, str]:
    return {TEXT: column, ID: "|".join(ID_NAMES)}


def _cell(value: object, place: str, column: str, limit_bytes: int = LINE_BYTES) -> str:
    """Ids may be numbers."""
    return (number_or_text if column in ID_NAMES else checked_text)(value, place, column, limit_bytes)
