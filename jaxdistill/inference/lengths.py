"""Padded lengths: few, so that little is compiled, and close, so that little is computed for padding."""

from collections.abc import Sequence

LENGTHS = (6, 8, *(steps * step for step in (2, 4, 8, 16, 32, 64) for steps in range(5, 9)))
"""Padded lengths, four from each power of 2 to the next; longer sentences are padded to a multiple of the last, 512."""
FEW = 8
"""A request of at most this many sentences is padded to one of `SERVED`, because each shape has to be compiled."""
SERVED = (16, 32, 64, 128, 256, 512)
"""Padded lengths of small requests."""
SLOTS_PER_SENTENCE = 32
"""A batch of short sentences holds more of them: `batch_size * SLOTS_PER_SENTENCE` token slots at the most."""


def padded_length(tokens: int, max_length: int, lengths: Sequence[int] = LENGTHS) -> int:
    """The shape's length for a sentence: the next of `lengths`, at most the model's longest."""
    longer = [length for length in lengths if length >= tokens]
    length = longer[0] if longer else -(-tokens // lengths[-1]) * lengths[-1]
    return max(min(length, max_length), tokens)
