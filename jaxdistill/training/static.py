"""Makes a static student: a table of token vectors that starts from what a model makes of single tokens."""

import dataclasses
import logging
from itertools import chain

import numpy as np
from jaxtyping import Float

from jaxdistill.config import Config
from jaxdistill.core import InputError
from jaxdistill.encoders import static
from jaxdistill.encoders.model import SentenceModel
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.training.text import evenly_sampled, prompted_sentences

SAMPLE = 1 << 17
"""Sentences of the text on which tokens are counted."""

log = logging.getLogger(__name__)


def static_student(config: Config, model: SentenceModel, *, computed: bool = True) -> SentenceModel:
    """The untrained table of `student.static` numbers a token, with the tokenizer of `model`.

    Args:
      computed: False: a table of zeros, for its shape.
    """
    width, most = config.student.static, model.definition.embedding_width
    if model.definition.reads_pairs or width > most:
        raise InputError(
            f"student.static={width} needs a sentence encoder whose vectors have at least as many numbers; {model.source} has {most}."
        )
    tokenizer = static.without_special_tokens(model.tokenizer)
    tokenizer.enable_truncation(static.LONGEST)
    dropped = unknown_id(tokenizer)
    bare = dataclasses.replace(model, tokenizer=tokenizer, prompts={}, default_prompt=None, own_prompt=None)
    table = np.zeros((model.definition.architecture.vocab_size, width), np.float32)
    if computed:
        log.info("student: vectors of %s tokens by %s", f"{len(table):,}", model.source)
        table = static.start(token_vectors(config, model), token_shares(config, bare), width, dropped=dropped)
    definition = dataclasses.replace(
        model.definition,
        architecture=static.architecture_of(table, dropped=dropped),
        pooling=static.POOLING,
        dense=(),
        normalize=True,
    )
    return dataclasses.replace(
        bare,
        definition=definition,
        params={static.TABLE: table},
        max_length=static.LONGEST,
        source=f"a table of {width} numbers a token of {model.source}",
        unread_pooler={},
    )


def token_vectors(config: Config, model: SentenceModel) -> Float[np.ndarray, "v e"]:
    """The model's vectors of its single tokens, each between the special tokens of a sentence, before normalising."""
    found = model.tokenizer.encode("a")
    place = found.special_tokens_mask.index(0) if 0 in found.special_tokens_mask else 1
    before, after = found.ids[:place], found.ids[len(found.ids) - found.special_tokens_mask[::-1].index(0) :]
    embedder = Embedder(model.as_pooled(), compute_dtype=dtype_of(config.run.precision))
    rows = range(model.definition.architecture.vocab_size)
    return embedder.encode_ids([np.array([*before, row, *after], np.int32) for row in rows])


def token_shares(config: Config, model: SentenceModel) -> Float[np.ndarray, " v"]:
    """Share of each token among the tokens of sentences drawn evenly from the text."""
    read = model.encodings(evenly_sampled(prompted_sentences(config, model), SAMPLE))
    ids = np.fromiter(chain.from_iterable(one.ids for one in read), np.int64)
    return np.bincount(ids, minlength=model.definition.architecture.vocab_size) / max(len(ids), 1)
