"""Makes batches as a pure function of (seed, step), so that a resumed run needs no iterator state.

Order, groups and shape of a batch follow from lengths and random draws alone, without reading a token. Each process plans
all groups this way, then reads and packs only its own, so the batch is the same for any number of processes.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Batch, InputError, Tokens
from jaxdistill.data import packing, views
from jaxdistill.data.packing import Ragged, Shape, Shapes
from jaxdistill.data.shapes import choose_shapes
from jaxdistill.data.targets import Stored
from jaxdistill.data.text import TEXT, text_key
from jaxdistill.data.tokens import TokenStore
from jaxdistill.objectives.weighted import SourceTerms

SIMULATED_STEPS = 160
"""Number of batches from which the shapes are chosen."""
BLOCK_ROWS = 1024
"""Sentences whose draws and lengths one thread computes at a time."""
Reader = Callable[[Integer[np.ndarray, " m"]], Ragged]
"""Returns the tokens of some of a batch's examples; takes their indices."""
QUEUE_SEED = 16349
"""Seed that draws the reserved rows, regardless of the run's seed. ConGen's code draws the sentences of the first queue with it."""


class Viewed:
    """What the student or the teacher reads: views of a tokenised text. `names` are the names of the views, see `views.py`."""

    def __init__(self, store: TokenStore, names: Sequence[str]):
        self.store = store
        self.views = [views.parse_view(name, store.columns) for name in names]

    def most_words(self, rows: Integer[np.ndarray, " b"]) -> int:
        """The largest number of words in a sentence of `rows` that a random view reads; at least 1."""
        columns = {view.column for view in self.views if view.is_random}
        return max((int(self.store.counts_of(column, rows).words.max(initial=1)) for column in columns), default=1)

    def tokens(self, parts: Sequence[Ragged], first: Integer[np.ndarray, "g n"], shape: Shape) -> Tokens:
        """Writes examples into padded arrays. `parts` has the sentences of each view, `first` the slot of each sentence's first token;
        in it, an example's views are adjacent."""
        ids = np.concatenate([part.ids for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        first_lengths = None
        if any(view.second for view in self.views):
            # The sentences of single views count as the first of a pair.
            first_lengths = np.concatenate([part.lengths if part.firsts is None else part.firsts for part in parts])
        by_example = np.arange(len(lengths)).reshape(len(parts), -1).T.ravel()
        sentences = Ragged(ids, lengths, first_lengths).taken(by_example)
        return packing.filled(sentences, first, shape, pad_id=self.store.pad_id)


class _Plan(NamedTuple):
    """Everything about a step's batch that is known without reading tokens; lists have one entry per stream."""

    rows: Integer[np.ndarray, " b"]
    """Store rows in the order of the epoch."""
    order: Integer[np.ndarray, " b"]
    """Examples of the batch in group order, as indices of `rows`."""
    slots: list[Integer[np.ndarray, "g n"]]
    """Slots to reserve for each sentence, at least its length; group-major, an example's views adjacent."""
    readers: list[list[Reader]]
    """One per view."""
    terms: SourceTerms
    """What this batch trains; views that no trained term reads have a single padding token per sentence."""


class Batches:
    """Random access to the batches of a run.

    Each epoch shuffles the sentences anew and drops the last, incomplete batch. With `weights`, an epoch has the same
    number of sentences; each source reshuffles and repeats its sentences to fill its share. With `sources`, a batch has
    sentences of one source, and an epoch spreads the batches of each source evenly.

    Args:
      student: what the student reads. Repeated views are drawn independently; the n-th use of a view keeps the same words for
        student and teacher.
      teacher: what a live teacher reads, of the same rows; or its stored vectors, one array `[rows, e]` per view.
      weights: relative sampling weight of each source; empty: all sentences are sampled equally often.
      sources: for each source, the terms of the objective that its batches train; empty: batches mix the sources.
      with_keys: whether batches have `keys`, hashes by which an objective compares texts.
      groups: number of groups of a batch, each packed by itself; a multiple of the devices.
      local: the groups that this process holds, ascending; None: all.
      reserve_rows: number of rows to keep out of training, for the first queue and for evaluation, with all rows of equal text.
      max_shapes: maximum number of batch shapes; `most` of `choose_shapes`.
      divided: whether rows may be divided into parts; see `packing.Shape`.
    """

    def __init__(
        self,
        student: Viewed,
        teacher: Viewed | Sequence[Stored] = (),
        *,
        batch_size: int,
        seed: int = 0,
        weights: Sequence[float] = (),
        sources: Sequence[SourceTerms] = (),
        with_keys: bool = False,
        groups: int = 1,
        local: Integer[np.ndarray, " local"] | None = None,
        reserve_rows: int = 0,
        max_shapes: int = 4,
        divided: bool = False,
    ):
        self.batch_size, self.groups, self.seed = batch_size, groups, seed
        self._local = np.arange(groups) if local is None else local
        self._student = student
        self._streams = [student, teacher] if isinstance(teacher, Viewed) else [student]
        self._targets = () if isinstance(teacher, Viewed) else tuple(teacher)
        store = student.store
        self.reserved = np.sort(np.random.RandomState(QUEUE_SEED).permutation(store.rows)[:reserve_rows])
        # By key, not by row: a repeat of a reserved sentence must not be trained on either.
        self.trained = np.flatnonzero(~np.isin(store.keys, store.keys[self.reserved]))
        if len(self.trained) < batch_size:
            condition = f" without the {reserve_rows} reserved ones and their repeats" if reserve_rows else ""
            raise InputError(
                f"{len(self.trained)} of the text's {store.rows} sentences are left for training{condition}, and one batch needs "
                f"{batch_size}; add text, or reduce --config.data.batch_size."
            )
        self._sources, self._with_keys = sources, with_keys
        if sources and not weights:
            weights = store.source_rows
        self._shares = _shares(store, self.trained, weights, batch_size if sources else 1)
        self._most_draws = max(stream.store.max_length for stream in self._streams)
        self._epoch = lru_cache(maxsize=2)(self._epoch_rows)
        self._max_shapes, self._divided = max_shapes, divided

    @property
    def steps_per_epoch(self) -> int:
        return len(self.trained) // self.batch_size

    @cached_property
    def shapes(self) -> tuple[Shapes, ...]:
        """Possible shapes of a batch, smallest first: each has one shape per stream."""
        batches = [self._plan(step).slots for step in range(SIMULATED_STEPS)]
        longest = [max(view.longest(stream.store) for view in stream.views) for stream in self._streams]
        return choose_shapes(batches, longest, most=self._max_shapes, divided=self._divided)

    @property
    def usual_shapes(self) -> tuple[Shapes, ...]:
        """The shapes without the last, which holds any batch and which hardly any batch needs."""
        return self.shapes[:-1] or self.shapes

    def batch_at(self, step: int) -> Batch:
        """This process's groups of a step's batch; steps count from 0."""
        plan = self._plan(step)
        examples = plan.order.reshape(self.groups, -1)[self._local].ravel()
        streams = [
            stream.tokens([read(examples) for read in readers], first, shape)
            for stream, readers, (first, shape) in zip(self._streams, plan.readers, self._packed(plan), strict=True)
        ]
        rows = plan.rows[examples]
        targets = active = keys = None
        if self._targets:
            targets = np.stack([np.asarray(target[rows], np.float32) for target in self._targets], axis=1)
        if plan.terms.active:
            active = np.tile(np.array(plan.terms.active, np.float32), (len(rows), 1))
        if self._with_keys:  # [examples, views, 2]: hashes of the columns that the student's views read
            store, columns = self._student.store, [view.column for view in self._student.views]
            hashed = {column: [text_key(store.text(column, row)) for row in rows] for column in {*columns} - {TEXT}}
            hashed[TEXT] = store.keys[rows].tolist()  # already hashed
            by_view = np.array([hashed[column] for column in columns], np.uint64)
            keys = np.ascontiguousarray(by_view.T)[..., None].view(np.uint32)
        return Batch(streams[0], streams[1] if len(streams) > 1 else None, targets, keys, active)

    def _packed(self, plan: _Plan) -> list[tuple[Integer[np.ndarray, "local n"], Shape]]:
        """For each stream, the first slot of each sentence of this process's groups, and the shape of the batch. It is the smallest
        that holds all groups, those of other processes included, because all must run the same program."""
        for shapes in self.shapes:
            packed = []
            for slots, shape in zip(plan.slots, shapes, strict=True):
                first = packing.first_slots(slots, shape)
                if first is None:
                    break
                packed.append((first[self._local], shape))
            if len(packed) == len(shapes):
                return packed
        raise AssertionError("the last shape holds any batch")

    def _plan(self, step: int) -> _Plan:
        """Plans a step's batch from lengths and random draws. The order depends only on the student's lengths, so that a live teacher
        and stored targets train the same."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = self._epoch(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        width = max(stream.most_words(rows) for stream in self._streams)
        draws_of_use = lru_cache(partial(self._draws, step, width))
        terms = SourceTerms((), (set(), set()))
        if self._sources:  # all rows are of the same one
            source_ends = np.cumsum(self._student.store.source_rows)
            terms = self._sources[np.searchsorted(source_ends, rows[0], side="right")]
        readers, lengths = [], []
        # Not strict: without a live teacher, there is no stream for the teacher's views.
        for stream, unread in zip(self._streams, terms.unread, strict=False):
            planned = []
            for index, view in enumerate(stream.views):
                if index in unread:
                    padding = Ragged(np.full(len(rows), stream.store.pad_id), np.ones(len(rows), np.int64))
                    planned.append((padding.taken, padding.lengths))
                else:
                    earlier_uses = stream.views[:index].count(view)
                    planned.append(_planned_view(view, stream.store, rows, partial(draws_of_use, earlier_uses)))
            readers.append([reader for reader, _ in planned])
            lengths.append(np.stack([bounds for _, bounds in planned]))
        order = packing.balanced_order(lengths[0].sum(axis=0), self.groups)
        slots = [of_views[:, order].T.reshape(self.groups, -1) for of_views in lengths]
        return _Plan(rows, order, slots, readers, terms)

    def _draws(self, step: int, width: int, use: int) -> Float[np.ndarray, "b draws"]:
        """Random numbers in [0, 1) for one use of a random view, a function of (seed, step, `use`); uses count from 0. To make them
        independent of `width`, each row draws one number per token of the longest possible sentence, and keeps the first."""
        numbers = np.empty((self.batch_size, width))

        def fill(block: slice) -> None:
            # Jumps to the block's place in a single random stream, so the numbers do not depend on the size of the blocks.
            bits = np.random.PCG64([self.seed, 1, step, use]).advance(block.start * self._most_draws)
            part = numbers[block]
            part[:] = np.random.Generator(bits).random((len(part), self._most_draws))[:, :width]

        _in_blocks(fill, self.batch_size)
        return numbers

    def _epoch_rows(self, epoch: int) -> Integer[np.ndarray, " rows"]:
        """The rows of an epoch, shuffled: all of them; with weights, each source's share; with sources, whole batches of each."""
        generator = np.random.default_rng([self.seed, 0, epoch])
        if not self._shares:
            return generator.permutation(self.trained)
        parts = []
        # A source is an endless sequence of permutations of its rows; epoch i takes i * share to (i + 1) * share.
        # This needs no state: only the permutations that overlap the epoch are drawn.
        for source, (rows, share) in enumerate(self._shares):
            begin, end = epoch * share, (epoch + 1) * share
            passes = range(begin // len(rows), math.ceil(end / len(rows)))
            orders = [np.random.default_rng([self.seed, 2, source, number]).permutation(rows) for number in passes]
            skipped = begin - passes.start * len(rows)
            parts.append(np.concatenate([rows[:0], *orders])[skipped : skipped + share])  # no orders if the share is 0
        if not self._sources:
            return generator.permutation(np.concatenate(parts))
        # Batch i of a source's n batches is due at (i + 0.5) / n of the epoch, which spreads each source evenly.
        counts = [len(part) // self.batch_size for part in parts]
        due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        return np.concatenate(parts).reshape(-1, self.batch_size)[np.argsort(due, kind="stable")].ravel()


def padding_share(batch: Batch) -> float:
    """Share of padding among a batch's token slots."""
    owners = [tokens.owner for tokens in (batch.student, batch.teacher) if tokens is not None]
    return sum(int((owner < 0).sum()) for owner in owners) / sum(owner.size for owner in owners)


def _planned_view(
    view: views.View, store: TokenStore, rows: Integer[np.ndarray, " b"], draws: views.Draws
) -> tuple[Reader, Integer[np.ndarray, " b"]]:
    """A reader of `rows` under a view, and an upper bound of each sentence's length. `draws` is called often; it must cache."""
    if view.changes_text:  # its lengths are only known after tokenising
        sentences = views.viewed(view, store, rows, draws)
        return sentences.taken, sentences.lengths
    if view.is_random:
        draws()  # now, or each thread below would compute them
    bounds = np.empty(len(rows), np.int64)

    def bound(block: slice) -> None:
        bounds[block] = views.most_tokens(view, store, rows[block], lambda: draws()[block])

    def read(examples: Integer[np.ndarray, " m"]) -> Ragged:
        return views.viewed(view, store, rows[examples], lambda: draws()[examples])

    _in_blocks(bound, len(rows))
    return read, bounds


def _shares(store: TokenStore, rows: np.ndarray, weights: Sequence[float], size: int) -> list[tuple[np.ndarray, int]]:
    """For each source, its part of `rows`, and how many of them an epoch takes, a multiple of `size`. Empty without `weights`."""
    if not weights:
        return []
    # Rounding the cumulative ends, not each count, makes the counts add up to the epoch exactly.
    ends = np.cumsum(np.asarray(weights, np.float64) / sum(weights)) * (len(rows) // size)
    counts = np.diff(np.round(ends).astype(int), prepend=0) * size
    source_of_row = np.repeat(np.arange(len(weights)), store.source_rows)[rows]
    parts = [rows[source_of_row == source] for source in range(len(weights))]
    for number, part in enumerate(parts, 1):
        if not len(part):
            raise InputError(f"source {number} of data.text has no sentence to train on; remove it.")
    if size > 1 and not all(counts):
        problem = f"source {np.argmin(counts) + 1} of data.text has none of the {len(rows) // size} batches of an epoch"
        raise InputError(f"{problem}; raise its data.weights, or reduce --config.data.batch_size.")
    return list(zip(parts, counts.tolist(), strict=True))


def _in_blocks(work: Callable[[slice], None], rows: int) -> None:
    """Calls `work` on each block of rows, in several threads."""
    blocks = [slice(begin, min(begin + BLOCK_ROWS, rows)) for begin in range(0, rows, BLOCK_ROWS)]
    if len(blocks) == 1:
        return work(blocks[0])
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "batches") as threads:  # numpy releases the interpreter lock
        for _ in threads.map(work, blocks):
            pass  # iterating raises the error of a block
