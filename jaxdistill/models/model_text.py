"""The training text as a model reads it: tokenised, split into chunks, or sampled."""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from jaxdistill.core import SECOND, InputError, Objective, unknown_id
from jaxdistill.core.paths import cache_folder
from jaxdistill.data import text, words
from jaxdistill.data.chunks import Chunking, tokens_around
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT, Portion, Roles, columns_of, parse_roles, portions, read, split_specs
from jaxdistill.data.tokens import TokenStore, build_store
from jaxdistill.data.views import PAIRS, RATES
from jaxdistill.models.checkpoints.model import SentenceModel, check_size

SAMPLE = 4096  # rows sampled to check a tokenizer or a view, or to choose a length
DELETING = (*RATES, "delete_one_word")  # views that delete words, and so do not change a sentence of one word

log = logging.getLogger(__name__)


def sentence_roles(data: Data) -> Roles:
    """The roles that `data.roles` gives; raises `InputError` for an unknown role, column, or number of sources."""
    columns = tuple(dict(data.columns) or (TEXT,))
    return parse_roles(data.roles, columns=columns, sources=max(1, len(split_specs(data.text))))


def text_portions(data: Data, unread: Collection[str] = ()) -> list[Portion]:
    """The portions of the text: its sources, or their columns if texts are split into chunks. `unread` is that of `portions`."""
    columns = columns_of(dict(data.columns) or (TEXT,))
    separate = data.chunk_tokens > 0
    return portions(split_specs(data.text), columns, sentence_roles(data), separate=separate, unread=unread)


def student_text(
    data: Data, objective: Objective, student: SentenceModel, length: int, *, of_rows: bool, progress: bool
) -> TokenStore:
    """The text tokenised for the student, at most `length` tokens per sentence, and split into chunks if `data` says so. Raises
    `InputError` for chunks of an impossible length, or if a view or the targets (`of_rows`) need rows that are not split."""
    views, chunking = objective.student_views, None
    if data.chunk_tokens:
        needs_rows = {SECOND, *PAIRS, *dict(data.columns)} - {TEXT}  # with chunks, rows have the column `text` only
        views_of_rows = [view for view in views if view in needs_rows]
        if views_of_rows or of_rows:
            reader = f"the view {views_of_rows[0]} reads" if views_of_rows else "the teacher's targets are of"
            raise InputError(f"data.chunk_tokens={data.chunk_tokens} must be 0, because {reader} whole rows.")
        prompts = [student.role_prompts[role] for portion in text_portions(data) for role in portion.roles]
        around = tokens_around(student.tokenizer, prompts)
        check_size("data.chunk_tokens", data.chunk_tokens, length, "the maximum length", least=around + 1)
        if data.chunk_least:
            check_size("data.chunk_least", data.chunk_least, data.chunk_tokens, "data.chunk_tokens", least=around + 1)
        most = data.chunk_tokens - around  # `Chunking` counts a chunk's own tokens
        least = max(0, data.chunk_least - around)
        chunking = Chunking(tokenizer=student.tokenizer, most=most, least=least)
    return tokenised_text(data, student, views, length=length, chunking=chunking, progress=progress)


def tokenised_text(
    data: Data, model: SentenceModel, views: Sequence[str], *, length: int, progress: bool, chunking: Chunking | None
) -> TokenStore:
    """The text tokenised for `model`, at most `length` tokens per sentence; raises `InputError` if too much is unknown to its tokenizer."""
    store = build_store(
        split_specs(data.text), tokenizer=model.tokenizer, max_length=length, cache_folder=cache_folder(data.cache_folder),
        columns=dict(data.columns) or (TEXT,), prompts=model.role_prompts, roles=sentence_roles(data), dedupe=data.dedupe,
        exclude=split_specs(data.exclude), chunking=chunking, progress=progress,
    )  # fmt: skip
    for column in columns_of_views(store, views):
        _check_unknown(data, model, column, store.unknown(column))
    deleting = {view for view in views if view not in store.columns and view.partition(":")[0] in DELETING}
    if deleting:
        rows = np.arange(0, store.rows, -(-store.rows // SAMPLE))  # evenly spaced, at most `SAMPLE`
        unchanged = float(np.mean(store.counts_of(TEXT, rows).words < 2))
        if unchanged > 0.5:
            log.warning(
                "warning: the view %s leaves %.0f %% of the sentences as they are, because they have one word between spaces; "
                "use mask_span, or another view", ", ".join(sorted(deleting)), 100 * unchanged,
            )  # fmt: skip
    return store


def check_reads(data: Data, model: SentenceModel, views: Sequence[str], store: TokenStore) -> None:
    """Raises `InputError` if too much of a sample of the text is unknown to the tokenizer of `model`."""
    rows = range(0, store.rows, -(-store.rows // SAMPLE))  # evenly spaced, at most `SAMPLE`
    for column in columns_of_views(store, views):
        texts = [store.text(column, row) for row in rows]
        prompts = [model.role_prompts[role] for role in store.roles(column, rows)]
        unknown = unknown_id(model.tokenizer)
        tokenised = words.tokenised_words(model.tokenizer, texts, prompts, model.max_length, unknown=unknown)
        _check_unknown(data, model, column, tokenised.unknown)


def _check_unknown(data: Data, model: SentenceModel, column: str, unknown: words.Unknown) -> None:
    """Logs how much of a column is unknown; raises `InputError` if it is more than `data.max_unknown`."""
    share = max(unknown.shares)  # of tokens and of characters
    if share:
        log.info("column %s, tokenizer of %s: %s unknown", column, model.source, unknown)
    if share > data.max_unknown:
        raise InputError(
            f"the tokenizer of {model.source} does not know the text of column {column}: {unknown} are unknown. Use a model for this "
            "language, a fresh student with its own vocabulary (--config=FILE.py:PRESET:student=fresh), or allow it with "
            f"--config.data.max_unknown={min(1.0, share + 0.01):.2f}"  # enough after rounding, too
        )


def columns_of_views(store: TokenStore, views: Sequence[str]) -> list[str]:
    """The columns of `store` that `views` read. A view that is not a column reads `text` and, if the text has it, `second`."""
    names = set(views)
    if not names <= set(store.columns):
        names |= {TEXT, SECOND}
    return [name for name in store.columns if name in names]


def columns_read(data: Data, views: Sequence[str]) -> dict[str, str]:
    """The part of `data.columns` that the student reads: `text`, the columns of its `views`, and `second` for views of pairs."""
    columns = dict(data.columns) or {TEXT: TEXT}
    names = {TEXT, *views}
    if names & {*PAIRS}:
        names.add(SECOND)
    return {name: column for name, column in columns.items() if name in names}


def sampled_ids(data: Data, views: Sequence[str], model: SentenceModel, most: int) -> list[np.ndarray]:
    """Token ids of at most `most` evenly spaced sentences, truncated to the lesser of `data.max_length` and the model's."""
    texts = evenly_sampled(chain.from_iterable(prompted_rows(data, views, model)), most)
    # `encodings` has truncated to the model's length already; a `data.max_length` of 0 is none.
    return [np.asarray(encoding.ids[: data.max_length or None], np.int32) for encoding in model.encodings(texts)]


def prompted_rows(data: Data, views: Sequence[str], model: SentenceModel) -> Iterator[list[str]]:
    """Yields, for each row of the text, the sentences in the columns that the student's views read, without blank ones. Each sentence
    follows the model's prompt for its role. Rows that `data.exclude` has too are left out."""
    chunked = data.chunk_tokens > 0
    specs = split_specs(data.text)
    columns = dict(data.columns) or {TEXT: TEXT}
    identity = {name: columns[name] for name in text.identifying(columns, chunked=chunked)}
    excluded = text.excluded_keys(split_specs(data.exclude), identity, data.cache_folder)
    for portion in text_portions(data):
        names = list(portion.columns)
        # With chunks, a portion is a single column, and if that is not `text`, the column identifies the rows.
        key_columns = list(map(names.index, text.identifying(names, chunked=chunked))) or [0]
        read_columns = names if chunked else columns_read(data, views)
        indices = [index for index, name in enumerate(names) if name in read_columns]
        prompts = [model.role_prompts[role] for role in portion.roles]  # of all columns
        for row in read([specs[portion.source]], portion.columns, cache=data.cache_folder):
            if not excluded or text.row_key([row[index] for index in key_columns]) not in excluded:
                yield [prompts[index] + row[index] for index in indices if row[index].strip()]


def evenly_sampled(items: Iterable[Any], most: int) -> list[Any]:
    """Every n-th item, where n is the smallest power of 2 that leaves at most `most`; reads the items once."""
    sample, step = [], 1
    for number, item in enumerate(items):
        if number % step == 0:
            sample.append(item)
        if len(sample) > most:
            sample, step = sample[::2], 2 * step
    return sample
