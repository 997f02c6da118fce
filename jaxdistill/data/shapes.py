"""Chooses the batch shapes that a run compiles.

XLA compiles a program for every new shape. A run therefore uses a few fixed shapes, chosen from simulated batches: tight
ones that hold most batches, and one that holds any batch.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Integer

from jaxdistill.data.packing import NEVER, Shape, Shapes, rows_needed

LENGTH_STEP = 8
"""Row lengths are multiples of this."""
SHARES = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
"""Candidate row lengths: quantiles of the batches' longest sentences."""
LEVELS = (*np.linspace(0.2, 0.95, 16), 1.0)
"""Candidate row counts: quantiles of the rows that the batches within a row length need."""
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

    A set has one shape per stream, and the sets are ordered by cost. Rows may be shorter than the longest sentence, for batches
    without one, and up to twice as long: longer rows leave smaller gaps, but cost more attention. The smaller tight sets minimise the
    mean cost of `batches`; the largest tight one has a margin for unseen batches.

    Args:
      batches: sentence lengths `[g, n]` of each stream, for some batches of the run.
      longest: maximum sentence length of each stream.
      most: 1 to 4. Each set is compiled once; fewer sets mean more padding.
      divided: whether rows may be divided into parts. On a TPU, arrays of short parts are mostly padding.
    """
    # A teacher that reads the student's tokens needs the same shapes.
    is_shared = len({*longest}) == 1 and all(np.array_equal(batch[0], other) for batch in batches for other in batch)
    distinct = longest[:1] if is_shared else longest
    streams = [_Needs([batch[index] for batch in batches], limit, divided) for index, limit in enumerate(distinct)]
    if is_shared:
        streams *= len(longest)
    largest = tuple(_cheapest(stream.with_margin(), stream.full_length) for stream in streams)
    chosen = [largest] if most > 1 else []
    candidates = set(_candidates(streams))
    costs = {}  # of each batch; infinite for batches that do not fit
    for shapes in (*candidates, largest):
        held = [stream.held(shape) for shape, stream in zip(shapes, streams, strict=True)]
        costs[shapes] = np.where(np.all(held, axis=0), _cost(shapes), np.inf)
    # Cost of each batch in its cheapest chosen set. The few batches that `largest` does not hold count as if it did.
    lowest = np.nan_to_num(costs[largest], posinf=_cost(largest))
    while len(chosen) < most - 1 and candidates:
        # Equal costs: the smaller shapes, so that the choice does not depend on the order of the set.
        best = min(candidates, key=lambda shapes: (np.minimum(lowest, costs[shapes]).sum(), shapes))
        lowest = np.minimum(lowest, costs[best])
        chosen.append(best)
        candidates.remove(best)
    # The last set holds any batch: one row per sentence.
    chosen.append(tuple(Shape(batches[0][index].shape[1], stream.full_length) for index, stream in enumerate(streams)))
    return tuple(sorted(dict.fromkeys(chosen), key=_cost))


class _Needs:
    """How many rows the simulated batches of one stream need, for each form of a row (its length and number of parts). `longest` is
    the stream's maximum sentence length. `divided` also tries forms with several parts."""

    def __init__(self, batches: Sequence[Integer[np.ndarray, "g _"]], longest: int, divided: bool):
        # Row length that holds any sentence.
        self.full_length = full_length = math.ceil(longest / LENGTH_STEP) * LENGTH_STEP
        lengths = np.linspace(full_length / ROW_LENGTHS, full_length, ROW_LENGTHS)
        lengths = np.append(lengths, np.linspace(full_length, 2 * full_length, ROW_LENGTHS))
        forms = {(int(length), 1) for length in np.ceil(lengths / LENGTH_STEP) * LENGTH_STEP}
        for parts in PARTS if divided else ():
            step = LENGTH_STEP * parts  # a part's length is a multiple of `LENGTH_STEP` too
            forms.add((math.ceil(full_length / step) * step, parts))
        self.forms = sorted(forms)
        needed = np.array([[rows_needed(batch, *form) for form in self.forms] for batch in batches])
        # [batches, forms]: divided and whole rows that each batch needs; `NEVER` whole ones if a sentence is longer than a row.
        self.divided = needed[..., 1]
        self.whole = needed[..., 0] - self.divided
        self.longest_of_batches = np.array([batch.max() for batch in batches])
        self.tokens_of_fullest_group = np.array([batch.sum(axis=1).max() for batch in batches])

    def with_margin(self) -> list[Shape]:
        """For each form, a shape that holds the simulated batches and has a margin for unseen ones. Without the margin, one batch in
        a few hundred needs the set that holds any batch."""
        tokens = self.tokens_of_fullest_group
        most_tokens = (tokens.mean() + MARGIN_DEVIATIONS * tokens.std()) * (1.0 + MARGIN_SHARE)
        larger = []
        for index, (length, parts) in enumerate(self.forms):
            whole, divided = self.whole[:, index].max(), self.divided[:, index].max()
            least = int(np.ceil(most_tokens / length))
            whole = max(whole, least) if parts == 1 else whole + 1  # for one more long sentence
            divided = max(divided, least - whole)
            larger.append(Shape(int(whole + divided), length, int(divided), parts))
        return larger

    def at_level(self, level: float, among: Bool[np.ndarray, " batches"]) -> list[Shape]:
        """For each form, a shape with the `level` quantiles of the whole and of the divided rows that the batches `among` need."""
        counts = np.stack([self.whole[among], self.divided[among]])
        quantiles = np.quantile(counts, level, axis=1, method="higher").astype(int)
        rows_of_forms = zip(*quantiles.tolist(), self.forms, strict=True)
        return [Shape(whole + divided, length, divided, parts) for whole, divided, (length, parts) in rows_of_forms]

    def held(self, shape: Shape) -> Bool[np.ndarray, " batches"]:
        """Which batches a shape holds."""
        index = self.forms.index((shape.length, shape.parts))
        whole = shape.rows - shape.divided
        return (self.whole[:, index] <= whole) & (self.divided[:, index] <= shape.divided)


def _cheapest(shapes: Sequence[Shape], least: int) -> Shape:
    """The cheapest shape whose rows have at least `least` slots."""
    fitting = (shape for shape in shapes if shape.length >= least and shape.rows < NEVER)
    return min(fitting, key=lambda shape: shape.cost)


def _candidates(streams: Sequence[_Needs]) -> Iterator[Shapes]:
    """Yields tight sets of shapes, one per pair of a quantile in `SHARES` and one in `LEVELS`. The first limits the sentence length,
    the second the number of rows among the batches within that limit."""
    for share in SHARES:
        limits = [np.quantile(stream.longest_of_batches, share, method="higher") for stream in streams]
        limited = list(zip(streams, limits, strict=True))
        within = np.all([stream.longest_of_batches <= limit for stream, limit in limited], axis=0)
        for level in LEVELS if within.any() else ():
            yield tuple(_cheapest(stream.at_level(level, within), int(limit)) for stream, limit in limited)


def _cost(shapes: Shapes) -> float:
    return sum(shape.cost for shape in shapes)
