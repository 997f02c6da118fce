"""Chooses the batch shapes that a run compiles.

XLA compiles a program for every new shape. A run therefore uses a few fixed shapes, chosen from simulated batches: tight
ones that hold most batches, and one that holds any batch.
"""

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
    """Chooses at most `most` sets of shapes, cheapest first: tight ones for most batches, and one that holds any batch.

    Args:
      batches: sentence lengths `[g, n]` of each stream, for some batches of the run.
      longest: maximum sentence length of each stream.
      most: 1 to 4. Each set is compiled once; fewer sets mean more padding.
      divided: whether rows may be divided into parts. On a TPU, arrays of short parts are mostly padding.

    Rows may be shorter than the longest sentence, for batches without one, and up to twice as long: longer rows leave
    smaller gaps, but cost more attention. The smaller sets minimise the mean cost over the given batches; the largest tight
    one has a margin for unseen batches.
    """
    # A teacher that reads the student's tokens needs the same shapes.
    is_shared = len({*longest}) == 1 and all(np.array_equal(batch[0], one) for batch in batches for one in batch)
    distinct = longest[:1] if is_shared else longest
    streams = [_Needs([batch[index] for batch in batches], size, divided) for index, size in enumerate(distinct)]
    if is_shared:
        streams *= len(longest)
    largest = tuple(_cheapest(stream.with_margin(), stream.full_length) for stream in streams)
    chosen = [largest][: most - 1]  # empty if `most` is 1
    candidates = set(_candidates(streams))
    costs = {}  # of each batch; infinite for batches that do not fit
    for shapes in (*candidates, largest):
        held = [stream.held(shape) for shape, stream in zip(shapes, streams, strict=True)]
        costs[shapes] = np.where(np.all(held, axis=0), _cost(shapes), np.inf)
    # Cost of each batch in its cheapest chosen set; the largest counts as holding all.
    lowest = np.nan_to_num(costs[largest], posinf=_cost(largest))
    while len(chosen) < most - 1 and candidates:
        best = min(candidates, key=lambda shapes: (np.minimum(lowest, costs[shapes]).sum(), shapes))
        lowest = np.minimum(lowest, costs[best])
        chosen.append(best)
        candidates.remove(best)
    # The last set holds any batch: one row per sentence.
    chosen.append(tuple(Shape(batches[0][index].shape[1], stream.full_length) for index, stream in enumerate(streams)))
    return tuple(sorted(dict.fromkeys(chosen), key=_cost))


class _Needs:
    """How many rows the simulated batches of one stream need, for each row length and number of parts.

    `longest` is the stream's maximum sentence length; rows may be `divided`.
    """

    def __init__(self, batches: Sequence[Integer[np.ndarray, "g _"]], longest: int, divided: bool):
        # Row length that holds any sentence.
        self.full_length = full_length = -(-longest // LENGTH_STEP) * LENGTH_STEP
        lengths = np.linspace(full_length / ROW_LENGTHS, full_length, ROW_LENGTHS)
        lengths = np.append(lengths, np.linspace(full_length, 2 * full_length, ROW_LENGTHS))
        forms = {(int(length), 1) for length in np.ceil(lengths / LENGTH_STEP) * LENGTH_STEP}
        for parts in PARTS if divided else ():
            step = LENGTH_STEP * parts  # a part's length is a multiple of `LENGTH_STEP` too
            forms.add((-(-full_length // step) * step, parts))
        # (length, number of parts) of a row, lengths ascending.
        self.forms = sorted(forms)
        needs = np.array([[rows_needed(batch, *form) for form in self.forms] for batch in batches])
        # [batches, forms]: rows that each batch needs; `NEVER` if a sentence is longer than a row.
        self.whole, self.divided = needs[..., 0] - needs[..., 1], needs[..., 1]
        # Of each batch: the length of its longest sentence, and the tokens of its fullest group.
        self.reach = np.array([batch.max() for batch in batches])
        self.tokens = np.array([batch.sum(axis=1).max() for batch in batches])

    def with_margin(self) -> list[Shape]:
        """Each form's shape with a margin for unseen batches: without it, one batch in a few hundred needs the largest shape."""
        tokens = (self.tokens.mean() + MARGIN_DEVIATIONS * self.tokens.std()) * (1.0 + MARGIN_SHARE)
        larger = []
        for index, (length, parts) in enumerate(self.forms):
            whole, divided = self.whole[:, index].max(), self.divided[:, index].max()
            least = int(np.ceil(tokens / length))
            whole = max(whole, least) if parts == 1 else whole + 1  # for one more long sentence
            divided = max(divided, least - whole)
            larger.append(Shape(int(whole + divided), length, int(divided), parts))
        return larger

    def at_level(self, level: float, among: Bool[np.ndarray, " batches"]) -> list[Shape]:
        """One shape per form: the `level` quantiles, each taken separately, of the whole and the divided rows that the batches `among` need."""
        counts = np.stack([self.whole[among], self.divided[among]])
        whole, divided = np.quantile(counts, level, axis=1, method="higher").astype(int)
        forms = zip(whole.tolist(), divided.tolist(), self.forms, strict=True)
        return [Shape(rows + cut, length, cut, parts) for rows, cut, (length, parts) in forms]

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
    """Yields tight shapes: for the batches within each candidate row length, one per quantile of the rows they need."""
    for share in SHARES:
        limits = [np.quantile(stream.reach, share, method="higher") for stream in streams]
        limited = list(zip(streams, limits, strict=True))
        below = np.all([stream.reach <= limit for stream, limit in limited], axis=0)
        for level in LEVELS if below.any() else ():
            yield tuple(_cheapest(stream.at_level(level, below), int(limit)) for stream, limit in limited)


def _cost(shapes: Shapes) -> float:
    return sum(shape.cost for shape in shapes)
