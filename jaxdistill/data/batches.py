"""Makes batches as a pure function of (seed, step), so that a resumed run needs no iterator state.

Order, groups and shape of a batch follow from lengths and random draws alone, without reading a token. Each process plans
all groups this way, then reads and packs only its own, so the batch is the same for any number of processes.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Batch, InputError
from jaxdistill.data import packing, views
from jaxdistill.data.shapes import choose_shapes
from jaxdistill.data.targets import Stored
from jaxdistill.data.text import TEXT, text_key
from jaxdistill.data.tokens import TokenStore
from jaxdistill.objectives.weighted import SourceTerms

SIMULATED_STEPS = 160
"""Number of batches from which the shapes are chosen."""
BLOCK_ROWS = 1024
"""Sentences whose draws and lengths one thread computes at a time."""
QUEUE_SEED = 16349
"""Seed with which ConGen's code draws the sentences of the first queue, regardless of the run's seed; draws reserved rows."""


class Viewed:
    """A tokenised text, and the views that the student or the teacher reads of it; `names` are theirs, see `views`."""

    def __init__(self, store: TokenStore, names: Sequence[str]):
        self.store = store
        self.views = [views.parse_view(name, store.columns) for name in names]

    def most_words(self, rows: Integer[np.ndarray, " b"]) -> int:
        """The most words that a sentence has in a column of a random view; at least 1."""
        columns = {view.column for view in self.views if view.is_random}
        return max((int(self.store.counts_of(column, rows).words.max(initial=1)) for column in columns), default=1)


class _Plan(NamedTuple):
    """Everything about a step's batch that is known without reading tokens; lists have one entry per stream."""

    rows: Integer[np.ndarray, " b"]
    """Store rows in the order of the epoch."""
    order: Integer[np.ndarray, " b"]
    """Examples of the batch in group order, as indices of `rows`."""
    slots: list[Integer[np.ndarray, "g n"]]
    """Slots to reserve for each sentence, at least its length; group-major, an example's views adjacent."""
    readers: list[list[Callable[[Integer[np.ndarray, " m"]], packing.Ragged]]]
    """For each view, a function from examples, as indices of `rows`, to their tokens."""
    terms: SourceTerms
    """What a batch of this source trains; the views that it does not need are not read."""


class Batches:
    """Random access to the batches of a run.

    Each epoch shuffles the sentences anew and drops the last, incomplete batch. With weights, an epoch has the same
    number of sentences; each source reshuffles and repeats its own sentences to fill its share. With `sources`, each batch
    is of one source, and an epoch spreads the batches of each source evenly.

    Args:
      student: what the student reads. Repeated views are drawn independently; the n-th use of a view keeps the same words for
        student and teacher.
      teacher: what a live teacher reads, of the same rows; or its stored vectors, one array `[rows, e]` per view.
      weights: relative sampling weight of each source; empty: all sentences are sampled equally often.
      sources: for each source, the terms of the objective that its batches train; empty: batches mix the sources.
      keyed: whether batches have `keys`, hashes by which an objective compares texts.
      groups: number of groups of a batch, each packed by itself; a multiple of the devices.
      local: the groups that this process holds, ascending; None: all.
      reserve_rows: number of rows that are held out of training, with all rows of equal text.
      max_shapes: number of shapes, and `divided` whether rows may be divided, see `choose_shapes`.
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
        keyed: bool = False,
        groups: int = 1,
        local: Integer[np.ndarray, " local"] | None = None,
        reserve_rows: int = 0,
        max_shapes: int = 4,
        divided: bool = False,
    ):
        self.batch_size, self.groups, self.seed = batch_size, groups, seed
        self._local = np.arange(groups) if local is None else local
        self._student, self._streams, self._targets = student, [student], ()
        if isinstance(teacher, Viewed):
            self._streams.append(teacher)
        else:
            self._targets = tuple(teacher)
        store = student.store
        self.reserved = np.sort(np.random.RandomState(QUEUE_SEED).permutation(store.rows)[:reserve_rows])
        # By key, not by row: a repeat of a reserved sentence must not be trained on either.
        self.trained = np.flatnonzero(~np.isin(store.keys, store.keys[self.reserved]))
        if len(self.trained) < batch_size:
            without = f" without the {reserve_rows} reserved ones and their repeats" if reserve_rows else ""
            raise InputError(
                f"{len(self.trained)} of the text's {store.rows} sentences are left for training{without}, and one batch needs "
                f"{batch_size}; add text, or reduce --config.data.batch_size."
            )
        self._sources, self._keyed = sources, keyed
        weights = weights or (store.source_rows if sources else ())
        self._shares = _shares(store, self.trained, weights, batch_size if sources else 1)
        self._most_draws = max(stream.store.max_length for stream in self._streams)
        self._epoch = lru_cache(maxsize=2)(self._epoch_rows)
        self._max_shapes, self._divided = max_shapes, divided

    @property
    def steps_per_epoch(self) -> int:
        return len(self.trained) // self.batch_size

    @cached_property
    def shapes(self) -> tuple[packing.Shapes, ...]:
        """Possible shapes of a batch, smallest first: each has one shape per stream."""
        batches = [self._plan(step).slots for step in range(SIMULATED_STEPS)]
        longest = [max(view.longest(stream.store) for view in stream.views) for stream in self._streams]
        return choose_shapes(batches, longest, most=self._max_shapes, divided=self._divided)

    @property
    def usual_shapes(self) -> tuple[packing.Shapes, ...]:
        """The shapes without the last, which holds any batch and which hardly any batch needs."""
        return self.shapes[:-1] or self.shapes

    def batch_at(self, step: int) -> Batch:
        """This process's groups of a step's batch; steps count from 0."""
        plan = self._plan(step)
        examples = plan.order.reshape(self.groups, -1)[self._local].ravel()
        streams = []
        for stream, readers, (first, shape) in zip(self._streams, plan.readers, self._packed(plan), strict=True):
            parts = [read(examples) for read in readers]
            ids = np.concatenate([part.ids for part in parts])
            lengths = np.concatenate([part.lengths for part in parts])
            firsts = None
            if any(view.second for view in stream.views):
                # The sentences of single views count as first ones.
                firsts = np.concatenate([part.lengths if part.firsts is None else part.firsts for part in parts])
            # An example's views adjacent.
            by_example = np.arange(len(lengths)).reshape(len(parts), -1).T.ravel()
            sentences = packing.Ragged(ids, lengths, firsts).taken(by_example)
            streams.append(packing.filled(sentences, first, shape, pad_id=stream.store.pad_id))
        rows, targets, active, keys = plan.rows[examples], None, None, None
        if self._targets:
            targets = np.stack([np.asarray(target[rows], np.float32) for target in self._targets], axis=1)
        if plan.terms.active:
            active = np.tile(np.array(plan.terms.active, np.float32), (len(rows), 1))
        if self._keyed:  # [examples, views, 2]: hashes of the columns that the student's views read
            store, columns = self._student.store, [view.column for view in self._student.views]
            hashed = {column: [text_key(store.text(column, row)) for row in rows] for column in {*columns} - {TEXT}}
            hashed[TEXT] = store.keys[rows].tolist()
            by_view = np.array([hashed[column] for column in columns], np.uint64)
            keys = np.ascontiguousarray(by_view.T)[..., None].view(np.uint32)
        return Batch(streams[0], streams[1] if len(streams) > 1 else None, targets, keys, active)

    def _packed(self, plan: _Plan) -> list[tuple[Integer[np.ndarray, "local n"], packing.Shape]]:
        """For each stream, the first slot of each sentence of this process's groups, and the smallest shape that holds
        all groups, other processes' too: all must run the same program."""
        for shapes in self.shapes:
            packed = []
            for slots, shape in zip(plan.slots, shapes, strict=True):
                first = packing.first_slots(slots, shape)
                if first is None:
                    break
                packed.append((first[self._local], shape))
            else:
                return packed
        raise AssertionError("the last shape holds any batch")

    def _plan(self, step: int) -> _Plan:
        """Order and lengths of a step's batch; the order depends only on the student's lengths, so that a live teacher and
        stored targets train the same."""
        epoch, index = divmod(step, self.steps_per_epoch)
        rows = self._epoch(epoch)[index * self.batch_size : (index + 1) * self.batch_size]
        uniform = lru_cache(partial(self._draws, step, max(stream.most_words(rows) for stream in self._streams)))
        terms = SourceTerms((), (set(), set()))
        if self._sources:
            terms = self._sources[np.searchsorted(np.cumsum(self._student.store.source_rows), rows[0], side="right")]
        readers, lengths = [], []
        for stream, unread in zip(self._streams, terms.unread, strict=False):
            read, most = list[Callable](), np.empty((len(stream.views), len(rows)), np.int64)
            for index, view in enumerate(stream.views):
                draws = partial(uniform, stream.views[:index].count(view))
                sentences = None
                if index in unread:  # a single padding token
                    sentences = packing.Ragged(np.full(len(rows), stream.store.pad_id), np.ones(len(rows), np.int64))
                elif view.changes_text:  # its lengths are only known after tokenising
                    sentences = views.viewed(view, stream.store, rows, draws)
                if sentences:
                    read.append(sentences.taken)
                    most[index] = sentences.lengths
                    continue
                if view.is_random:
                    draws()  # cached here: it uses the same threads, which would wait for each other

                def bound(block: slice, stream=stream, view=view, draws=draws, most=most[index]) -> None:
                    most[block] = views.most_tokens(view, stream.store, rows[block], lambda: draws()[block])

                def tokens(examples: np.ndarray, stream=stream, view=view, draws=draws) -> packing.Ragged:
                    return views.viewed(view, stream.store, rows[examples], lambda: draws()[examples])

                _in_blocks(bound, len(rows))
                read.append(tokens)
            readers.append(read)
            lengths.append(most)
        order = packing.balanced_order(lengths[0].sum(axis=0), self.groups)
        slots = [of_views[:, order].T.reshape(self.groups, -1) for of_views in lengths]
        return _Plan(rows, order, slots, readers, terms)

    def _draws(self, step: int, width: int, use: int) -> Float[np.ndarray, "b draws"]:
        """Random numbers `[b, width]` of the n-th use of an augmentation, from (seed, step, n).

        Each row draws one number per token of the longest possible sentence; only the first `width` are kept.
        """
        numbers = np.empty((self.batch_size, width))

        def fill(block: slice) -> None:
            # Jump to where the block begins in one stream: the numbers do not depend on how rows are split into blocks.
            bits = np.random.PCG64([self.seed, 1, step, use]).advance(block.start * self._most_draws)
            part = numbers[block]
            part[:] = np.random.Generator(bits).random((len(part), self._most_draws))[:, :width]

        _in_blocks(fill, self.batch_size)
        return numbers

    def _epoch_rows(self, epoch: int) -> Integer[np.ndarray, " rows"]:
        """The rows of an epoch, shuffled."""
        generator = np.random.default_rng([self.seed, 0, epoch])
        if not self._shares:
            return generator.permutation(self.trained)
        parts = []
        # A source is an endless sequence of permutations of its rows; epoch i takes i * share to (i + 1) * share.
        # This needs no state: only the permutations that overlap the epoch are drawn.
        for source, (rows, share) in enumerate(self._shares):
            begin, end = epoch * share, (epoch + 1) * share
            passes = range(begin // len(rows), -(-end // len(rows)))
            orders = [np.random.default_rng([self.seed, 2, source, turn]).permutation(rows) for turn in passes]
            parts.append(np.concatenate(orders)[begin - passes.start * len(rows) :][:share] if share else rows[:0])
        if not self._sources:
            return generator.permutation(np.concatenate(parts))
        counts = [len(part) // self.batch_size for part in parts]
        turns = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        return np.concatenate(parts).reshape(-1, self.batch_size)[np.argsort(turns, kind="stable")].ravel()


def padding_share(batch: Batch) -> float:
    """Share of padding among a batch's token slots."""
    owners = [tokens.owner for tokens in (batch.student, batch.teacher) if tokens is not None]
    return sum(int((owner < 0).sum()) for owner in owners) / sum(owner.size for owner in owners)


def _shares(store: TokenStore, rows: np.ndarray, weights: Sequence[float], size: int) -> list[tuple[np.ndarray, int]]:
    """For each source, its rows and how many of them, in whole batches of `size`, an epoch takes; empty without weights."""
    if not weights:
        return []
    # Rounding the cumulative ends, not each count, makes the counts add up to the epoch exactly.
    ends = np.cumsum(np.asarray(weights, np.float64) / sum(weights)) * (len(rows) // size)
    counts = np.diff(np.round(ends).astype(int), prepend=0) * size
    source = np.repeat(np.arange(len(weights)), store.source_rows)[rows]
    parts = [rows[source == index] for index in range(len(weights))]
    empty = [index for index, part in enumerate(parts) if not len(part)]
    if empty:
        raise InputError(f"source {empty[0] + 1} of data.text has no sentence to train on; remove it.")
    if size > 1 and not all(counts):
        few = f"source {np.argmin(counts) + 1} of data.text has none of the {len(rows) // size} batches"
        raise InputError(f"{few} of an epoch; raise its data.weights, or reduce --config.data.batch_size.")
    return list(zip(parts, counts.tolist(), strict=True))


def _in_blocks(work: Callable[[slice], None], rows: int) -> None:
    """Calls `work` on each block of rows, in several threads."""
    blocks = [slice(begin, min(begin + BLOCK_ROWS, rows)) for begin in range(0, rows, BLOCK_ROWS)]
    if len(blocks) == 1:
        return work(blocks[0])
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "batches") as threads:  # numpy releases the interpreter lock
        for _ in threads.map(work, blocks):
            pass  # an error of a block is raised here
