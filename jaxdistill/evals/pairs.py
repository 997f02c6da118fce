"""How well do a model's similarities follow graded sentence pairs, the user's own or a published set?

A file of graded pairs is `.tsv` (no quoting) or `.csv` (standard quoting), plain or `.gz`, in UTF-8, with the columns
`score`, `sentence1`, `sentence2`. With a header line the columns may stand in any order and others may be there;
without one there are exactly these three. The scale of the scores does not matter: only their order is used.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.similarity import similarities, spearman

COLUMNS = ("score", "sentence1", "sentence2")
METRIC = "pairs/spearman"


@dataclass(frozen=True, kw_only=True)
class GradedPairs:
    """Sentence pairs with a human's (or another model's) similarity score; higher is more alike."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Float[np.ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class PairsTask:
    """The evaluation on a file of graded pairs."""

    pairs: GradedPairs

    def __call__(self, embed: Embed | Scorer) -> Mapping[str, float]:
        """`pairs/spearman`."""
        return {METRIC: pairs_spearman(embed, self.pairs)}


def pairs_spearman(embed: Embed | Scorer, pairs: GradedPairs) -> float:
    """Spearman correlation between the similarities that the model finds and the scores, in [-1, 1]."""
    return spearman(pairs.scores, similarities(embed, pairs.first, pairs.second), what=pairs.name)


def read_pairs(path: str | Path) -> GradedPairs:
    """Reads a file of graded pairs; a line that cannot be used is an InputError with file and line."""
    path = Path(path)
    scores, first, second = [], [], []
    for line, score, sentence1, sentence2 in _graded_rows(path):
        scores.append(_number(score, path, line))
        for sentence, into in ((sentence1, first), (sentence2, second)):
            if not sentence.strip():
                raise InputError(f"{path}:{line}: an empty sentence; each line needs a score and two sentences.")
            into.append(sentence.strip())
    if len(scores) < 2:
        raise InputError(f"{path}: {len(scores)} graded pairs; a correlation needs at least 2.")
    return GradedPairs(name=path.name, first=tuple(first), second=tuple(second), scores=np.array(scores))


def _graded_rows(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """`(line, score, sentence1, sentence2)` of each row, the header applied."""
    order, width = (0, 1, 2), 3
    for index, (line, fields) in enumerate(table_rows(path)):
        names = [field.strip().lower() for field in fields]
        if index == 0 and set(COLUMNS) <= set(names):
            order, width = tuple(names.index(column) for column in COLUMNS), len(fields)
            continue
        if len(fields) != width:
            raise InputError(
                f"{path}:{line}: {len(fields)} fields, {width} are expected ({', '.join(COLUMNS)}, "
                f"separated by {'a tab' if _suffix(path) == '.tsv' else 'commas'})."
            )
        yield line, *(fields[place] for place in order)


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """`(line, fields)` of each row of a `.tsv` or `.csv` file that is not blank."""
    suffix = _suffix(path)
    if suffix not in (".tsv", ".csv"):
        raise InputError(
            f"{path}: graded pairs are read from .tsv or .csv, plain or .gz; got {suffix or 'no suffix'!r}."
        )
    if suffix == ".tsv":
        rows = ((line, text.split("\t")) for line, text in _lines(path))
    else:
        texts = csv.reader((text + "\n" for _, text in _lines(path)), strict=True)
        rows = ((texts.line_num, fields) for fields in texts)
    try:
        yield from (row for row in rows if any(field.strip() for field in row[1]))
    except csv.Error as error:
        raise InputError(f"{path}:{texts.line_num}: not readable as CSV ({error}).") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise InputError(f"{path}: no such file. Graded pairs are a .tsv or .csv file with {', '.join(COLUMNS)}.")
    line = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
            for line, raw in enumerate(file, start=1):
                text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
                yield line, text.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{line}: not UTF-8 (byte {error.start + 1} of the line).") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file after line {line} ({error}).") from error


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _number(text: str, path: Path, line: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not np.isfinite(score):
        names = ", ".join(COLUMNS)
        raise InputError(f"{path}:{line}: {text!r} is not a score; a finite number is needed (a header names {names}).")
    return score
