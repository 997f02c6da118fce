"""Packs sentences into rows of tokens by first fit inside groups.

Sentences are short (15 to 20 tokens on average), so a batch padded to its longest is mostly padding. Several sentences share a row;
attention and pooling keep them apart by `owner`. Groups are packed independently: a device with whole groups needs no data of others.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import Tokens

ATTENTION_LENGTH = 256
"""Row length at which attention, whose time grows with its square, takes as long as the rest of a layer, whose time grows linearly."""
NEVER = 1 << 30
"""Number of rows that stands for "does not fit"."""


class Shape(NamedTuple):
    """Shape of a group: rows, token slots per row, and how many rows are divided into parts. No sentence crosses a part's border, so
    attention need not compare parts. A few whole rows for long sentences and many short parts cost less than rows of one length."""

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
        """Estimated time of a layer per group, in units of a slot's time without attention. Attention compares pairs of slots."""
        pairs_of_whole_row = self.length**2
        pairs_of_divided_row = self.length * (self.length // self.parts)
        pairs = (self.rows - self.divided) * pairs_of_whole_row + self.divided * pairs_of_divided_row
        return self.slots + pairs / ATTENTION_LENGTH


Shapes = tuple[Shape, ...]
"""One shape per token stream of a step: the student's and, with a live teacher, the teacher's."""


class Ragged(NamedTuple):
    """Token ids of sentences, concatenated."""

    ids: Integer[np.ndarray, " t"]
    lengths: Integer[np.ndarray, " n"]
    firsts: Integer[np.ndarray, " n"] | None = None
    """For sentence pairs: number of leading tokens of type 0, the first sentence and its special tokens."""

    def taken(self, indices: Integer[np.ndarray, " m"]) -> "Ragged":
        """Selects sentences by index, in the order of `indices`."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[indices]
        ids = self.ids[np.repeat(starts[indices], lengths) + token_positions(lengths)]
        return Ragged(ids, lengths, None if self.firsts is None else self.firsts[indices])


def token_positions(lengths: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " t"]:
    """Index of each token in its sentence, for concatenated sentences of these lengths."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def first_fit(lengths: Integer[np.ndarray, " n"], bins: Iterable[int]) -> tuple[Integer[np.ndarray, " n"], int] | None:
    """First-fit decreasing: puts each sentence, longest first, into the first opened bin with room, or opens the next; sizes in `bins` must
    descend. Returns the slot of each first token, with all bins side by side, and the number of opened bins; None if `bins` are too few."""
    sizes = lengths.tolist()
    first = [0] * len(sizes)
    free, ends = list[int](), list[int]()  # of each opened bin: its free slots, and the slot after its last
    unopened = iter(bins)
    index = last_size = 0
    for sentence in np.argsort(-lengths, kind="stable").tolist():
        size = sizes[sentence]
        if size != last_size:  # else continue at `index`: the bins before are too full for this length
            index, last_size = 0, size
        while index < len(free) and free[index] < size:
            index += 1
        if index == len(free):
            opened = next(unopened, -1)  # -1: no bin is left
            if opened < size:
                return None
            free.append(opened)
            ends.append(opened + (ends[-1] if ends else 0))
        first[sentence] = ends[index] - free[index]
        free[index] -= size
    return np.array(first, np.int64), len(free)


def bins_needed(lengths: Integer[np.ndarray, "g n"], size: int, *, existing: Sequence[int] = ()) -> int:
    """Number of bins of one `size` that the fullest group needs after the `existing` bins, filled first; `NEVER` if bins are too short."""
    bins = [*existing, *repeat(size, lengths.shape[1])]  # a new bin for each sentence is enough
    most = len(existing)
    for group in lengths:
        packed = first_fit(group, bins)
        if packed is None:
            return NEVER
        most = max(most, packed[1])
    return most - len(existing)


def rows_needed(lengths: Integer[np.ndarray, "g n"], length: int, parts: int = 1) -> tuple[int, int]:
    """Number of rows of `length` slots that the fullest group needs (`NEVER` if a sentence is longer), and how many of them are divided
    into `parts`. Sentences longer than a part go into whole rows, and shorter ones fill the gaps of these before a row is divided."""
    if parts == 1:
        return bins_needed(lengths, length), 0
    part = length // parts
    whole = 0
    if lengths.max() > part:
        whole = bins_needed(np.where(lengths > part, lengths, 0), length)  # a sentence of length 0 takes no room
    if whole == NEVER:
        return NEVER, 0
    divided = math.ceil(bins_needed(lengths, part, existing=[length] * whole) / parts)
    return whole + divided, divided


def balanced_order(lengths: Integer[np.ndarray, " b"], groups: int) -> Integer[np.ndarray, " b"]:
    """Orders examples so that consecutive groups of equal size have nearly the same number of tokens: each example, longest first, goes to
    the group that has the fewest tokens and room. Many are assigned in one round, because a heap is slower for hundreds of groups."""
    if groups == 1:
        return np.arange(len(lengths))
    longest_first = np.argsort(-lengths, kind="stable")
    group_of_example = np.empty(len(lengths), np.int64)
    room = np.full(groups, len(lengths) // groups)  # examples that each group still takes
    # For each group with room, one number that sorts by tokens, then by group: `tokens * groups + group`.
    keys = np.arange(groups)
    begin = 0
    while begin < len(lengths):
        # A round gives the next examples to the groups in ascending order of tokens, at most one to each.
        keys.sort()
        examples = longest_first[begin : begin + len(keys)]
        new_keys = keys + lengths[examples] * groups
        # It ends before the first group that has more tokens than one that has just received an example.
        is_too_full = np.minimum.accumulate(new_keys)[:-1] < keys[1:]
        count = int(np.argmax(is_too_full)) + 1 if is_too_full.any() else len(keys)
        receiving = keys[:count] % groups
        group_of_example[examples[:count]] = receiving
        room[receiving] -= 1
        keys[:count] = new_keys[:count]
        keys = keys[room[keys % groups] > 0]
        begin += count
    return np.argsort(group_of_example, kind="stable")


def ragged(sequences: Sequence[Integer[np.ndarray, "_"]], firsts: Integer[np.ndarray, " n"] | None = None) -> Ragged:
    """Concatenates sentences; `firsts` is as in `Ragged`."""
    lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
    return Ragged(np.concatenate([np.zeros(0, np.int32), *sequences]), lengths, firsts)  # zeros: for no sequences


def first_slots(lengths: Integer[np.ndarray, "g n"], shape: Shape) -> Integer[np.ndarray, "g n"] | None:
    """Packs each group into the shape. Returns each sentence's first slot in its group, or None if a group does not fit."""
    # Cheap necessary conditions first, because packing is expensive.
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
    """Pads sentences to `[count, 1, length]`, each a group with one row; rows without a sentence are all padding. No sentence may
    have more than `length` tokens. `firsts` is as in `Ragged`."""
    missing = count - len(sequences)
    firsts = None if firsts is None else np.concatenate([firsts, np.zeros(missing, np.int64)])
    sentences = ragged([*sequences, *[np.zeros(0, np.int32)] * missing], firsts)
    assert sentences.lengths.max() <= length, f"a sentence of {sentences.lengths.max()} tokens for {length} slots"
    return filled(sentences, np.zeros((count, 1), np.int64), Shape(1, length), pad_id=pad_id)


def filled(sentences: Ragged, first: Integer[np.ndarray, "g n"], shape: Shape, *, pad_id: int) -> Tokens:
    """Writes sentences, group by group, into padded arrays `[groups, rows, length]`, each to the slots of its group from `first` on."""
    groups, count = first.shape
    lengths = sentences.lengths
    # For each token, its index in its sentence, and its slot in the flattened array of all groups.
    position = token_positions(lengths)
    first_in_all = first + np.arange(groups)[:, None] * shape.slots
    slot = np.repeat(first_in_all.ravel(), lengths) + position

    def scattered(values: np.ndarray, padding: int) -> Integer[np.ndarray, "g r l"]:
        array = np.full((groups, shape.rows, shape.length), padding, np.int32)
        array.reshape(-1)[slot] = values
        return array

    ids = scattered(sentences.ids, pad_id)
    index_in_group = np.tile(np.arange(count), groups)  # of each sentence
    owner = scattered(np.repeat(index_in_group, lengths), -1)
    types = None
    if sentences.firsts is not None:
        types = scattered(position >= np.repeat(sentences.firsts, lengths), 0)
    parts = None  # [groups, divided, parts]
    if shape.divided:
        first_slots_of_parts = np.arange(shape.parts, dtype=np.int32) * (shape.length // shape.parts)
        parts = np.tile(first_slots_of_parts, (groups, shape.divided, 1))
    # An empty sentence may be placed after the last slot; its index must still be valid for pooling.
    first = np.minimum(first, shape.slots - 1).astype(np.int32)
    return Tokens(ids, owner, scattered(position, 0), first, types=types, parts=parts)
