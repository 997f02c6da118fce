"""The student's own vocabulary: a new tokenizer that is trained on the text, or the model's, trimmed to a text."""

import hashlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.data import roles, sources, wordpiece, words
from jaxdistill.data.sources import split_specs
from jaxdistill.encoders import trim
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.files import make_folder_atomic
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import cache_folder
from jaxdistill.training.objective import make_objective
from jaxdistill.training.text import columns_read, sentence_roles
from jaxdistill.training.workdir import TOKENIZER

FORMAT = 1
"""Version of trimming, part of the digest; bump to invalidate trimmed tokenizers in caches."""
TRIM = "trim:"
NOTE = "trimmed.json"
"""Beside a trimmed tokenizer: the digest of its text, and what was counted."""
CHUNK_ROWS = 4096
"""Sentences tokenised at a time."""
EXAMPLES = "16000 for a new WordPiece tokenizer of that many entries, or trim:TEXT for the model's, trimmed to a text"

log = logging.getLogger(__name__)


class Vocabulary(NamedTuple):
    """What `student.vocabulary` asks for; nothing: the model's tokenizer."""

    entries: int = 0
    """Of a new tokenizer."""
    specs: tuple[str, ...] = ()
    """The text that the model's tokenizer is trimmed to."""


def asked(option: str) -> Vocabulary:
    """Reads `student.vocabulary`."""
    if not option:
        return Vocabulary()
    if option.startswith(TRIM) and split_specs(option.removeprefix(TRIM)):
        return Vocabulary(specs=tuple(split_specs(option.removeprefix(TRIM))))
    if option.isdecimal():
        return Vocabulary(entries=int(option))
    raise InputError(f"student.vocabulary={option!r} is not understood; set {EXAMPLES}.")


def new_tokenizer(config: Config, workdir: pathlib.Path) -> pathlib.Path:
    """The folder of the tokenizer that is trained on the text: the workdir's copy, or the one in the cache."""
    noted = workdir / TOKENIZER
    if noted.is_dir():
        return noted
    return wordpiece.train_wordpiece(
        split_specs(config.data.text),
        entries=asked(config.student.vocabulary).entries,
        cache_folder=cache_folder(config.data.cache_folder) / "tokenizers",
        columns=columns_read(config.data, make_objective(config)),
        line_bytes=config.data.max_line_bytes,
    )


def trimmed(config: Config, model: SentenceModel, workdir: pathlib.Path) -> SentenceModel:
    """The model with its tokenizer trimmed to a text: the workdir's copy, or the one in the cache."""
    noted = workdir / TOKENIZER
    folder = noted if noted.is_dir() else _trimmed_folder(config, model)
    smaller = trim.with_trimmed(model, folder)
    note, saved = _note(folder), model.parameter_count - smaller.parameter_count
    log.info(
        "vocabulary trimmed from %s to %s tokens, which saves %s parameters; unknown in its text: %s before, %s after",
        *(f"{count:,}" for count in (note["entries"], smaller.definition.architecture.vocab_size, saved)),
        *(words.Unknown(*note[name]) for name in ("before", "after")),
    )
    return smaller


def keep_tokenizer(option: str, student: SentenceModel, workdir: pathlib.Path) -> None:
    """Copies a tokenizer that was made for the run into its workdir, so that an export needs neither text nor cache."""
    copy = workdir / TOKENIZER
    if not any(asked(option)) or copy.is_dir():
        return
    unfinished = copy.with_name(f".{copy.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(student.tokenizer_folder, unfinished)
    unfinished.rename(copy)


def refuse_other_text(config: Config, workdir: pathlib.Path) -> None:
    """Raises `InputError` if the text that the vocabulary was trimmed to has changed since the run began."""
    specs, noted = asked(config.student.vocabulary).specs, workdir / TOKENIZER
    if not specs or not noted.is_dir():
        return
    if sources.content_digest(specs, _columns(config)) != _note(noted)["text"]:
        raise InputError(
            f"student.vocabulary: the text {', '.join(specs)} has changed since {workdir} was begun; undo the change or use "
            "another --workdir."
        )


def _columns(config: Config) -> dict[str, str]:
    """All columns: a trimmed student may be meant for more languages than it is trained on."""
    return sources.column_map(dict(config.data.columns) or (sources.TEXT,))


def _note(folder: pathlib.Path) -> dict:
    return json.loads((folder / NOTE).read_text(encoding="utf-8"))


def _trimmed_folder(config: Config, model: SentenceModel) -> pathlib.Path:
    """The folder in the cache, which is made where it is not there."""
    specs, columns = asked(config.student.vocabulary).specs, _columns(config)
    text, needed = sources.Watched(specs, columns), trim.needed_rows(model)
    used = ("", *roles.used_roles(sentence_roles(config.data)))
    prompts = sorted({model.role_prompts[role] for role in used})
    inputs = [FORMAT, text.digest, columns, model.tokenizer.to_str(), prompts, sorted(needed)]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(config.data.cache_folder) / "tokenizers" / digest

    def fill(unfinished: pathlib.Path) -> None:
        sentences = _Sentences(specs, columns, config.data.max_line_bytes, prompts)
        before = _read(model.tokenizer, sentences)
        result = trim.trimmed(model.tokenizer, needed | before.used)
        after = _read(result.tokenizer, sentences, old_ids=result.kept)
        text.check_content()
        if after.digest != before.digest:
            raise InputError(
                f"student.vocabulary: the tokenizer of {model.source}, trimmed, would read the text otherwise; leave it empty."
            )
        trim.write(result, model.tokenizer_folder, unfinished)
        note = {"text": text.digest, "entries": len(model.params[trim.WORDS])}
        note |= {"before": before.unknown, "after": after.unknown}
        (unfinished / NOTE).write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")

    if not folder.is_dir():
        make_folder_atomic(folder, fill, what="the trimmed tokenizer")
    return folder


class _Sentences(NamedTuple):
    """A text that can be read repeatedly, with each of some prompts prepended."""

    specs: Sequence[str]
    columns: dict[str, str]
    line_bytes: int
    prompts: Sequence[str]

    def chunks(self) -> Iterator[tuple[str, list[str]]]:
        """Yields sentences with the prompt before them."""
        rows = (row for spec in self.specs for row in sources.rows(spec, self.columns_of(spec), self.line_bytes))
        sentences = filter(None, (cell.strip() for row in rows for cell in row))
        while chunk := list(islice(sentences, CHUNK_ROWS)):
            yield from ((prompt, chunk) for prompt in self.prompts)

    def columns_of(self, spec: str) -> dict[str, str]:
        """Those of tables; a plain text beside tables of training has sentences alone."""
        return {sources.TEXT: sources.TEXT} if sources.is_plain(spec) else self.columns


class _Reading(NamedTuple):
    """What a tokenizer makes of a text."""

    used: set[int]
    unknown: words.Unknown
    digest: str
    """Of all ids, as they were before trimming."""


def _read(tokenizer: Tokenizer, text: _Sentences, *, old_ids: np.ndarray | None = None) -> _Reading:
    """Reads a text; `old_ids` has the ids that a trimmed tokenizer's entries had."""
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    unknown, unknown_words = unknown_id(whole), trim.UnknownWords(whole)
    used, counts, digest = set[int](), words.Unknown(), hashlib.sha256()
    for prompt, chunk in text.chunks():
        found = words.tokenised_words(whole, chunk, prompt, len(chunk), unknown=unknown)
        ids = found.ids.astype(np.int64)
        used.update(np.unique(ids).tolist())
        counts += found.unknown
        digest.update((ids if old_ids is None else old_ids[ids]).tobytes() + found.lengths.tobytes())
        sentence = np.repeat(np.arange(len(chunk)), found.lengths)
        for row in np.unique(sentence[ids == unknown]):
            used |= unknown_words.ids(prompt + chunk[row])
    return _Reading(used, counts, digest.hexdigest())
