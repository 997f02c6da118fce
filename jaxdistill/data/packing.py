"""Packs sentences into rows of tokens by first fit inside groups, and chooses the shapes that a run compiles.

Sentences are short (15 to 20 tokens on average), so a batch padded to its longest is mostly padding. Several sentences
share a row; attention and pooling keep them apart by `owner`. A group is packed by itself, so that a device that holds
whole groups needs nothing from the others.
"""

import heapq
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from jaxdistill.core import Tokens

LENGTH_STEP = 8
"""Row lengths are multiples of it."""
LEVELS = np.linspace(0.2, 0.95, 16)
"""Shares of batches that the smaller shapes are tried at."""
MARGIN_DEVIATIONS = 5.0
"""The largest tight shape holds groups this many standard deviations above the mean of the batches' fullest, ..."""
MARGIN_SHARE = 0.04
"""... and this share more, because no packing is perfect."""
ROW_LENGTHS = 9
"""Row lengths tried, from the longest sentence to twice that."""


class Shape(NamedTuple):
    """Rows of a group, and token slots of a row."""

    rows: int
    length: int

    @property
    def slots(self) -> int:
        return self.rows * self.length


Shapes = tuple[Shape, ...]
"""One shape for each stream of tokens that a step reads: the student's, and the teacher's if there is one."""


class Ragged(NamedTuple):
    """Sentences one behind the other."""

    ids: Int[np.ndarray, " t"]
    lengths: Int[np.ndarray, " n"]
    firsts: Int[np.ndarray, " n"] | None = None
    """Where each is a pair of sentences: tokens of type 0, those of the first sentence."""


class Placement(NamedTuple):
    """Where each sentence of a group lies."""

    row: Int[np.ndarray, " n"]
    start: Int[np.ndarray, " n"]
    rows: int
    """Rows used."""


def first_fit(lengths: Int[np.ndarray, " n"], row_length: int) -> Placement:
    """First-fit decreasing: the longest first, each into the first row that has room, a new row when none has.

    No sentence may be longer than a row.
    """
    row, start = [0] * len(lengths), [0] * len(lengths)
    room: list[int] = []
    sizes = lengths.tolist()
    place, last_size = 0, -1
    for sentence in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[sentence]
        if size != last_size:  # a row without room for the sentence before has none for one of the same length
            place, last_size = 0, size
        while place < len(room) and room[place] < size:
            place += 1
        if place == len(room):
            room.append(row_length)
        row[sentence], start[sentence] = place, row_length - room[place]
        room[place] -= size
    return Placement(np.array(row, np.int64), np.array(start, np.int64), len(room))


def rows_needed(lengths: Int[np.ndarray, "g n"], row_length: int) -> int:
    """Rows that the fullest group needs."""
    return max(first_fit(group, row_length).rows for group in lengths)


def balanced_order(lengths: Int[np.ndarray, " b"], groups: int) -> Int[np.ndarray, " b"]:
    """An order of the examples that, cut into equal groups, gives each group nearly the same number of tokens.

    The longest first, each to the group that has the fewest tokens and still has room.
    """
    size = len(lengths) // groups
    assert size * groups == len(lengths), f"{len(lengths)} examples do not divide into {groups} groups"
    members: list[list[int]] = [[] for _ in range(groups)]
    fewest = [(0, group) for group in range(groups)]
    sizes = lengths.tolist()
    for example in np.argsort(-lengths, kind="stable").tolist():
        tokens, group = heapq.heappop(fewest)
        members[group].append(example)
        if len(members[group]) < size:
            heapq.heappush(fewest, (tokens + sizes[example], group))
    return np.array([example for group in members for example in sorted(group)], np.int64)


def ragged(sequences: Sequence[Int[np.ndarray, " l"]], firsts: Int[np.ndarray, " n"] | None = None) -> Ragged:
    """Sentences one behind the other."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return Ragged(np.concatenate(sequences) if lengths.sum() else np.zeros(0, np.int32), lengths, firsts)


def pack(sentences: Ragged, shape: Shape, *, groups: int, pad_id: int) -> Tokens | None:
    """Packs sentences, group-major, into `[groups, rows, length]`; None when a group does not fit.

    Args:
      sentences: `groups * n` of them: the first `n` are the first group's.
      shape: rows and row length of a group.
    """
    lengths = sentences.lengths.reshape(groups, -1)
    if lengths.max() > shape.length or lengths.sum(axis=1).max() > shape.slots:
        return None
    placed = [first_fit(group, shape.length) for group in lengths]
    if max(group.rows for group in placed) > shape.rows:
        return None
    first = np.stack([group.row * shape.length + group.start for group in placed])
    return _filled(sentences, first, shape, pad_id)


def pad(
    sequences: Sequence[Int[np.ndarray, " l"]],
    *,
    length: int,
    count: int,
    pad_id: int,
    firsts: Int[np.ndarray, " n"] | None = None,
) -> Tokens:
    """The padded form, `[count, 1, length]` with one sentence a group; missing sentences are all padding.

    Sentences must not be longer than `length`. For pairs, `firsts` is as in `Ragged`.
    """
    missing = count - len(sequences)
    assert missing >= 0, f"{len(sequences)} sentences for {count} rows"
    firsts = None if firsts is None else np.concatenate([firsts, np.zeros(missing, np.int64)])
    sentences = ragged([*sequences, *[np.zeros(0, np.int32)] * missing], firsts)
    assert sentences.lengths.max() <= length, f"a sentence of {sentences.lengths.max()} tokens for {length} slots"
    return _filled(sentences, np.zeros((count, 1), np.int64), Shape(1, length), pad_id)


def _filled(sentences: Ragged, first: Int[np.ndarray, "g n"], shape: Shape, pad_id: int) -> Tokens:
    """Writes each sentence from its first slot on."""
    groups, count = first.shape
    lengths = sentences.lengths
    position = np.arange(len(sentences.ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    base = first + np.arange(groups)[:, None] * shape.slots
    slot = np.repeat(base.ravel(), lengths) + position
    full = (groups, shape.rows, shape.length)
    ids, owner, place = np.full(full, pad_id, np.int32), np.full(full, -1, np.int32), np.zeros(full, np.int32)
    ids.reshape(-1)[slot] = sentences.ids
    owner.reshape(-1)[slot] = np.repeat(np.tile(np.arange(count), groups), lengths)
    place.reshape(-1)[slot] = position
    types = None
    if sentences.firsts is not None:
        types = np.zeros(full, np.int32)
        types.reshape(-1)[slot] = position >= np.repeat(sentences.firsts, lengths)
    # a sentence without a token may have been placed behind the last slot
    return Tokens(ids, owner, place, np.minimum(first, shape.slots - 1).astype(np.int32), types)


def choose_shapes(
    batches: Sequence[Sequence[Int[np.ndarray, "g n"]]], longest: Sequence[int], *, most: int = 4
) -> tuple[Shapes, ...]:
    """At most `most` sets of shapes, from the smallest on: some that fit most batches closely, one that holds any.

    Args:
      batches: for some batches of the run, the lengths of the sentences of each stream.
      longest: the longest sentence that each stream can bring.
      most: 2 to 4; each set that is used is compiled once, and with fewer of them more of the slots are padding.

    The row length is free between the longest sentence and twice that: small groups fill such a capacity closely.
    The smaller sets are chosen to waste least together on the given batches; the one before the last leaves a margin.
    """
    streams = len(longest)
    lengths = [_row_lengths(size) for size in longest]
    needs = [
        np.array([[rows_needed(batch[stream], length) for length in lengths[stream]] for batch in batches])
        for stream in range(streams)
    ]
    fullest = [np.array([batch[s].sum(axis=1).max() for batch in batches]) for s in range(streams)]
    largest = tuple(_covering(_margin_rows(needs[s], fullest[s], lengths[s]), lengths[s]) for s in range(streams))
    levels = [tuple(_covering(_quantile_rows(needs[s], level), lengths[s]) for s in range(streams)) for level in LEVELS]
    fits = {shapes: _fits(shapes, needs, lengths) for shapes in (*levels, largest)}
    tight = min(
        (tuple(dict.fromkeys((*smaller, largest))) for smaller in combinations(levels, most - 2)),
        key=lambda sets: _mean_slots(sets, fits),
    )
    any_batch = tuple(Shape(batches[0][s].shape[1], lengths[s][0]) for s in range(streams))  # a row for each sentence
    return (*tight, any_batch) if any_batch not in tight else tight


def _row_lengths(longest: int) -> list[int]:
    least = -(-longest // LENGTH_STEP) * LENGTH_STEP
    tried = np.linspace(least, 2 * least, ROW_LENGTHS) // LENGTH_STEP * LENGTH_STEP
    return sorted({int(length) for length in tried})


def _quantile_rows(needs: Int[np.ndarray, "s c"], level: float) -> Int[np.ndarray, " c"]:
    return np.quantile(needs, level, axis=0, method="higher").astype(int)


def _margin_rows(
    needs: Int[np.ndarray, "s c"], fullest: Int[np.ndarray, " s"], lengths: Sequence[int]
) -> Int[np.ndarray, " c"]:
    """Rows for batches beyond those seen: without a margin, one batch in some hundred would need the last resort."""
    tokens = (fullest.mean() + MARGIN_DEVIATIONS * fullest.std()) * (1.0 + MARGIN_SHARE)
    return np.maximum(needs.max(axis=0), np.ceil(tokens / np.array(lengths)).astype(int))


def _covering(rows: Int[np.ndarray, " c"], lengths: Sequence[int]) -> Shape:
    """The row length that needs the fewest slots; the shorter of equals."""
    return min((Shape(int(count), length) for count, length in zip(rows, lengths, strict=True)), key=lambda s: s.slots)


def _fits(shapes: Shapes, needs: Sequence[np.ndarray], lengths: Sequence[list[int]]) -> np.ndarray:
    """Which of the batches a set of shapes holds."""
    held = [
        need[:, length.index(shape.length)] <= shape.rows
        for shape, need, length in zip(shapes, needs, lengths, strict=True)
    ]
    return np.all(held, axis=0)


def _mean_slots(sets: Sequence[Shapes], fits: dict[Shapes, np.ndarray]) -> float:
    """Mean slots over the batches, each in the first set that holds it; the last set holds all."""
    slots = [sum(shape.slots for shape in shapes) for shapes in sets]
    held = np.array([fits[shapes] for shapes in sets])
    held[-1] = True
    return float(np.array(slots)[np.argmax(held, axis=0)].mean())
