"""Packs sentences into rows of tokens by first fit inside groups, and chooses the shapes that a run compiles.

Sentences are short (15 to 20 tokens on average), so a batch padded to its longest is mostly padding. Several sentences
share a row; attention and pooling keep them apart by `owner`. Groups are packed independently, so that a device that
holds whole groups needs no data from other devices.

XLA compiles a program for every new shape. A run therefore uses a few fixed shapes, chosen from simulated batches:
tight ones that hold most batches, and a last one that holds any batch.
"""

import heapq
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import Tokens

ATTENTION_LENGTH = 256
"""Row length at which the attention of a slot is counted as much as the rest of a layer: the scores of a row grow with the
square of its length."""
LENGTH_STEP = 8
"""Row lengths are multiples of this."""
LEVELS = np.linspace(0.2, 0.95, 16)
"""Candidate quantiles for the smaller shapes: shares of the batches that a shape must hold."""
MARGIN_DEVIATIONS = 5.0
"""Margin of the largest tight shape, in standard deviations above the mean tokens of a batch's fullest group."""
MARGIN_SHARE = 0.04
"""Share added to that margin, because first fit leaves gaps."""
ROW_LENGTHS = 9
"""Number of candidate row lengths, from the longest sentence to twice its length."""


class Shape(NamedTuple):
    """Rows per group, and token slots per row."""

    rows: int
    length: int

    @property
    def slots(self) -> int:
        return self.rows * self.length

    @property
    def cost(self) -> float:
        """Time of a layer on this shape, in the time of a slot without attention."""
        return self.slots * (1.0 + self.length / ATTENTION_LENGTH)


Shapes = tuple[Shape, ...]
"""One shape per token stream of a step: the student's and, with a live teacher, the teacher's."""


class Ragged(NamedTuple):
    """Token ids of sentences, concatenated."""

    ids: Integer[np.ndarray, " t"]
    lengths: Integer[np.ndarray, " n"]
    firsts: Integer[np.ndarray, " n"] | None = None
    """For sentence pairs: number of tokens of type 0, which belong to the first sentence."""

    def taken(self, places: Integer[np.ndarray, " m"]) -> "Ragged":
        """Some of the sentences, in the order of `places`."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[places]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        firsts = None if self.firsts is None else self.firsts[places]
        return Ragged(self.ids[np.repeat(starts[places], lengths) + within], lengths, firsts)


class Placement(NamedTuple):
    """Row and start of each sentence of a group."""

    row: Integer[np.ndarray, " n"]
    start: Integer[np.ndarray, " n"]
    rows: int
    """Number of rows used."""


def first_fit(lengths: Integer[np.ndarray, " n"], row_length: int) -> Placement:
    """First-fit decreasing: places sentences, longest first, into the first row with room, else into a new row.

    No sentence may be longer than a row.
    """
    row, start = [0] * len(lengths), [0] * len(lengths)
    room: list[int] = []
    sizes = lengths.tolist()
    place, last_size = 0, -1
    for sentence in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[sentence]
        if size != last_size:  # rows too full for a sentence stay too full for others of its length: continue there
            place, last_size = 0, size
        while place < len(room) and room[place] < size:
            place += 1
        if place == len(room):
            room.append(row_length)
        row[sentence], start[sentence] = place, row_length - room[place]
        room[place] -= size
    return Placement(np.array(row, np.int64), np.array(start, np.int64), len(room))


def rows_needed(lengths: Integer[np.ndarray, "g n"], row_length: int) -> int:
    """Number of rows that the fullest group needs."""
    return max(first_fit(group, row_length).rows for group in lengths)


def balanced_order(lengths: Integer[np.ndarray, " b"], groups: int) -> Integer[np.ndarray, " b"]:
    """Orders examples so that equal consecutive groups have nearly the same number of tokens.

    Assigns examples, longest first, to the group with the fewest tokens among those that are not full.
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


def ragged(sequences: Sequence[Integer[np.ndarray, "_"]], firsts: Integer[np.ndarray, " n"] | None = None) -> Ragged:
    """Concatenates sentences."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return Ragged(np.concatenate(sequences) if lengths.sum() else np.zeros(0, np.int32), lengths, firsts)


def first_slots(lengths: Integer[np.ndarray, "g n"], shape: Shape) -> Integer[np.ndarray, "g n"] | None:
    """Packs the sentences of each group: the first slot of each; None if a group does not fit.

    Args:
      lengths: slots that each sentence takes.
      shape: rows per group and slots per row.
    """
    # Cheap necessary conditions first: packing is the expensive part.
    if lengths.max() > shape.length or lengths.sum(axis=1).max() > shape.slots:
        return None
    placed = [first_fit(group, shape.length) for group in lengths]
    if max(group.rows for group in placed) > shape.rows:
        return None
    return np.stack([group.row * shape.length + group.start for group in placed])


def pad(
    sequences: Sequence[Integer[np.ndarray, "_"]],
    *,
    length: int,
    count: int,
    pad_id: int,
    firsts: Integer[np.ndarray, " n"] | None = None,
) -> Tokens:
    """Pads sentences to `[count, 1, length]`, one sentence per group; missing sentences are all padding.

    Sentences must not be longer than `length`. For pairs, `firsts` is as in `Ragged`.
    """
    missing = count - len(sequences)
    assert missing >= 0, f"{len(sequences)} sentences for {count} rows"
    firsts = None if firsts is None else np.concatenate([firsts, np.zeros(missing, np.int64)])
    sentences = ragged([*sequences, *[np.zeros(0, np.int32)] * missing], firsts)
    assert sentences.lengths.max() <= length, f"a sentence of {sentences.lengths.max()} tokens for {length} slots"
    return filled(sentences, np.zeros((count, 1), np.int64), Shape(1, length), pad_id=pad_id)


def filled(sentences: Ragged, first: Integer[np.ndarray, "g n"], shape: Shape, *, pad_id: int) -> Tokens:
    """Writes sentences, group-major, into `[groups, rows, length]`: each to consecutive slots from its first one."""
    groups, count = first.shape
    lengths = sentences.lengths
    position = np.arange(len(sentences.ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # Slot of each token in the flattened array: one scatter per field instead of a loop over sentences.
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
    # An empty sentence may be placed after the last slot; its index must still be valid for pooling.
    return Tokens(ids, owner, place, np.minimum(first, shape.slots - 1).astype(np.int32), types)


def choose_shapes(
    batches: Sequence[Sequence[Integer[np.ndarray, "g _"]]], longest: Sequence[int], *, most: int = 4
) -> tuple[Shapes, ...]:
    """Chooses at most `most` sets of shapes, smallest first: tight ones for most batches, and one that holds any batch.

    Args:
      batches: sentence lengths of each stream, for some batches of the run.
      longest: maximum sentence length of each stream.
      most: 2 to 4. Each set is compiled once; fewer sets mean more padding.

    Row lengths vary between the longest sentence and twice its length: longer rows leave smaller gaps, but cost more
    attention. The smaller sets minimise the mean cost over the given batches; the last but one has a margin for unseen ones.
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
        key=lambda sets: _mean_cost(sets, fits),
    )
    any_batch = tuple(Shape(batches[0][s].shape[1], lengths[s][0]) for s in range(streams))  # one row per sentence
    return (*tight, any_batch) if any_batch not in tight else tight


def _row_lengths(longest: int) -> list[int]:
    least = -(-longest // LENGTH_STEP) * LENGTH_STEP
    tried = np.linspace(least, 2 * least, ROW_LENGTHS) // LENGTH_STEP * LENGTH_STEP
    return sorted({int(length) for length in tried})


def _quantile_rows(needs: Integer[np.ndarray, "batches lengths"], level: float) -> Integer[np.ndarray, " lengths"]:
    return np.quantile(needs, level, axis=0, method="higher").astype(int)


def _margin_rows(
    needs: Integer[np.ndarray, "batches lengths"], fullest: Integer[np.ndarray, " batches"], lengths: Sequence[int]
) -> Integer[np.ndarray, " lengths"]:
    """Rows with a margin for unseen batches: without it, about one batch in some hundred would need the last shape."""
    tokens = (fullest.mean() + MARGIN_DEVIATIONS * fullest.std()) * (1.0 + MARGIN_SHARE)
    return np.maximum(needs.max(axis=0), np.ceil(tokens / np.array(lengths)).astype(int))


def _covering(rows: Integer[np.ndarray, " lengths"], lengths: Sequence[int]) -> Shape:
    """The cheapest shape."""
    return min((Shape(int(count), length) for count, length in zip(rows, lengths, strict=True)), key=lambda s: s.cost)


def _fits(shapes: Shapes, needs: Sequence[np.ndarray], lengths: Sequence[list[int]]) -> np.ndarray:
    """Which batches a set of shapes holds."""
    held = [
        need[:, length.index(shape.length)] <= shape.rows
        for shape, need, length in zip(shapes, needs, lengths, strict=True)
    ]
    return np.all(held, axis=0)


def _mean_cost(sets: Sequence[Shapes], fits: dict[Shapes, np.ndarray]) -> float:
    """Mean cost of a batch if each uses the first set that holds it; the last set counts as holding all."""
    costs = [sum(shape.cost for shape in shapes) for shapes in sets]
    held = np.array([fits[shapes] for shapes in sets])
    held[-1] = True
    return float(np.array(costs)[np.argmax(held, axis=0)].mean())
