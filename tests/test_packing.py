"""Packing: nothing is lost or split, groups stay apart, shapes are few and fit closely."""

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
    """The sentences of a batch by group and owner, their tokens in the order of their positions."""
    groups, count = tokens.first.shape
    result = []
    for group in range(groups):
        for sentence in range(count):
            row, slot = np.nonzero(tokens.owner[group] == sentence)
            assert len(set(row)) <= 1, "a sentence lies in one row"
            position = tokens.position[group][row, slot]
            assert position.tolist() == list(range(len(row))), "and its tokens one behind the other"
            if len(row):
                assert tokens.first[group, sentence] == row[0] * tokens.ids.shape[2] + slot[0]
            result.append(tokens.ids[group][row, slot].tolist())
    return result


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


def test_balanced_groups_are_equal_in_count_and_nearly_in_tokens():
    lengths = np.random.default_rng(0).integers(3, 60, 128)
    order = packing.balanced_order(lengths, 8)
    assert sorted(order.tolist()) == list(range(128))
    tokens = lengths[order].reshape(8, 16).sum(axis=1)
    assert tokens.max() - tokens.min() <= 0.02 * tokens.mean()
    assert packing.balanced_order(lengths, 1).tolist() == list(range(128))


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
            candidate
            for candidate in shapes
            if all(packing.first_slots(part, shape) is not None for part, shape in zip(batch, candidate, strict=True))
        )
        slots += groups * sum(shape.slots for shape in next(fitting))
        tokens += sum(part.sum() for part in batch)
    assert 1 - tokens / slots < 0.15
