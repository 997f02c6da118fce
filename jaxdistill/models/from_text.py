"""What a student takes from a text: its choice of layers, and its vocabulary.

`student.layers=greedy:6` drops one layer at a time, always the one whose removal changes the sentences' vectors least. It
then swaps kept layers for dropped ones while that brings the vectors closer to the whole model's.

Source: Peer et al., Greedy-layer pruning: Speeding up Transformer models for natural language processing, 2022
(arXiv 2105.14839). Differences: closeness to the whole model replaces a task's score, and the swaps are an addition.
"""

import hashlib
import json
import logging
import pathlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
from jaxtyping import Float, Integer
from tokenizers import Tokenizer

from jaxdistill.core import InputError
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import make_folder_atomic
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.paths import cache_folder
from jaxdistill.data import wordpiece
from jaxdistill.data.options import Data
from jaxdistill.data.text import TEXT, column_map, content_digest, is_plain, read, split_specs, used_roles
from jaxdistill.models.checkpoints.model import SentenceModel
from jaxdistill.models.inference import Embedder
from jaxdistill.models.model_text import columns_read, sampled_ids, sentence_roles
from jaxdistill.models.surgery import resizing, trim
from jaxdistill.models.teacher import ModelContext

GREEDY = "greedy:"
SAMPLE = 512
"""Most sentences on which layers are chosen; a longer text gives at least half as many."""
FORMAT = 2
"""Version of trimming, part of the digest; bump to invalidate trimmed tokenizers in caches."""
CHUNK_ROWS = 4096
"""Sentences tokenised at a time."""

log = logging.getLogger(__name__)


def layers_of(choice: str, context: ModelContext, model: SentenceModel) -> str:
    """`student.layers` with the layers of a greedy choice as a list; in a draft, evenly spaced ones stand in for it."""
    depth = model.definition.architecture.layers
    if not choice.startswith(GREEDY):
        return choice
    number = choice.removeprefix(GREEDY)
    if not number.isdecimal() or not 0 < int(number) <= depth:
        raise InputError(
            f"student.layers={choice!r}: give a number from 1 to {depth} (the model's layers), such as greedy:{depth // 2}."
        )
    if context.draft:
        return f"even:{number}"
    ids, dtype = sampled_ids(context.data, context.student_views, model, SAMPLE), dtype_of(context.precision)

    def vectors(layers: Sequence[int]) -> Float[np.ndarray, "n e"]:
        part = resizing.from_layers(model, ",".join(map(str, layers)))
        return Embedder(part, compute_dtype=dtype).encode_ids(ids)

    log.info("student: choosing %s of %d layers on %d sentences", number, depth, len(ids))
    # The first process's choice holds for all: others may round differently.
    return ",".join(map(str, processes.gathered(greedy(vectors, depth, int(number)))[0]))


def greedy(vectors: Callable[[Sequence[int]], Float[np.ndarray, "n e"]], depth: int, count: int) -> list[int]:
    """Drops layers one by one until `count` are left, then swaps single ones; ties go to the first choice.

    Args:
      vectors: gives a fixed set of sentences' vectors by the model with only these layers.
      depth: number of the model's layers.
    """
    layers = list(range(depth))
    whole = vectors(layers)

    def best(choices: Sequence[list[int]]) -> tuple[float, list[int]]:
        choice = max(((closeness(vectors(layers), whole), layers) for layers in choices), key=lambda choice: choice[0])
        log.info("student: layers %s are the closest to all of them: %.3f", ", ".join(map(str, choice[1])), choice[0])
        return choice

    close = 1.0
    while len(layers) > count:
        close, layers = best([[layer for layer in layers if layer != dropped] for dropped in layers])
    # A layer that was dropped early may be worth more than another one, now that its neighbours are gone.
    while count < depth:
        dropped = [layer for layer in range(depth) if layer not in layers]
        closer, swapped = best([sorted({*layers} - {old} | {new}) for old in layers for new in dropped])
        if closer <= close:
            break
        close, layers = closer, swapped
    return layers


def closeness(student: Float[np.ndarray, "n e"], target: Float[np.ndarray, "n e"]) -> float:
    """Mean cosine of two models' vectors of the same sentences, each centred: in a narrow cone, all cosines are large."""
    first, second = (x - x.mean(axis=0) for x in (student, target))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.mean(np.sum(first * second, axis=1) / np.maximum(norms, 1e-12)))


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
    """The model with its tokenizer trimmed to a text, which it tokenises as before; the tokenizer is cached.

    All columns are read, also those that the training does not use: the student may be meant for more languages.
    """
    columns, needed = column_map(dict(data.columns) or (TEXT,)), trim.needed_rows(model)
    prompts = sorted({model.role_prompts[role] for role in ("", *used_roles(sentence_roles(data)))})
    inputs = [FORMAT, content_digest(specs), columns, model.tokenizer.to_str(), prompts, sorted(needed)]
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data.cache_folder) / "tokenizers" / digest

    def sentences() -> Iterator[str]:
        for spec in specs:
            # A plain text has no column but the sentences.
            for row in read([spec], {TEXT: TEXT} if is_plain(spec) else columns, cache=data.cache_folder):
                yield from (prompt + cell.strip() for cell in row if cell.strip() for prompt in prompts)

    def fill(unfinished: pathlib.Path) -> None:
        ids, digest_before = _tokens(model.tokenizer, sentences(), np.arange(len(model.params[trim.WORDS])))
        result = trim.trimmed(model.tokenizer, needed | ids)
        if _tokens(result.tokenizer, sentences(), result.old_ids)[1] != digest_before:
            raise InputError(
                f"student.trim: the trimmed tokenizer of {model.source} tokenises the text differently; leave student.trim empty."
            )
        trim.write(result, model.provenance.tokenizer_folder, unfinished)

    if not folder.is_dir():
        make_folder_atomic(folder, fill, what="the trimmed tokenizer")
    smaller = trim.with_trimmed(model, folder)
    log.info(
        "vocabulary trimmed from %s to %s tokens, which saves %s parameters",
        *(f"{one.definition.architecture.vocab_size:,}" for one in (model, smaller)),
        f"{model.parameter_count - smaller.parameter_count:,}",
    )
    return smaller


def _tokens(tokenizer: Tokenizer, sentences: Iterator[str], old_ids: Integer[np.ndarray, " v"]) -> tuple[set[int], str]:
    """Ids that occur in a text or spell its unknown words, and a digest of all ids in order, as numbered in `old_ids`."""
    whole = Tokenizer.from_str(tokenizer.to_str())
    whole.no_truncation()
    unknown_words, used, digest = trim.UnknownWords(whole), set[int](), hashlib.sha256()
    while chunk := list(islice(sentences, CHUNK_ROWS)):
        for sentence, encoding in zip(chunk, whole.encode_batch(chunk), strict=True):
            used.update(encoding.ids)
            digest.update(old_ids[np.array(encoding.ids, np.int64)].tobytes() + b"|")
            if unknown_words.id in encoding.ids:
                used |= unknown_words.ids(sentence)
    return used, digest.hexdigest()
