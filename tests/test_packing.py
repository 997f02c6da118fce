"""Packing: nothing is lost or split, groups stay apart, shapes are few and fit closely."""

import heapq
from functools import partial
from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdistill.data import packing
from jaxdistill.data.packing import Shape
from jaxdistill.data.shapes import choose_shapes

PAD = 7


def sentences(lengths):
    """Sentences with ids that occur nowhere else."""
    ids = np.arange(1000, 1000 + sum(lengths), dtype=np.uint16)
    return [part for part in np.split(ids, np.cumsum(lengths)[:-1])]


def unpacked(tokens):
    """What a reader of the batch finds: sentences by group and owner, their tokens in the order of their positions."""
    groups, count = tokens.first.shape
    found = []
    for group in range(groups):
        for sentence in range(count):
            row, slot = np.nonzero(tokens.owner[group] == sentence)
            assert len(set(row)) <= 1, "a sentence lies in one row"
            position = tokens.position[group][row, slot]
            assert position.tolist() == list(range(len(row))), "and its tokens one behind the other"
            if len(row):
                assert tokens.first[group, sentence] == row[0] * tokens.ids.shape[2] + slot[0]
            found.append(tokens.ids[group][row, slot].tolist())
    return found


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 16), min_size=4, max_size=24),
    groups=st.sampled_from([1, 2, 4]),
    spare=st.integers(0, 3),
)
def test_every_sentence_comes_back_whole(lengths, groups, spare):
    lengths = lengths[: len(lengths) // groups * groups]
    parts = sentences(lengths)
    needed = packing.bins_needed(np.array(lengths).reshape(groups, -1), 16)
    shape = Shape(max(needed, 1) + spare, 16)
    tokens = pack(packing.ragged(parts), shape, groups=groups, pad_id=PAD)
    assert tokens.ids.shape == (groups, *shape[:2]) and tokens.first.shape == (groups, len(lengths) // groups)
    assert unpacked(tokens) == [part.tolist() for part in parts]
    padding = tokens.owner < 0
    assert padding.sum() == tokens.ids.size - sum(lengths)
    assert (tokens.ids[padding] == PAD).all() and (tokens.position[padding] == 0).all()
    assert ((tokens.first >= 0) & (tokens.first < shape.slots)).all()
    assert tokens.types is tokens.parts is None and all(array.dtype == np.int32 for array in tokens[:4])


def pack(sentences, shape, *, groups, pad_id):
    first = packing.first_slots(sentences.lengths.reshape(groups, -1), shape)
    return None if first is None else packing.filled(sentences, first, shape, pad_id=pad_id)


def test_first_fit_takes_the_longest_first_and_the_first_row_with_room():
    placed = packing.first_fit(np.array([2, 5, 3, 6, 4]), repeat(8))
    assert placed.first.tolist() == [6, 8, 13, 0, 16] and placed.used == 3
    assert packing.first_fit(np.array([2, 5, 3, 6, 4]), [8, 8]) is None
    assert packing.first_fit(np.array([2, 5, 3, 6, 4]), [8, 8, 4]).first.tolist() == [6, 8, 13, 0, 16]


@settings(max_examples=80, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 16), min_size=1, max_size=40), row=st.integers(16, 32))
def test_rows_never_overlap_nor_overflow(lengths, row):
    placed = packing.first_fit(np.array(lengths), repeat(row))
    used = np.zeros((placed.used * row,), int)
    for length, first in zip(lengths, placed.first, strict=True):
        assert first // row == (first + length - 1) // row, "a sentence lies in one row"
        used[first : first + length] += 1
    assert used.max() == 1 and used.sum() == sum(lengths)
    assert placed.used <= 2 * sum(lengths) / row + 1, "no two rows could be one"


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 24), min_size=2, max_size=40),
    parts=st.sampled_from([2, 3]),
    groups=st.sampled_from([1, 2]),
)
def test_no_sentence_crosses_a_part_of_a_divided_row(lengths, parts, groups):
    lengths = lengths[: len(lengths) // groups * groups]
    rows, divided = packing.rows_needed(np.array(lengths).reshape(groups, -1), 24, parts)
    shape = Shape(max(rows, 1), 24, divided, parts)
    tokens = pack(packing.ragged(sentences(lengths)), shape, groups=groups, pad_id=PAD)
    assert unpacked(tokens) == [part.tolist() for part in sentences(lengths)]
    if not divided:
        assert tokens.parts is None
        return
    borders = tokens.parts[0, 0]
    assert tokens.parts.shape == (groups, divided, parts) and borders.tolist() == list(range(0, 24, 24 // parts))
    ends = tokens.owner[:, -divided:, :-1][..., borders[1:] - 1], tokens.owner[:, -divided:][..., borders[1:]]
    assert not ((ends[0] == ends[1]) & (ends[0] >= 0)).any()
    assert (np.array(lengths).reshape(groups, -1) > 24 // parts).any(axis=1).max() == (rows > divided)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 24), min_size=12, max_size=90),
    groups=st.integers(1, 12),
    whole=st.lists(st.just(24), max_size=3),
    size=st.sampled_from([8, 12, 24]),
    count=st.integers(1, 12),
)
def test_the_fullest_group_is_found_without_packing_each(lengths, groups, whole, size, count):
    lengths = np.array(lengths[: len(lengths) // groups * groups]).reshape(groups, -1)
    for rest in (partial(repeat, size, count), partial(repeat, size)):
        placed = [packing.first_fit(group, chain(whole, rest())) for group in lengths]
        most = max(found.used for found in placed) if all(placed) else packing.NEVER
        assert packing.most_bins(lengths, chain(whole, rest())) == most


@pytest.mark.parametrize("groups", [6, 12])
def test_a_process_packs_its_own_groups_as_all_would_and_none_if_another_is_too_full(groups):
    lengths = np.random.default_rng(1).integers(1, 12, (groups, 20))
    shape = Shape(packing.bins_needed(lengths, 24), 24)
    own = np.array([0, 3])
    assert np.array_equal(packing.first_slots(lengths, shape, own), packing.first_slots(lengths, shape)[own])
    lengths[4] = 13  # a row for each sentence
    assert packing.first_slots(lengths, Shape(19, 24), own) is None
    assert packing.first_slots(lengths, Shape(20, 24), own) is not None


def test_what_does_not_fit_is_not_packed():
    parts = packing.ragged(sentences([5, 5, 5, 5]))
    assert pack(parts, Shape(2, 8), groups=1, pad_id=0) is None
    assert pack(parts, Shape(2, 8), groups=2, pad_id=0) is not None
    assert pack(parts, Shape(9, 4), groups=1, pad_id=0) is None
    assert pack(parts, Shape(3, 7), groups=1, pad_id=0) is None, "slots suffice, rows do not"


def test_balanced_groups_are_equal_in_count_and_nearly_in_tokens():
    lengths = np.random.default_rng(0).integers(3, 60, 128)
    order = packing.balanced_order(lengths, 8)
    assert sorted(order.tolist()) == list(range(128))
    tokens = lengths[order].reshape(8, 16).sum(axis=1)
    assert tokens.max() - tokens.min() <= 0.02 * tokens.mean()
    assert packing.balanced_order(lengths, 1).tolist() == list(range(128))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(0, 30), min_size=12, max_size=60), groups=st.integers(1, 12))
def test_examples_go_longest_first_to_the_group_with_the_fewest_tokens(lengths, groups):
    lengths = lengths[: len(lengths) // groups * groups]
    members, fewest = [[] for _ in range(groups)], [(0, group) for group in range(groups)]
    for example in sorted(range(len(lengths)), key=lambda example: -lengths[example]):
        tokens, group = heapq.heappop(fewest)
        members[group].append(example)
        if len(members[group]) < len(lengths) // groups:
            heapq.heappush(fewest, (tokens + lengths[example], group))
    expected = [example for group in members for example in sorted(group)]
    assert packing.balanced_order(np.array(lengths), groups).tolist() == expected


def test_a_padded_batch_has_one_sentence_a_group():
    tokens = packing.pad([np.array([5, 6, 7]), np.array([8])], length=4, count=3, pad_id=PAD)
    assert tokens.ids.tolist() == [[[5, 6, 7, PAD]], [[8, PAD, PAD, PAD]], [[PAD] * 4]]
    assert tokens.owner.tolist() == [[[0, 0, 0, -1]], [[0, -1, -1, -1]], [[-1] * 4]]
    assert tokens.position.tolist() == [[[0, 1, 2, 0]], [[0, 0, 0, 0]], [[0] * 4]]
    assert tokens.first.tolist() == [[0], [0], [0]]


def simulated(groups, count, *, batches=64, seed=0):
    """Lengths as real text has them: a mean of 16, a long tail, at most 64; two streams."""
    draw = np.random.default_rng(seed)
    for _ in range(batches):
        lengths = np.clip(draw.lognormal(2.65, 0.5, count), 3, 64).astype(int)
        lengths = lengths[packing.balanced_order(lengths, groups)].reshape(groups, -1)
        yield [np.repeat(lengths, 2, axis=1), lengths]


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_at_most_four_shapes_hold_batches_with_little_padding(groups):
    shapes = choose_shapes(list(simulated(groups, 128)), [64, 64], divided=True)
    assert 2 <= len(shapes) <= 4
    mean = np.mean([sum(part.sum() for part in batch) for batch in simulated(groups, 128)])
    assert groups * sum(shape.slots for shape in shapes[-2]) < 1.5 * mean, "the margin is no second last resort"
    slots, tokens = 0, 0
    for batch in simulated(groups, 128, batches=64, seed=1):
        fitting = (
            each
            for each in shapes
            if all(packing.first_slots(part, shape) is not None for part, shape in zip(batch, each, strict=True))
        )
        slots += groups * sum(shape.slots for shape in next(fitting))
        tokens += sum(part.sum() for part in batch)
    assert 1 - tokens / slots < 0.15


@pytest.mark.parametrize("divided", [False, True])
def test_rows_are_no_longer_than_needed_where_that_costs_few_slots(monkeypatch, divided):
    batches = list(simulated(1, 128))
    shapes = choose_shapes(batches, [64, 64], divided=divided)
    monkeypatch.setattr(packing, "ATTENTION_LENGTH", 1e9)
    fewest = choose_shapes(batches, [64, 64], divided=divided)
    assert all(max(shape.bins) <= 72 for each in shapes for shape in each)
    assert any(shape.length > 64 for each in fewest for shape in each)
    for mine, other in zip(shapes, fewest, strict=True):
        assert sum(shape.slots for shape in mine) < 1.08 * sum(shape.slots for shape in other)


def test_batches_of_short_sentences_have_short_rows():
    """Nine of ten batches have at most 20 tokens a sentence, one has 200."""
    draw = np.random.default_rng(0)
    batches = [[draw.integers(3, 200 if place % 10 == 0 else 20, (2, 32))] for place in range(100)]
    shapes = choose_shapes(batches, [200])
    assert all(shape.parts == 1 for (shape,) in shapes)
    fitting = [next(each for (each,) in shapes if packing.first_slots(batch[0], each) is not None) for batch in batches]
    assert max(shape.length for place, shape in enumerate(fitting) if place % 10) <= 48
    assert shapes[-1] == (Shape(32, 200),) and fitting[0].length >= 200


def test_the_last_shape_holds_any_batch_and_row_lengths_are_multiples_of_eight():
    shapes = choose_shapes(list(simulated(2, 16)), [60, 60])
    assert shapes[-1] == (Shape(16, 64), Shape(8, 64))
    assert all(shape.length % 8 == 0 and 8 <= shape.length <= 128 for each in shapes for shape in each)
    longest = packing.ragged([np.zeros(60, np.uint16)] * 32)
    assert pack(longest, shapes[-1][0], groups=2, pad_id=0) is not None


def test_streams_that_read_alike_have_the_shapes_of_one():
    batches = [batch[1:] for batch in simulated(2, 16)]
    alone = choose_shapes(batches, [60])
    assert choose_shapes([batch * 2 for batch in batches], [60, 60]) == tuple(shapes * 2 for shapes in alone)
