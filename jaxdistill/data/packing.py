"""Packs sentences into rows of tokens by first fit inside groups.

Sentences are short (15 to 20 tokens on average), so a batch padded to its longest is mostly padding. Several sentences
share a row; attention and pooling keep them apart by `owner`. Groups are packed independently, so that a device that
holds whole groups needs no data from other devices.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import Tokens

ATTENTION_LENGTH = 256
"""Row length at which attention costs a slot as much as the rest of a layer; attention scores grow with the square of the
row length."""
NEVER = 1 << 30
"""Number of rows that stands for "does not fit"."""


class Shape(NamedTuple):
    """Rows per group, token slots per row, and how many rows are divided into parts.

    No sentence crosses a part's border, so attention need not compare the parts of a row. A few whole rows for long
    sentences and many short parts for the others cost less than rows of one length.
    """

    rows: int
    length: int
    divided: int = 0
    """Number of divided rows; they come last."""
    parts: int = 1
    """Number of equal parts in a divided row."""

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}" + (f" ({self.divided} in {self.parts} parts)" if self.divided else "")

    @property
    def slots(self) -> int:
        return self.rows * self.length

    @property
    def bins(self) -> list[int]:
        """Slots of each whole row, then of each part."""
        return [self.length] * (self.rows - self.divided) + [self.length // self.parts] * (self.divided * self.parts)

    @property
    def cost(self) -> float:
        """Time of a layer on this shape; the unit is a slot's time without attention."""
        whole = self.rows - self.divided
        compared = whole * self.length + self.divided * (self.length // self.parts)
        return self.slots + self.length * compared / ATTENTION_LENGTH


Shapes = tuple[Shape, ...]
"""One shape per token stream of a step: the student's and, with a live teacher, the teacher's."""


class Ragged(NamedTuple):
    """Token ids of sentences, concatenated."""

    ids: Integer[np.ndarray, " t"]
    lengths: Integer[np.ndarray, " n"]
    firsts: Integer[np.ndarray, " n"] | None = None
    """For sentence pairs: number of leading tokens of type 0, the first sentence and its special tokens."""

    def taken(self, indices: Integer[np.ndarray, " m"]) -> "Ragged":
        """The sentences with these indices, in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[indices]
        position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # in its sentence
        firsts = None if self.firsts is None else self.firsts[indices]
        return Ragged(self.ids[np.repeat(starts[indices], lengths) + position], lengths, firsts)


def first_fit(lengths: Integer[np.ndarray, " n"], bins: Iterable[int]) -> tuple[Integer[np.ndarray, " n"], int] | None:
    """First-fit decreasing: places sentences, longest first, into the first bin with room, else into the next of the `bins`, whose
    sizes descend.

    Returns the slot of each sentence's first token, with all bins side by side, and the number of bins used; None if they do not
    suffice.
    """
    first = [0] * len(lengths)
    rooms, ends, sizes = list[int](), list[int](), lengths.tolist()
    further = iter(bins)
    index, last_size = 0, -1
    for sentence in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[sentence]
        if size != last_size:  # bins too full for a sentence stay too full for others of its length: continue there
            index, last_size = 0, size
        while index < len(rooms) and rooms[index] < size:
            index += 1
        if index == len(rooms):
            new = next(further, -1)
            if new < size:
                return None
            rooms.append(new)
            ends.append(new + (ends[-1] if ends else 0))
        first[sentence] = ends[index] - rooms[index]
        rooms[index] -= size
    return np.array(first, np.int64), len(rooms)


def bins_needed(lengths: Integer[np.ndarray, "g n"], size: int, *, after: Sequence[int] = ()) -> int:
    """Number of bins of one size that the fullest group needs beyond the bins `after`, below 0 if it leaves some of
    these empty; `NEVER` if a sentence does not fit."""
    bins, most = [*after, *repeat(size, lengths.shape[1])], 0  # a bin for each sentence is enough
    for group in lengths:
        packed = first_fit(group, bins)
        if packed is None:
            return NEVER
        most = max(most, packed[1])
    return most - len(after)


def rows_needed(lengths: Integer[np.ndarray, "g n"], length: int, parts: int = 1) -> tuple[int, int]:
    """Rows that the fullest group needs, and how many of them are divided; `NEVER` if a sentence is longer than a row.

    Whole rows hold the sentences longer than a part; shorter ones fill the rest of these rows.
    """
    if parts == 1:
        return bins_needed(lengths, length), 0
    part = length // parts
    whole = bins_needed(np.where(lengths > part, lengths, 0), length) if lengths.max() > part else 0
    if whole == NEVER:
        return NEVER, 0
    divided = -(-max(bins_needed(lengths, part, after=[length] * whole), 0) // parts)
    return whole + divided, divided


def balanced_order(lengths: Integer[np.ndarray, " b"], groups: int) -> Integer[np.ndarray, " b"]:
    """Orders examples so that equal consecutive groups have nearly the same number of tokens.

    Assigns examples, longest first, to the group with the fewest tokens among those that are not full.
    """
    size = len(lengths) // groups
    if groups == 1:
        return np.arange(size)
    longest_first = np.argsort(-lengths, kind="stable")
    tokens, taken = lengths[longest_first] * groups, np.empty(len(lengths), np.int64)
    # `fewest` has tokens * groups + group for each group with room: one number, to sort by both.
    fewest, room = np.arange(groups), np.full(groups, size)
    begin = 0
    while begin < len(lengths):
        # A round gives each group one example, in order of tokens; it stops before the group that would no longer be next.
        fewest.sort()
        count = len(fewest)
        due = fewest + tokens[begin : begin + count]
        if due.min() < fewest[-1]:
            count = int(np.argmax(np.minimum.accumulate(due)[:-1] < fewest[1:])) + 1
        taken[begin : begin + count] = chosen = fewest[:count] % groups
        fewest[:count] = due[:count]
        room[chosen] -= 1
        begin += count
        if not room[chosen].all():
            fewest = fewest[room[fewest % groups] > 0]
    group_of = np.empty(len(lengths), np.int64)
    group_of[longest_first] = taken
    return np.argsort(group_of, kind="stable")


def ragged(sequences: Sequence[Integer[np.ndarray, "_"]], firsts: Integer[np.ndarray, " n"] | None = None) -> Ragged:
    """Concatenates sentences; `firsts` is as in `Ragged`."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return Ragged(np.concatenate(sequences) if lengths.sum() else np.zeros(0, np.int32), lengths, firsts)


def first_slots(lengths: Integer[np.ndarray, "g n"], shape: Shape) -> Integer[np.ndarray, "g n"] | None:
    """Packs the sentences of each group; returns each sentence's first slot, or None if a group does not fit the shape."""
    # Cheap necessary conditions first: packing is the expensive part.
    if lengths.max() > shape.length or lengths.sum(axis=1).max() > shape.slots:
        return None
    bins, slots = shape.bins, []
    for group in lengths:
        packed = first_fit(group, bins)
        if packed is None:
            return None
        slots.append(packed[0])
    return np.stack(slots)


def pad(
    sequences: Sequence[Integer[np.ndarray, "_"]],
    *,
    length: int,
    count: int,
    pad_id: int,
    firsts: Integer[np.ndarray, " n"] | None = None,
) -> Tokens:
    """Pads sentences of at most `length` tokens to `[count, 1, length]`, one sentence per group; missing sentences are all padding. For
    pairs, `firsts` is as in `Ragged`."""
    missing = count - len(sequences)
    firsts = None if firsts is None else np.concatenate([firsts, np.zeros(missing, np.int64)])
    sentences = ragged([*sequences, *[np.zeros(0, np.int32)] * missing], firsts)
    assert sentences.lengths.max() <= length, f"a sentence of {sentences.lengths.max()} tokens for {length} slots"
    return filled(sentences, np.zeros((count, 1), np.int64), Shape(1, length), pad_id=pad_id)


def filled(sentences: Ragged, first: Integer[np.ndarray, "g n"], shape: Shape, *, pad_id: int) -> Tokens:
    """Writes sentences, group-major, into `[groups, rows, length]`, each to consecutive slots from `first` on."""
    groups, count = first.shape
    lengths = sentences.lengths
    position = np.arange(len(sentences.ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # Slot of each token in the flattened array: one scatter per field instead of a loop over sentences.
    base = first + np.arange(groups)[:, None] * shape.slots
    slot = np.repeat(base.ravel(), lengths) + position
    full = (groups, shape.rows, shape.length)
    ids, owner, positions = np.full(full, pad_id, np.int32), np.full(full, -1, np.int32), np.zeros(full, np.int32)
    ids.reshape(-1)[slot] = sentences.ids
    owner.reshape(-1)[slot] = np.repeat(np.tile(np.arange(count), groups), lengths)
    positions.reshape(-1)[slot] = position
    types = None
    if sentences.firsts is not None:
        types = np.zeros(full, np.int32)
        types.reshape(-1)[slot] = position >= np.repeat(sentences.firsts, lengths)
    parts = None
    if shape.divided:
        borders = np.arange(shape.parts, dtype=np.int32) * (shape.length // shape.parts)
        parts = np.tile(borders, (groups, shape.divided, 1))
    # An empty sentence may be placed after the last slot; its index must still be valid for pooling.
    return Tokens(ids, owner, positions, np.minimum(first, shape.slots - 1).astype(np.int32), types=types, parts=parts)
