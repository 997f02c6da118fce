"""The training text in the tokens of a model."""

import logging
from collections.abc import Sequence

from jaxdistill.config import Data
from jaxdistill.core import SECOND, InputError
from jaxdistill.data import tokenize, words
from jaxdistill.data.sources import TEXT, split_specs
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.paths import cache_folder

SAMPLE = 4096
"""Sentences of a text on which a tokenizer is judged that does not read it as a whole."""

log = logging.getLogger(__name__)


def tokenised(
    data: Data, model: SentenceModel, views: Sequence[str], *, max_length: int, progress: bool
) -> tokenize.TokenStore:
    """The text in the tokens of a model; raises `InputError` if much of what its views read is unknown to it."""
    store = tokenize.build_store(
        split_specs(data.text),
        tokenizer=model.tokenizer,
        max_length=max_length,
        cache_folder=cache_folder(data.cache_folder) / "tokens",
        columns=dict(data.columns) or ("text",),
        prompt=model.prompt,
        dedupe=data.dedupe,
        exclude=split_specs(data.exclude),
        weights=data.weights,
        line_bytes=data.max_line_bytes,
        progress=progress,
    )
    for column in _columns_read(store, views):
        _check_unknown(data, model, column, store.unknown(column))
    return store


def check_reads(data: Data, model: SentenceModel, views: Sequence[str], store: tokenize.TokenStore) -> None:
    """Raises as `tokenised` for a model that reads the raw text, judged by sentences drawn evenly from it."""
    tokenizer = model.tokenizer
    for column in _columns_read(store, views):
        rows = range(0, len(store), -(-len(store) // SAMPLE))
        texts = [store.text(column, row) for row in rows]
        read = words.tokenised(tokenizer, texts, model.prompt, model.max_length, unknown=words.unknown_id(tokenizer))
        _check_unknown(data, model, column, read.unknown)


def _columns_read(store: tokenize.TokenStore, views: Sequence[str]) -> list[str]:
    """A view that is not a column is made of the sentences, or of both sentences of a pair."""
    made = any(view not in store.columns for view in views)
    return [name for name in store.columns if name in views or (made and name in (TEXT, SECOND))]


def _check_unknown(data: Data, model: SentenceModel, column: str, unknown: words.Unknown) -> None:
    log.info("column %s, tokenizer of %s: %s unknown", column, model.source, unknown)
    if unknown.share > data.max_unknown:
        raise InputError(
            f"the tokenizer of {model.source} does not know the text of column {column}: {unknown} are unknown. Use a model "
            "for this language, a fresh student with a vocabulary of its own (student.vocabulary), or allow it with "
            f"--config.data.max_unknown={min(1.0, unknown.share + 0.01):.2f}"
        )
