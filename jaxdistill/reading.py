"""Reads the training text for a model: tokenised, split into chunks, or sampled."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import Integer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import Config, Data, RunOptions
from jaxdistill.core import SECOND, InputError, Objective
from jaxdistill.data import words
from jaxdistill.data.chunks import Chunking, tokens_around
from jaxdistill.data.packing import pad
from jaxdistill.data.sources import split_specs
from jaxdistill.data.text import (
    TEXT,
    Portion,
    Roles,
    column_map,
    excluded_keys,
    identifying,
    parse_roles,
    portions,
    read,
    row_key,
)
from jaxdistill.data.tokens import TokenStore, build_store
from jaxdistill.data.views import PAIRS, RATES
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import cache_folder
from jaxdistill.surgery import pruning

SAMPLE = 4096
"""Most sentences on which `check_reads` tests a tokenizer, instead of the whole text."""
DELETING = (*RATES, "delete_one_word")
"""Views that do not change a sentence of one word."""
MAX_SINGLE_WORDS = 0.5
"""Share of one-word sentences above which a run warns."""
PRUNING_SAMPLE, PRUNING_BATCH = 1024, 32
"""Number of sentences on which activations are measured, and of sentences per batch."""

Item = TypeVar("Item")

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelContext:
    """Everything besides its own options that a training's model is made from."""

    data: Data
    """The text, and how to read it."""
    student_views: Sequence[str]
    run: RunOptions
    """Provides seed and precision."""
    located: Callable[[str], str] = str
    """Maps the name of a model to its location: an earlier stage is a folder."""
    draft: bool = False
    """Only shapes matter, so no model reads the text: evenly spaced layers, units pruned by their weights and a table of
    zeros stand in for what a student takes from it."""


def sentence_roles(data: Data) -> Roles:
    """The roles that `data.roles` gives; raises `InputError` for an unknown role, column, or number of sources."""
    return parse_roles(
        data.roles, columns=tuple(dict(data.columns) or (TEXT,)), sources=max(1, len(split_specs(data.text)))
    )


def text_portions(data: Data) -> list[Portion]:
    """The portions of the text: its sources, or their columns if texts are split into chunks."""
    columns = column_map(dict(data.columns) or (TEXT,))
    return portions(
        split_specs(data.text),
        columns,
        sentence_roles(data),
        separate=data.chunk_tokens > 0,
    )


def student_text(
    config: Config, objective: Objective, student: SentenceModel, length: int, *, progress: bool
) -> TokenStore:
    """The text tokenised for the student, at most `length` tokens per sentence; split into chunks if the options say so."""
    chunking = _chunking_of(config, objective, student, length)
    views = objective.student_views
    return tokenised_text(config.data, student, views, max_length=length, chunking=chunking, progress=progress)


def _chunking_of(config: Config, objective: Objective, student: SentenceModel, max_length: int) -> Chunking | None:
    """How the text is split into chunks, the same for student and teacher; None if it is not.

    Raises:
      InputError: options contradict each other, or other options need whole rows.
    """
    data = config.data
    if not data.chunk_tokens:
        if data.chunk_least:
            raise InputError(f"data.chunk_least={data.chunk_least} has no effect; set --config.data.chunk_tokens too.")
        return None
    needs_rows = [view for view in objective.student_views if view in (SECOND, *PAIRS) or view in dict(data.columns)]
    if needs_rows := [view for view in needs_rows if view != TEXT]:
        why = f"the view {needs_rows[0]} reads two columns of a row"
    elif config.teacher.of_rows:
        why = "the teacher's targets are of whole rows"
    else:
        return _chunking(data, student, max_length)
    raise InputError(f"data.chunk_tokens={data.chunk_tokens} splits rows, but {why}; set --config.data.chunk_tokens=0.")


def _chunking(data: Data, student: SentenceModel, max_length: int) -> Chunking:
    if data.chunk_tokens > max_length:
        raise InputError(
            f"data.chunk_tokens={data.chunk_tokens} is more than the student reads, {max_length} tokens; reduce it"
            + (", or raise --config.data.max_length." if data.max_length else ".")
        )
    prompts = [student.role_prompts[role] for portion in text_portions(data) for role in portion.roles]
    around = tokens_around(student.tokenizer, prompts)
    least, most = data.chunk_least - around, data.chunk_tokens - around
    if most < 1 or (data.chunk_least and not 1 <= least <= most):
        raise InputError(
            f"data.chunk_tokens={data.chunk_tokens} and data.chunk_least={data.chunk_least}: with {around} special tokens and "
            f"prompt, chunk_tokens must be at least {around + 1}, and chunk_least 0 or from {around + 1} to chunk_tokens."
        )
    return Chunking(tokenizer=student.tokenizer, most=most, least=max(0, least))


def tokenised_text(
    data: Data,
    model: SentenceModel,
    views: Sequence[str],
    *,
    max_length: int,
    progress: bool,
    chunking: Chunking | None = None,
) -> TokenStore:
    """The text tokenised for a model; raises `InputError` if too much of its views' columns is unknown to the tokenizer."""
    store = build_store(
        split_specs(data.text),
        tokenizer=model.tokenizer,
        max_length=max_length,
        cache_folder=cache_folder(data.cache_folder),
        columns=dict(data.columns) or ("text",),
        prompts=model.role_prompts,
        roles=sentence_roles(data),
        dedupe=data.dedupe,
        exclude=split_specs(data.exclude),
        chunking=chunking,
        progress=progress,
    )
    for column in columns_of_views(store, views):
        _check_unknown(data, model, column, store.unknown(column))
    for view in dict.fromkeys(views):
        _warn_of_single_words(store, view)
    return store


def _warn_of_single_words(store: TokenStore, view: str) -> None:
    """Logs a warning if a view deletes words but most sentences have only one, as in Chinese."""
    if view in store.columns or view.partition(":")[0] not in DELETING:
        return
    rows = np.arange(0, len(store), -(-len(store) // SAMPLE))
    share = float(np.mean(store.counts_of(TEXT, rows).words < 2))
    if share > MAX_SINGLE_WORDS:
        log.warning(
            "warning: the view %s leaves %.0f %% of the sentences as they are, because they have one word between spaces; "
            "use mask_span, or another view",
            view,
            100 * share,
        )


def check_reads(data: Data, model: SentenceModel, views: Sequence[str], store: TokenStore) -> None:
    """Like the check of `tokenised_text`, for a model that reads raw text: tests evenly spaced sentences."""
    tokenizer = model.tokenizer
    for column in columns_of_views(store, views):
        rows = range(0, len(store), -(-len(store) // SAMPLE))
        texts = [store.text(column, row) for row in rows]
        prompts = [model.role_prompts[role] for role in store.roles(column, rows)]
        read = words.tokenised_words(tokenizer, texts, prompts, model.max_length, unknown=unknown_id(tokenizer))
        _check_unknown(data, model, column, read.unknown)


def columns_read(data: Data, student_views: Sequence[str]) -> dict[str, str]:
    """The text's columns that the student reads: `text`, and the columns of its views and pairs."""
    columns = dict(data.columns) or {TEXT: TEXT}
    pairs = any(view in PAIRS for view in student_views)
    read = (TEXT, *student_views, *([SECOND] if pairs else []))
    return {name: column for name, column in columns.items() if name in read}


def activation_moments(context: ModelContext, model: SentenceModel) -> pruning.Moments:
    """Moments of the model's units on evenly spaced sentences of the text, see `pruning`."""
    ids = sorted(sampled_ids(context, model, PRUNING_SAMPLE), key=len)
    longest = _cut_at(context.data, model)
    total: dict[str, np.ndarray] = {}
    for start in range(0, len(ids), PRUNING_BATCH):
        batch = ids[start : start + PRUNING_BATCH]
        length = min(longest, 1 << (len(batch[-1]) - 1).bit_length())
        tokens = pad(batch, length=length, count=PRUNING_BATCH, pad_id=model.definition.architecture.pad_id)
        for path, moments in jax.device_get(pruning.moments_of(model.definition, model.params, tokens)).items():
            total[path] = total.get(path, 0.0) + moments
    return total


def sampled_ids(context: ModelContext, model: SentenceModel, most: int) -> list[Integer[np.ndarray, " tokens"]]:
    """The tokens of at most `most` evenly spaced sentences, truncated to the model's maximum length or to `data.max_length`,
    if that is less."""
    longest = _cut_at(context.data, model)
    texts = evenly_sampled(prompted_sentences(context, model), most)
    return [np.asarray(one.ids[:longest], np.int32) for one in model.encodings(texts)]


def _cut_at(data: Data, model: SentenceModel) -> int:
    return min(data.max_length or model.max_length, model.max_length)


def prompted_sentences(context: ModelContext, model: SentenceModel) -> Iterator[str]:
    """The sentences that the student's views read, with the model's prompts and without `data.exclude`."""
    return chain.from_iterable(prompted_rows(context, model))


def prompted_rows(context: ModelContext, model: SentenceModel) -> Iterator[list[str]]:
    """The same, row by row."""
    data, chunked = context.data, context.data.chunk_tokens > 0
    specs, of_student = split_specs(data.text), columns_read(data, context.student_views)
    columns = dict(data.columns) or {TEXT: TEXT}
    identity = {name: columns[name] for name in identifying(columns, chunked=chunked)}
    excluded = set(excluded_keys(split_specs(data.exclude), identity, data.cache_folder).tolist())
    for portion in text_portions(data):
        names = list(portion.columns)
        own = list(map(names.index, identifying(names, chunked=chunked))) or [0]
        prompts = [
            (index, model.role_prompts[role])
            for index, (name, role) in enumerate(zip(names, portion.roles, strict=True))
            if chunked or name in of_student
        ]
        for row in read([specs[portion.source]], portion.columns, cache=data.cache_folder):
            if not excluded or row_key([row[index] for index in own]) not in excluded:
                yield [prompt + row[index] for index, prompt in prompts if row[index].strip()]


def evenly_sampled(items: Iterable[Item], most: int) -> list[Item]:
    """Every n-th of the items, for the smallest power of 2 that leaves at most `most`."""
    kept, step = [], 1
    for number, item in enumerate(items):
        if number % step == 0:
            kept.append(item)
        if len(kept) > most:
            kept, step = kept[::2], 2 * step
    return kept


def columns_of_views(store: TokenStore, views: Sequence[str]) -> list[str]:
    """The columns that views read: a view that is not a column reads `text`, or both sentences of a pair."""
    made = any(view not in store.columns for view in views)
    return [name for name in store.columns if name in views or (made and name in (TEXT, SECOND))]


def _check_unknown(data: Data, model: SentenceModel, column: str, unknown: words.Unknown) -> None:
    if unknown.share:
        log.info("column %s, tokenizer of %s: %s unknown", column, model.source, unknown)
    if unknown.share > data.max_unknown:
        raise InputError(
            f"the tokenizer of {model.source} does not know the text of column {column}: {unknown} are unknown. Use a model "
            "for this language, a fresh student with its own vocabulary (--config=FILE.py:PRESET:student=fresh), or allow it with "
            f"--config.data.max_unknown={min(1.0, unknown.share + 0.01):.2f}"
        )
