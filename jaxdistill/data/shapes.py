"""Chooses the batch shapes that a run compiles.

XLA compiles a program for every new shape. A run uses a few, chosen from simulated batches: tight ones for most, and one for any batch.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Integer

from jaxdistill.data.packing import NEVER, Shape, Shapes, rows_needed

LENGTH_STEP = 8
"""Row lengths are multiples of this."""
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
"""Quantiles of the batches' longest sentences, from which candidate row lengths follow."""
LEVELS = (*np.linspace(0.2, 0.95, 16), 1.0)
"""Quantiles of the numbers of rows that batches need, from which candidate row counts follow."""
MARGIN_DEVIATIONS = 5.0
"""The largest tight shape holds the mean tokens of a batch's fullest group plus this many standard deviations."""
MARGIN_SHARE = 0.04
"""Fraction added to that number of tokens, because first fit leaves gaps."""
ROW_LENGTHS = 6
"""Number of candidate row lengths up to the longest sentence, and again from there to twice its length."""
PARTS = (2, 3, 4, 6)
"""Candidate numbers of parts of a divided row."""


def choose_shapes(
    batches: Sequence[Sequence[np.ndarray]], longest: Sequence[int], *, most: int = 4, divided: bool = False
) -> tuple[Shapes, ...]:
    """Chooses at most `most` sets of shapes: tight ones that hold most batches, and one that holds any batch.

    A set has one shape per stream (the student's tokens and, with a live teacher, the teacher's); sets are ordered by cost.
    Rows may be shorter than the longest sentence, for batches without one, and up to twice as long: longer rows leave smaller gaps, but
    cost more attention. The smaller tight sets minimise the mean cost of `batches`; the largest tight one has a margin for unseen batches.

    Args:
      batches: for some batches of the run, the sentence lengths `[g, n]` of each stream.
      longest: maximum sentence length of each stream.
      most: 1 to 4. Each set is compiled once; fewer sets mean more padding.
      divided: whether rows may be divided into parts. On a TPU, arrays of short parts are mostly padding.
    """
    by_stream = list(zip(*batches, strict=True))
    # A teacher that reads the student's tokens needs the same shapes, which take time to find.
    if len({*longest}) == 1 and all(np.array_equal(batch[0], other) for batch in batches for other in batch):
        streams = [_Needs(by_stream[0], longest[0], divided)] * len(longest)
    else:
        streams = [_Needs(lengths, limit, divided) for lengths, limit in zip(by_stream, longest, strict=True)]
    largest = tuple(_cheapest(stream.with_margin(), stream.full_length) for stream in streams)
    chosen = [largest] if most > 1 else []
    candidates = set(_candidates(streams))
    # For each set, what each batch costs in it: infinite for a batch that it does not hold.
    costs = {}
    for shapes in (*candidates, largest):
        held = [stream.held(shape) for shape, stream in zip(shapes, streams, strict=True)]
        costs[shapes] = np.where(np.all(held, axis=0), _cost(shapes), np.inf)
    # What each batch costs in its cheapest chosen set. The few batches that `largest` does not hold count as if it did.
    lowest = np.nan_to_num(costs[largest], posinf=_cost(largest))
    while len(chosen) < most - 1 and candidates:
        # Equal costs: the smaller shapes, so that the choice does not depend on the order of the set.
        best = min(candidates, key=lambda shapes: (np.minimum(lowest, costs[shapes]).sum(), shapes))
        lowest = np.minimum(lowest, costs[best])
        chosen.append(best)
        candidates.remove(best)
    # The last of the `most` sets: a row for each sentence holds any batch.
    chosen.append(tuple(Shape(batches[0][index].shape[1], stream.full_length) for index, stream in enumerate(streams)))
    return tuple(sorted(dict.fromkeys(chosen), key=_cost))


class _Needs:
    """How many rows the simulated batches of one stream need, for each form of a row: its length and number of parts. `longest` is
    the stream's maximum sentence length. If `divided`, there are forms with several parts, too."""

    def __init__(self, batches: Sequence[Integer[np.ndarray, "g _"]], longest: int, divided: bool):
        self.full_length = full_length = math.ceil(longest / LENGTH_STEP) * LENGTH_STEP  # holds any sentence
        lengths = np.linspace(full_length / ROW_LENGTHS, full_length, ROW_LENGTHS)
        longer = np.linspace(full_length, 2 * full_length, ROW_LENGTHS)  # leave smaller gaps, see `choose_shapes`
        forms = {(int(length), 1) for length in np.ceil(np.append(lengths, longer) / LENGTH_STEP) * LENGTH_STEP}
        for parts in PARTS if divided else ():
            step = LENGTH_STEP * parts  # a part's length is a multiple of `LENGTH_STEP` too
            forms.add((math.ceil(full_length / step) * step, parts))
        self.forms = sorted(forms)
        needed = np.array([[rows_needed(batch, *form) for form in self.forms] for batch in batches])
        # [batches, forms]: all rows that a batch needs, and the divided ones; `NEVER` and 0 if a sentence is longer than a row.
        rows, self.divided = np.moveaxis(needed, -1, 0)
        self.whole = rows - self.divided
        self.longest_of_batches = np.array([batch.max() for batch in batches])
        self.tokens_of_fullest_group = np.array([batch.sum(axis=1).max() for batch in batches])

    def with_margin(self) -> list[Shape]:
        """For each form, a shape for the simulated batches with a margin, without which one unseen batch in a few hundred would not fit."""
        tokens = self.tokens_of_fullest_group
        most_tokens = (tokens.mean() + MARGIN_DEVIATIONS * tokens.std()) * (1.0 + MARGIN_SHARE)
        shapes = []
        for index, (length, parts) in enumerate(self.forms):
            whole, divided = int(self.whole[:, index].max()), int(self.divided[:, index].max())
            least_rows = math.ceil(most_tokens / length)
            # With divided rows, whole ones are for long sentences, of which an unseen batch may have one more.
            whole = max(whole, least_rows) if parts == 1 else whole + 1
            divided = max(divided, least_rows - whole)
            shapes.append(Shape(whole + divided, length, divided, parts))
        return shapes

    def at_level(self, level: float, among: Bool[np.ndarray, " batches"]) -> list[Shape]:
        """For each form, a shape with the `level` quantiles of the whole and of the divided rows that the batches `among` need."""
        needed = np.stack([self.whole[among], self.divided[among]])  # [2, batches, forms]
        wholes, divideds = np.quantile(needed, level, axis=1, method="higher").astype(int).tolist()
        rows_of_forms = zip(self.forms, wholes, divideds, strict=True)
        return [Shape(whole + divided, length, divided, parts) for (length, parts), whole, divided in rows_of_forms]

    def held(self, shape: Shape) -> Bool[np.ndarray, " batches"]:
        """For each batch, whether a shape holds it."""
        index = self.forms.index((shape.length, shape.parts))
        whole = shape.rows - shape.divided
        return (self.whole[:, index] <= whole) & (self.divided[:, index] <= shape.divided)


def _cheapest(shapes: Sequence[Shape], length: int) -> Shape:
    """The cheapest shape that holds sentences of `length` tokens. `NEVER` rows or more mark a shape that batches do not fit."""
    fitting = (shape for shape in shapes if shape.length >= length and shape.rows < NEVER)
    return min(fitting, key=lambda shape: shape.cost)


def _candidates(streams: Sequence[_Needs]) -> Iterator[Shapes]:
    """Yields tight sets of shapes. Each holds sentences up to a quantile in `SHARES` of the batches' longest sentences, in a number of
    rows that is a quantile in `LEVELS` of those that batches without a longer sentence need."""
    for share in SHARES:
        limits = [int(np.quantile(stream.longest_of_batches, share, method="higher")) for stream in streams]
        limited = list(zip(streams, limits, strict=True))
        # A batch counts if its sentences are within the limit in every stream.
        within = np.all([stream.longest_of_batches <= limit for stream, limit in limited], axis=0)
        for level in LEVELS if within.any() else ():
            yield tuple(_cheapest(stream.at_level(level, within), limit) for stream, limit in limited)


def _cost(shapes: Shapes) -> float:
    return sum(shape.cost for shape in shapes)
