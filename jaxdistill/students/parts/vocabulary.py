"""The student's own vocabulary: a new tokenizer trained on the text, or the model's tokenizer trimmed to a text."""

import dataclasses
import hashlib
import json
import logging
import pathlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.config import Data
from jaxdistill.core import InputError
from jaxdistill.data import wordpiece, words
from jaxdistill.data.sources import is_plain, split_specs
from jaxdistill.data.text import TEXT, Watched, column_map, read, used_roles
from jaxdistill.files import make_folder_atomic
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import cache_folder
from jaxdistill.reading import ModelContext, columns_read, sentence_roles
from jaxdistill.students.parts.student import Student
from jaxdistill.surgery import trim

FORMAT = 1
"""Version of trimming, part of the digest; bump to invalidate trimmed tokenizers in caches."""
NOTE = "trimmed.json"
"""File beside a trimmed tokenizer with the number of entries before, and counts of unknown words."""
CHUNK_ROWS = 4096
"""Sentences tokenised at a time."""

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trimming(Student):
    """A student whose model's tokenizer can be trimmed."""

    trim: str = ""
    """Reduces the tokenizer of `model` to the tokens of this text (sources as in `data.text`; all of `data.columns` are
    read), their single characters and special tokens. This text is tokenised as before, other text into more tokens.
    Empty: the whole tokenizer."""

    def trimmed(self, context: ModelContext, model: SentenceModel) -> SentenceModel:
        """The model with its tokenizer trimmed to a text."""
        specs = split_specs(self.trim)
        return trimmed(specs, context.data, model) if specs else model


def new_tokenizer(context: ModelContext, entries: int) -> pathlib.Path:
    """The folder, in the cache, of a tokenizer trained on the text; trained if absent."""
    data = context.data
    return wordpiece.train_wordpiece(
        split_specs(data.text),
        entries=entries,
        cache_folder=cache_folder(data.cache_folder),
        columns=columns_read(data, context.student_views),
    )


def trimmed(specs: Sequence[str], data: Data, model: SentenceModel) -> SentenceModel:
    """The model with its tokenizer trimmed to a text."""
    folder = _trimmed_folder(specs, data, model)
    smaller = trim.with_trimmed(model, folder)
    note, saved = _note(folder), model.parameter_count - smaller.parameter_count
    log.info(
        "vocabulary trimmed from %s to %s tokens, which saves %s parameters; unknown in its text: %s before, %s after",
        *(f"{count:,}" for count in (note["entries"], smaller.definition.architecture.vocab_size, saved)),
        *(words.Unknown(*note[name]) for name in ("before", "after")),
    )
    return smaller


def _columns(data: Data) -> dict[str, str]:
    """All columns, also unread ones: a trimmed student may be meant for more languages than it is trained on."""
    return column_map(dict(data.columns) or (TEXT,))


def _note(folder: pathlib.Path) -> dict:
    return json.loads((folder / NOTE).read_text(encoding="utf-8"))


def _trimmed_folder(specs: Sequence[str], data: Data, model: SentenceModel) -> pathlib.Path:
    """The folder of the trimmed tokenizer in the cache; made if absent."""
    columns = _columns(data)
    text, needed = Watched(specs), trim.needed_rows(model)
    used = ("", *used_roles(sentence_roles(data)))
    prompts = sorted({model.role_prompts[role] for role in used})
    inputs = [FORMAT, text.digest, columns, model.tokenizer.to_str(), prompts, sorted(needed)]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data.cache_folder) / "tokenizers" / digest

    def fill(unfinished: pathlib.Path) -> None:
        sentences = _Sentences(specs, columns, data.cache_folder, prompts)
        before = _read(model.tokenizer, sentences)
        result = trim.trimmed(model.tokenizer, needed | before.used)
        after = _read(result.tokenizer, sentences, old_ids=result.kept)
        text.check()
        if after.digest != before.digest:
            raise InputError(
                f"student.trim: the trimmed tokenizer of {model.source} tokenises the text differently; leave student.trim empty."
            )
        trim.write(result, model.provenance.tokenizer_folder, unfinished)
        note = {"entries": len(model.params[trim.WORDS])}
        note |= {"before": before.unknown, "after": after.unknown}
        (unfinished / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    if not folder.is_dir():
        make_folder_atomic(folder, fill, what="the trimmed tokenizer")
    return folder


class _Sentences(NamedTuple):
    """A text that can be read repeatedly, each sentence once with every prompt."""

    specs: Sequence[str]
    columns: dict[str, str]
    cache: str
    prompts: Sequence[str]

    def chunks(self) -> Iterator[tuple[str, list[str]]]:
        """Yields (prompt, sentences without it), every chunk of sentences once for each prompt."""
        rows = (row for spec in self.specs for row in read([spec], self.columns_of(spec), cache=self.cache))
        sentences = filter(None, (cell.strip() for row in rows for cell in row))
        while chunk := list(islice(sentences, CHUNK_ROWS)):
            yield from ((prompt, chunk) for prompt in self.prompts)

    def columns_of(self, spec: str) -> dict[str, str]:
        """The columns to read from a source; a plain text has only sentences."""
        return {TEXT: TEXT} if is_plain(spec) else self.columns


class _Reading(NamedTuple):
    """What a tokenizer makes of a text."""

    used: set[int]
    unknown: words.Unknown
    digest: str
    """Digest of all ids, as numbered before trimming."""


def _read(tokenizer: Tokenizer, text: _Sentences, *, old_ids: np.ndarray | None = None) -> _Reading:
    """Tokenises a text; `old_ids` maps a trimmed tokenizer's ids to those before trimming."""
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    unknown, unknown_words = unknown_id(whole), trim.UnknownWords(whole)
    used, counts, digest = set[int](), words.Unknown(), hashlib.sha256()
    for prompt, chunk in text.chunks():
        tokens = words.tokenised_words(whole, chunk, prompt, len(chunk), unknown=unknown)
        ids = tokens.ids.astype(np.int64)
        used.update(np.unique(ids).tolist())
        counts += tokens.unknown
        digest.update((ids if old_ids is None else old_ids[ids]).tobytes() + tokens.lengths.tobytes())
        sentence = np.repeat(np.arange(len(chunk)), tokens.lengths)
        for row in np.unique(sentence[ids == unknown]):
            used |= unknown_words.ids(prompt + chunk[row])
    return _Reading(used, counts, digest.hexdigest())
