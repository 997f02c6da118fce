"""Chooses hard negatives among the documents nearest to each query, by their scores.

Options and the order in which they apply follow sentence-transformers' `mine_hard_negatives`; the results are equal if no
scores tie and both see the same candidates. `relative_margin=0.05` is NV-Retriever's TopK-PercPos of 95 % (Moreira et al.,
2024, arXiv 2407.15831).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import InputError
from jaxdistill.data.questions import Questions

Sampling = Literal["top", "random"]
SPARE = 10
"""Candidates to retrieve per negative if limits may leave some out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Which candidates may be negatives. None: no limit."""

    range_min: int = 0
    """Nearest candidates to skip, counted after all other limits."""
    range_max: int = 0
    """Candidates to consider for each query, besides its positives; 0: as many as the other options need."""
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    """A negative's score must be at least this much below the lowest score of the query's positives."""
    relative_margin: float | None = None
    """The same as a fraction of the positive's score: 0.05 keeps scores of at most 95 % of it."""

    def with_range(self, count: int, most_positives: int) -> "Limits":
        """The limits with `range_max` resolved; raises `InputError` if it leaves fewer than `count` candidates."""
        may_leave_out = (self.max_score, self.absolute_margin, self.relative_margin)
        spare = SPARE if any(limit is not None for limit in may_leave_out) else 1
        most = self.range_max or self.range_min + spare * count + most_positives
        if count > most - self.range_min:
            raise InputError(
                f"--num_negatives={count} is more than --range_min={self.range_min} and --range_max={most} leave; "
                f"--range_max must be at least {self.range_min + count}."
            )
        return dataclasses.replace(self, range_max=most)


class Negatives(NamedTuple):
    """The chosen documents of each query, best first."""

    rows: Integer[np.ndarray, "q negatives"]
    scores: Float[np.ndarray, "q negatives"]
    """Minus infinity where a query has no further negative."""
    left_out: dict[str, Integer[np.ndarray, " q"]]
    """Maps each limit's name to the number of candidates that it left out, per query."""

    def lacking(self) -> Integer[np.ndarray, " lacking"]:
        """Indices of the queries with fewer negatives than asked for."""
        return np.flatnonzero(~np.isfinite(self.scores).all(axis=1))

    def put(self, queries: Integer[np.ndarray, " some"], new: "Negatives") -> None:
        """Replaces the negatives of some queries; in `new`, the same limits must be set, possibly to other values."""
        for array, changed in zip(self._arrays(), new._arrays(), strict=True):
            array[queries] = changed

    def _arrays(self) -> list[np.ndarray]:
        return [self.rows, self.scores, *self.left_out.values()]


def hard_negatives(
    scores: Float[np.ndarray, "q candidates"],
    rows: Integer[np.ndarray, "q candidates"],
    excluded: Sequence[Sequence[int]],
    positive_scores: Sequence[Sequence[float]],
    *,
    limits: Limits,
    count: int,
    sampling: Sampling = "top",
    seed: int = 0,
) -> Negatives:
    """Chooses at most `count` negatives for each query.

    Args:
      scores, rows: each query's candidate documents and their scores, in any order.
      excluded: documents that cannot be a query's negatives, including its positives.
      positive_scores: scores of each query's positives.
      limits: with `range_max` resolved, see `with_range`.
      count: negatives per query.
      sampling: `top` (highest scores) or `random`.
      seed: seeds random choices.
    """
    lowest = np.array([min(of_query) for of_query in positive_scores], np.float32)[:, None]
    scores = np.where(_are_excluded(rows, excluded), -np.inf, np.asarray(scores, np.float32))
    left_out = {}
    for name, beyond in _beyond(scores, lowest, limits).items():
        left_out[name] = (beyond & np.isfinite(scores)).sum(axis=1)
        scores = np.where(beyond, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, limits.range_min : limits.range_max]
    scores, rows = (np.take_along_axis(array, order, axis=1) for array in (scores, rows))
    if sampling == "random":
        draws = np.random.default_rng(seed).random(scores.shape)
        drawn = np.argsort(np.where(np.isfinite(scores), draws, 2.0), axis=1, kind="stable")[:, :count]
        order = np.sort(drawn, axis=1)
        scores, rows = (np.take_along_axis(array, order, axis=1) for array in (scores, rows))
    return Negatives(rows[:, :count], scores[:, :count], left_out)


def _are_excluded(
    rows: Integer[np.ndarray, "q candidates"], excluded: Sequence[Sequence[int]]
) -> Bool[np.ndarray, "q candidates"]:
    many = 1 + max(int(rows.max(initial=0)), *(max(of_query) for of_query in excluded))
    known = np.array([query * many + row for query, of_query in enumerate(excluded) for row in of_query], np.int64)
    return np.isin(np.arange(len(rows))[:, None] * many + rows, known)


def _beyond(
    scores: Float[np.ndarray, "q candidates"], lowest: Float[np.ndarray, "q 1"], limits: Limits
) -> dict[str, Bool[np.ndarray, "q candidates"]]:
    """Whether each candidate violates each limit that is set."""
    masks = {}
    if limits.absolute_margin is not None:
        masks["absolute_margin"] = scores + np.float32(limits.absolute_margin) > lowest
    if limits.relative_margin is not None:
        masks["relative_margin"] = scores > lowest - np.abs(lowest) * np.float32(limits.relative_margin)
    if limits.max_score is not None:
        masks["max_score"] = scores > np.float32(limits.max_score)
    if limits.min_score is not None:
        masks["min_score"] = scores < np.float32(limits.min_score)
    return masks


def mined_rows(
    known: Questions, mined: Negatives, positive_scores: Sequence[Sequence[float]], *, output_format: str
) -> Iterator[list[str]]:
    """Yields the rows of the output table, without the header."""
    count = mined.rows.shape[1]
    for query, text in enumerate(known.queries):
        have = int(np.isfinite(mined.scores[query]).sum())
        negatives = [known.documents[row] for row in mined.rows[query, :have]]
        scores = [_number(score) for score in mined.scores[query, :have]]
        for row, score in zip(known.positives[query], positive_scores[query], strict=True):
            begin = [text, known.documents[row]]
            if output_format == "triplet":
                both = zip(negatives, scores, strict=True)
                yield from ([*begin, negative, _number(score), own] for negative, own in both)
            elif have == count:
                yield [*begin, *negatives, _number(score), *scores]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a written table as mappings of column to cell; scores become numbers."""
    with path.open(encoding="utf-8", newline="\n") as file:
        names, *rows = (line.rstrip("\n").split("\t") for line in file)
    cells = (zip(names, row, strict=True) for row in rows)
    return [{name: float(cell) if name.startswith("score_") else cell for name, cell in row} for row in cells]


def header(output_format: str, count: int) -> list[str]:
    """Names of the output's columns."""
    if output_format == "triplet":
        return ["text", "positive", "negative", "score_positive", "score_negative"]
    numbers = range(1, count + 1)
    negatives = [f"negative_{number}" for number in numbers], [f"score_negative_{number}" for number in numbers]
    return ["text", "positive", *negatives[0], "score_positive", *negatives[1]]


def _number(score: float) -> str:
    return f"{score:.7g}"
