"""Padded lengths: few, so that few shapes are compiled, but close together, so that little padding is computed."""

from collections.abc import Sequence

LENGTHS = (6, 8, *(steps * step for step in (2, 4, 8, 16, 32, 64) for steps in range(5, 9)))
"""Padded lengths, four per doubling; longer sentences are padded to a multiple of the last one, 512."""
FEW = 8
"""Requests of at most this many sentences are padded to the fewer lengths in `SERVED`, because each shape is compiled."""
SERVED = (16, 32, 64, 128, 256, 512)
"""Padded lengths of small requests."""
SLOTS_PER_SENTENCE = 32
"""A batch has at most `batch_size * SLOTS_PER_SENTENCE` token slots, so it holds more short sentences than long ones."""


def padded_length(tokens: int, max_length: int, lengths: Sequence[int] = LENGTHS) -> int:
    """The padded length for a sentence: the next of `lengths`, but at most `max_length`."""
    longer = [length for length in lengths if length >= tokens]
    length = longer[0] if longer else -(-tokens // lengths[-1]) * lengths[-1]
    return max(min(length, max_length), tokens)
