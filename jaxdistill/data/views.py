"""What does a view of a sentence keep? Word-level augmentations on token ids that are already there.

A view is named by a text column (`text`, `translation`, ...) or by an augmentation of `text`: `identity`,
`delete_words` (every word goes with probability 0.1), `delete_one_word`, `crop` (a contiguous 90 % of the words
stay). `delete_words:0.2` and `crop:0.2` set the share that goes. Words are the raw text's, between white space, so
deleting one from the tokens is the same as deleting it from the text wherever tokens do not depend on the neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from jaxdistill.cli import did_you_mean
from jaxdistill.core import InputError

RATES = {"delete_words": 0.1, "crop": 0.1}
"""Augmentations that take a rate, with their defaults (ConGen, table 6; SimCSE, table 1)."""
AUGMENTATIONS = ("identity", "delete_words", "delete_one_word", "crop")


@dataclass(frozen=True, kw_only=True)
class View:
    """A view by its parts."""

    column: str
    augmentation: str = "identity"
    rate: float = 0.0
    """Share of words that go, in (0, 1)."""

    @property
    def is_random(self) -> bool:
        return self.augmentation != "identity"


def parse(name: str, columns: Sequence[str]) -> View:
    """The view of that name; a column wins over an augmentation of the same name."""
    if name in columns:
        return View(column=name)
    kind, _, rate = name.partition(":")
    if kind not in AUGMENTATIONS or (rate and kind not in RATES):
        known = (*columns, *AUGMENTATIONS)
        raise InputError(f"unknown view {name!r}; known: {', '.join(known)}.{did_you_mean(name, known)}")
    try:
        share = float(rate) if rate else RATES.get(kind, 0.0)
    except ValueError:
        share = -1.0
    if kind in RATES and not 0.0 < share < 1.0:
        raise InputError(f"view {name!r}: the rate is a number between 0 and 1, for instance {kind}:0.1.")
    return View(column="text", augmentation=kind, rate=share)


def kept(
    view: View, words: Int[np.ndarray, " t"], lengths: Int[np.ndarray, " b"], uniform: Float[np.ndarray, "b u"]
) -> Bool[np.ndarray, " t"]:
    """Which tokens of some sentences a view keeps: all that belong to no word, and at least one word of a sentence.

    Args:
      view: what to do.
      words: sentences one behind the other; number of the word that a token belongs to, from 0 in each sentence;
        -1 for special tokens and the prompt.
      lengths: tokens of each sentence.
      uniform: random numbers in [0, 1) for each sentence, at least one for each of its words (all the randomness).
    """
    if not view.is_random:
        return np.ones(words.shape, bool)
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.zeros(len(lengths), np.int64)
    np.maximum.at(counts, sentence, words + 1)
    stays = {"delete_words": _thinned, "delete_one_word": _one_less, "crop": _cropped}[view.augmentation](
        counts, view.rate, uniform
    )
    return (words < 0) | stays[sentence, words] | (counts < 2)[sentence]


def _thinned(counts: np.ndarray, rate: float, uniform: np.ndarray) -> np.ndarray:
    """Each word goes independently; when all would go, the one with the largest draw stays."""
    draws = np.where(np.arange(uniform.shape[1]) < counts[:, None], uniform, -1.0)
    stays = draws >= rate
    stays[np.arange(len(draws)), draws.argmax(axis=1)] = True
    return stays


def _one_less(counts: np.ndarray, rate: float, uniform: np.ndarray) -> np.ndarray:
    gone = (uniform[:, 0] * counts).astype(np.int64)
    return np.arange(uniform.shape[1]) != gone[:, None]


def _cropped(counts: np.ndarray, rate: float, uniform: np.ndarray) -> np.ndarray:
    length = np.maximum(1, np.round(counts * (1.0 - rate)).astype(np.int64))
    start = (uniform[:, 0] * (counts - length + 1)).astype(np.int64)[:, None]
    place = np.arange(uniform.shape[1])
    return (place >= start) & (place < start + length[:, None])
