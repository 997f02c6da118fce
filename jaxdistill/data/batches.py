"""Makes batches as a pure function of (seed, step), so that a resumed run needs no iterator state.

Order, groups and shape of a batch follow from lengths and random draws alone, without reading a token. Each process plans all groups
this way, then reads and packs only its own, so the batch is the same for any number of processes.
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
    """What the student or the teacher reads: views of a tokenised text, by their names, such as `text` or `delete_words:0.2`."""

    def __init__(self, store: TokenStore, names: Sequence[str]):
        self.store = store
        self.views = [views.parse_view(name, store.columns) for name in names]

    def most_words(self, rows: Integer[np.ndarray, " b"]) -> int:
        """The largest number of words in a sentence of `rows` that a random view reads; at least 1, as every such view draws a number."""
        columns = {view.column for view in self.views if view.is_random}
        return max((int(self.store.counts_of(column, rows).words.max(initial=1)) for column in columns), default=1)

    def tokens(self, by_view: Sequence[Ragged], first_slots: Integer[np.ndarray, "g n"], shape: Shape) -> Tokens:
        """Writes examples into padded arrays. `by_view` has, for each view, a sentence of each example. `first_slots` has the slot of
        each sentence's first token, with an example's views side by side."""
        ids = np.concatenate([sentences.ids for sentences in by_view])
        lengths = np.concatenate([sentences.lengths for sentences in by_view])
        first_lengths = None
        if any(view.second for view in self.views):
            # In the same batch as pairs, a single sentence counts as the first of a pair.
            first_lengths = np.concatenate([part.lengths if part.firsts is None else part.firsts for part in by_view])
        # Reorders the sentences from [views, examples] to [examples, views].
        by_example = np.arange(len(lengths)).reshape(len(by_view), -1).T.ravel()
        sentences = Ragged(ids, lengths, first_lengths).taken(by_example)
        return packing.filled(sentences, first_slots, shape, pad_id=self.store.pad_id)


class _Plan(NamedTuple):
    """Everything about a step's batch that is known without reading tokens; lists have one entry per stream."""

    rows: Integer[np.ndarray, " b"]
    """Store rows in the order of the epoch."""
    order: Integer[np.ndarray, " b"]
    """Examples of the batch in group order, as indices of `rows`."""
    bounds: list[Integer[np.ndarray, "g n"]]
    """Upper bound of each sentence's length, with an example's views side by side."""
    readers: list[list[Reader]]
    """One reader per view."""
    terms: SourceTerms
    """What this batch trains. In views that no trained term reads, each sentence is a single padding token."""


class Batches:
    """Random access to the batches of a run.

    Each epoch shuffles the sentences anew and drops the last, incomplete batch. With `weights`, each source reshuffles and repeats its
    sentences to fill its share of an equally long epoch. With `sources`, a batch has sentences of one source; its batches are spread evenly.

    Args:
      student: what the student reads. A random view that repeats is drawn anew; its n-th use keeps the same words as the teacher's n-th.
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
        if sources and not weights:  # each source gets batches in proportion to its rows
            weights = store.source_rows
        self._shares = _shares(store, self.trained, weights, unit=batch_size if sources else 1)
        self._draws_per_row = max(stream.store.max_length for stream in self._streams)  # words are at most tokens
        self._epoch = lru_cache(maxsize=2)(self._epoch_rows)
        self._max_shapes, self._divided = max_shapes, divided

    @property
    def steps_per_epoch(self) -> int:
        return len(self.trained) // self.batch_size

    @cached_property
    def shapes(self) -> tuple[Shapes, ...]:
        """Possible shapes of a batch, smallest first: each has one shape per stream."""
        batches = [self._plan(step).bounds for step in range(SIMULATED_STEPS)]
        longest = [max(view.longest(stream.store) for view in stream.views) for stream in self._streams]
        return choose_shapes(batches, longest, most=self._max_shapes, divided=self._divided)

    @property
    def usual_shapes(self) -> tuple[Shapes, ...]:
        """The shapes without the last, which holds any batch and which hardly any batch needs."""
        return self.shapes[:-1] or self.shapes

    def batch_at(self, step: int) -> Batch:
        """This process's groups of a step's batch; steps count from 0."""
        plan = self._plan(step)
        examples = plan.order.reshape(self.groups, -1)[self._local].ravel()  # this process's, as indices of `plan.rows`
        rows = plan.rows[examples]
        streams = [
            stream.tokens([read(examples) for read in readers], slots[self._local], shape)
            for stream, readers, (slots, shape) in zip(self._streams, plan.readers, self._packed(plan), strict=True)
        ]
        targets = active = None
        if self._targets:
            targets = np.stack([np.asarray(target[rows], np.float32) for target in self._targets], axis=1)
        if plan.terms.active:
            active = np.tile(np.array(plan.terms.active, np.float32), (len(rows), 1))  # the same for all examples
        keys = self._view_keys(rows) if self._with_keys else None
        return Batch(streams[0], streams[1] if len(streams) > 1 else None, targets, keys, active)

    def _view_keys(self, rows: Integer[np.ndarray, " m"]) -> Integer[np.ndarray, "m v 2"]:
        """64-bit hashes of the texts that the student's views read, before words are deleted, as the 32-bit halves that JAX can hold."""
        store = self._student.store
        columns = [view.column for view in self._student.views]
        keys = {TEXT: store.keys[rows]}  # the store has the hashes of this column
        for column in {*columns} - {TEXT}:
            keys[column] = np.array([text_key(store.text(column, row)) for row in rows], np.uint64)
        return np.stack([keys[column] for column in columns], axis=1)[..., None].view(np.uint32)

    def _packed(self, plan: _Plan) -> list[tuple[Integer[np.ndarray, "g n"], Shape]]:
        """For each stream, the first slot of each sentence, and the shape that holds the batch. The shapes are the smallest that hold
        all groups, those of other processes included, because all processes must run the same program."""
        for shapes in self.shapes:
            packed = []
            for bounds, shape in zip(plan.bounds, shapes, strict=True):
                if (slots := packing.first_slots(bounds, shape)) is None:
                    break  # the other streams need not be packed
                packed.append((slots, shape))
            if len(packed) == len(shapes):
                return packed
        raise AssertionError("the last shape holds any batch")

    def _plan(self, step: int) -> _Plan:
        """Plans a step's batch from lengths and random draws."""
        epoch, index_in_epoch = divmod(step, self.steps_per_epoch)
        rows = self._epoch(epoch)[index_in_epoch * self.batch_size : (index_in_epoch + 1) * self.batch_size]
        terms = SourceTerms(active=(), unread=(set(), set()))  # batches that mix the sources train all terms
        if self._sources:  # all rows have the source of the first
            source_ends = np.cumsum(self._student.store.source_rows)
            terms = self._sources[np.searchsorted(source_ends, rows[0], side="right")]
        width = max(stream.most_words(rows) for stream in self._streams)
        draws_of_use = lru_cache(partial(self._draws, step, width))  # shared by the student's and the teacher's views
        readers, bounds_by_view = [], []
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
            bounds_by_view.append(np.stack([bounds for _, bounds in planned]))  # [views, b]
        # By the student's lengths alone, so that a live teacher and stored targets train the same.
        order = packing.balanced_order(bounds_by_view[0].sum(axis=0), self.groups)
        # From [views, b] to [groups, n], with an example's views side by side.
        bounds = [view_bounds[:, order].T.reshape(self.groups, -1) for view_bounds in bounds_by_view]
        return _Plan(rows, order, bounds, readers, terms)

    def _draws(self, step: int, width: int, use: int) -> Float[np.ndarray, "b width"]:
        """Random numbers in [0, 1), a function of (seed, step, `use`), where `use` counts the uses of a view from 0. Each row draws as
        many as the longest possible sentence has tokens, and keeps the first `width`, so that no number depends on `width`."""

        def draw(block: slice) -> Float[np.ndarray, "n width"]:
            # Skips the numbers of earlier blocks in one random stream, so that the numbers do not depend on the size of the blocks.
            bits = np.random.PCG64([self.seed, 1, step, use]).advance(block.start * self._draws_per_row)
            numbers = np.random.Generator(bits).random((block.stop - block.start, self._draws_per_row))
            return numbers[:, :width].copy()  # frees the others

        return _in_blocks(draw, self.batch_size)

    def _epoch_rows(self, epoch: int) -> Integer[np.ndarray, " rows"]:
        """The rows of an epoch, shuffled: all of them; with weights, each source's share; with sources, whole batches of each."""
        generator = np.random.default_rng([self.seed, 0, epoch])
        if not self._shares:
            return generator.permutation(self.trained)
        by_source = []
        # A source is an endless sequence of permutations. Epoch i takes rows i * share to (i + 1) * share; only what it overlaps is drawn.
        for source, (rows, share) in enumerate(self._shares):
            begin, end = epoch * share, (epoch + 1) * share
            passes = range(begin // len(rows), math.ceil(end / len(rows)))
            orders = [np.random.default_rng([self.seed, 2, source, number]).permutation(rows) for number in passes]
            overlapped = np.concatenate([rows[:0], *orders])  # without orders if the share is 0
            by_source.append(overlapped[begin % len(rows) :][:share])
        epoch_rows = np.concatenate(by_source)
        if not self._sources:
            return generator.permutation(epoch_rows)
        # Batch i of a source's n batches is due at (i + 0.5) / n of the epoch, which spreads each source evenly.
        counts = [len(rows) // self.batch_size for rows in by_source]
        due = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        return epoch_rows.reshape(-1, self.batch_size)[np.argsort(due, kind="stable")].ravel()


def padding_share(batch: Batch) -> float:
    """Share of padding among a batch's token slots."""
    owners = [tokens.owner for tokens in (batch.student, batch.teacher) if tokens is not None]
    return sum(int((owner < 0).sum()) for owner in owners) / sum(owner.size for owner in owners)


def _planned_view(
    view: views.View, store: TokenStore, rows: Integer[np.ndarray, " b"], draws: views.Draws
) -> tuple[Reader, Integer[np.ndarray, " b"]]:
    """A reader of `rows` under a view, and an upper bound of each sentence's length. `draws` is called often, so it must be cached."""
    if view.changes_text:  # lengths are only known after tokenising
        sentences = views.viewed(view, store, rows, draws)
        return sentences.taken, sentences.lengths
    if view.is_random:
        draws()  # now, or each thread below would compute them

    def read(examples: Integer[np.ndarray, " m"]) -> Ragged:
        return views.viewed(view, store, rows[examples], lambda: draws()[examples])

    def bounds(block: slice) -> Integer[np.ndarray, " n"]:
        return views.most_tokens(view, store, rows[block], lambda: draws()[block])

    return read, _in_blocks(bounds, len(rows))


def _shares(store: TokenStore, rows: np.ndarray, weights: Sequence[float], unit: int) -> list[tuple[np.ndarray, int]]:
    """For each source, its part of `rows`, and how many rows an epoch takes of it, a multiple of `unit`. Empty without `weights`."""
    if not weights:
        return []
    # Rounding the cumulative ends, not each count, makes the counts add up to the epoch exactly.
    ends = np.cumsum(np.asarray(weights, np.float64) / sum(weights)) * (len(rows) // unit)
    counts = np.diff(np.round(ends).astype(int), prepend=0) * unit
    source_of_row = np.repeat(np.arange(len(weights)), store.source_rows)[rows]
    by_source = [rows[source_of_row == source] for source in range(len(weights))]
    for number, source_rows in enumerate(by_source, 1):
        if not len(source_rows):
            raise InputError(f"source {number} of data.text has no sentence to train on; remove it.")
    if unit > 1 and not all(counts):
        problem = f"source {np.argmin(counts) + 1} of data.text has none of the {len(rows) // unit} batches of an epoch"
        raise InputError(f"{problem}; raise its data.weights, or reduce --config.data.batch_size.")
    return list(zip(by_source, counts.tolist(), strict=True))


def _in_blocks(compute: Callable[[slice], np.ndarray], rows: int) -> np.ndarray:
    """Concatenates what `compute` returns for each block of rows, in several threads."""
    blocks = [slice(begin, min(begin + BLOCK_ROWS, rows)) for begin in range(0, rows, BLOCK_ROWS)]
    if len(blocks) == 1:
        return compute(blocks[0])
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "batches") as threads:  # numpy releases the interpreter lock
        return np.concatenate(list(threads.map(compute, blocks)))
