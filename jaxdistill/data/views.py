"""Makes views of sentences: deletes words from their token ids, masks a span of their text, or joins pairs.

A view is a column of the text (`text`, `translation`, ...) or an augmentation of `text`: `identity`, `delete_words` (deletes each word
with probability 0.1), `delete_one_word`, or `crop` (keeps a contiguous 90 % of the words). `delete_words:0.2` and `crop:0.2` set the
deleted share. White space separates words. Deleting a word's tokens equals deleting it from the text if no token spans two words.

`pair` joins the columns `text` and `second` into one sequence, as a cross-encoder reads them, `pair:reversed` in the other order.
`mask_span` (Mirror-BERT) replaces 5 characters by the tokenizer's mask token and tokenises the result; `mask_span:8` replaces 8.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import SECOND, InputError, did_you_mean, plugins
from jaxdistill.data.packing import Ragged, ragged
from jaxdistill.data.tokens import TokenStore

RATES = {"delete_words": 0.1, "crop": 0.1}
"""Default rates of the augmentations that have one (ConGen, table 6; SimCSE, table 1)."""
SHORTEST_MASKED = 30
"""Sentences with fewer characters are not masked (Mirror-BERT's code, `erase_and_mask`)."""
PAIRS = ("pair", "pair:reversed")
Draws = Callable[[], Float[np.ndarray, "b draws"]]
"""Returns independent random numbers in [0, 1), for each row at least as many as its sentence has words."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A parsed view."""

    column: str
    augmentation: str = "identity"
    rate: float = 0.0
    """Share of words to delete, in (0, 1)."""
    characters: int = 0
    """Number of characters that `mask_span` replaces."""
    second: str = ""
    """Column of a pair's second sentence; empty for single sentences."""

    @property
    def is_random(self) -> bool:
        return self.augmentation != "identity"

    @property
    def changes_text(self) -> bool:
        """Whether the view changes the text, which must then be tokenised again."""
        return self.augmentation == "mask_span" or self.augmentation in plugins.views

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, self.second) if self.second else (self.column,)

    def longest(self, store: TokenStore) -> int:
        """Maximum tokens of a sequence of this view."""
        return min(sum(map(store.longest, self.columns)), store.max_length)


def parse_view(name: str, columns: Sequence[str]) -> View:
    """Parses the name of a view; a column takes precedence over an augmentation of the same name."""
    if name in columns:
        return View(column=name)
    if name in ("identity", "delete_one_word", *plugins.views):
        return View(column="text", augmentation=name)
    if name == "pair":
        return View(column="text", second=SECOND)
    if name == "pair:reversed":
        return View(column=SECOND, second="text")
    kind, _, amount = name.partition(":")
    with contextlib.suppress(ValueError):  # from an amount that is no number; the error below says what is allowed
        if kind == "mask_span" and 0 < (characters := int(amount or 5)) < SHORTEST_MASKED:
            return View(column="text", augmentation=kind, characters=characters)
        if kind in RATES and 0.0 < (rate := float(amount or RATES[kind])) < 1.0:
            return View(column="text", augmentation=kind, rate=rate)
    allowed = (*columns, "identity", "delete_one_word", *RATES, "mask_span", *PAIRS, *plugins.views)
    raise InputError(
        f"unknown view {name!r}; available: {', '.join(allowed)}, where delete_words and crop may have a rate between 0 and 1, such as "
        f"crop:0.1, and mask_span 1 to {SHORTEST_MASKED - 1} characters: mask_span:5. --config.data.columns names further columns.{did_you_mean(name, allowed)}"
    )


def viewed(view: View, store: TokenStore, rows: Integer[np.ndarray, " b"], draws: Draws) -> Ragged:
    """Token ids of some rows under a view. Only random views call `draws`."""
    if view.second:
        return _joined_pairs(store, view.column, view.second, rows)
    if view.changes_text:
        rewrite = plugins.views.get(view.augmentation)
        if rewrite is None:
            rewrite = partial(span_masked, mask=store.mask_token, characters=view.characters)
        first_draws = draws()[:, 0].tolist()  # a rewriting needs only one number per row
        texts = [rewrite(store.text(view.column, row), draw) for row, draw in zip(rows, first_draws, strict=True)]
        tokens = store.tokenised(view.column, rows, texts)
        return Ragged(tokens.ids, tokens.lengths)
    tokens = store.gather(view.column, rows)
    if not view.is_random:
        return Ragged(tokens.ids, tokens.lengths)
    keep_word = kept_words(view, store.counts_of(view.column, rows).words, draws())
    sentence = np.repeat(np.arange(len(rows)), tokens.lengths)  # of each token, as an index of `rows`
    # Special tokens and the prompt have word -1. They stay, whatever the last column of `keep_word` says.
    keep_token = (tokens.words < 0) | keep_word[sentence, tokens.words]
    return Ragged(tokens.ids[keep_token], np.bincount(sentence[keep_token], minlength=len(rows)))


def most_tokens(
    view: View, store: TokenStore, rows: Integer[np.ndarray, " b"], draws: Draws
) -> Integer[np.ndarray, " b"]:
    """Upper bounds of the lengths of `viewed`, computed from the store's counts without reading tokens. They are exact if no word is
    deleted. Each deleted word lowers the bound by one token, because it has at least one."""
    assert not view.changes_text  # the lengths are then known only after tokenising
    counts = store.counts_of(view.column, rows)
    if view.second:
        both = counts.tokens + store.counts_of(view.second, rows).tokens
        return np.minimum(both + store.pair_template.special_tokens, store.max_length)
    if not view.is_random:
        return counts.lengths
    kept = kept_words(view, counts.words, draws())
    return counts.lengths - (counts.words - kept.sum(axis=1))


def _joined_pairs(store: TokenStore, first: str, second: str, rows: np.ndarray) -> Ragged:
    """Joins the sentences of two columns, and truncates the pairs as the tokenizer does (`longest_first`). NOTE: if both sentences were
    already truncated when the text was tokenised, the odd token may go to the other sentence."""

    def sentences(column: str) -> list[Integer[np.ndarray, "_"]]:
        """Token ids of each row's sentence, without special tokens and prompt."""
        tokens = store.gather(column, rows)
        ends = np.cumsum(store.counts_of(column, rows).tokens)
        return np.split(tokens.ids[tokens.words >= 0], ends[:-1])

    template = store.pair_template
    room = store.max_length - template.special_tokens
    sequences, firsts = [], []
    for left, right in zip(sentences(first), sentences(second), strict=True):
        # The longer sentence is cut until both are equal, then both are cut; the longer keeps an odd token.
        short, long = sorted((len(left), len(right)))
        short = min(short, room // 2)
        long = min(long, room - short)
        left_length, right_length = (short, long) if len(left) <= len(right) else (long, short)
        parts = [template.begin, left[:left_length], template.between, right[:right_length], template.end]
        sequences.append(np.concatenate(parts))
        end_of_first = len(template.begin) + left_length + template.between_first
        firsts.append(end_of_first if template.has_types else len(sequences[-1]))  # without types, all are type 0
    return ragged(sequences, np.array(firsts, np.int64))


def span_masked(text: str, uniform: float, *, mask: str, characters: int) -> str:
    """Replaces `characters` characters of `text` by `mask`; texts below 30 characters are unchanged.

    `uniform`, a random number in [0, 1), chooses the characters. As in Mirror-BERT's code, their first occurrence in the text is masked,
    and the last character never is. Unlike in that code, RoBERTa gets its own mask token, `<mask>`, not the text `[MASK]`.

    Source: Liu et al., Mirror-BERT, EMNLP 2021, section 2; github.com/cambridgeltl/mirror-bert, `erase_and_mask`.
    """
    if len(text) < SHORTEST_MASKED:
        return text
    begin = int(uniform * (len(text) - characters))
    left, right = text.split(text[begin : begin + characters], 1)
    return f"{left} {mask} {right}"


def kept_words(
    view: View, counts: Integer[np.ndarray, " b"], draws: Float[np.ndarray, "b draws"]
) -> Bool[np.ndarray, "b draws"]:
    """Whether a random view keeps each word of sentences with `counts` words. `draws` is as in `Draws`. A sentence's only word stays."""
    index = np.arange(draws.shape[1])  # of a word in its sentence
    exists = index < counts[:, None]
    if view.augmentation == "delete_words":
        kept = draws >= view.rate
        # The word with the largest draw, so that at least one stays; -1.0 is below any draw.
        largest = np.where(exists, draws, -1.0).argmax(axis=1)
        kept[np.arange(len(draws)), largest] = True
    elif view.augmentation == "delete_one_word":
        deleted = (draws[:, 0] * counts).astype(np.int64)
        kept = index != deleted[:, None]
    else:  # crop
        length = np.maximum(1, np.round(counts * (1.0 - view.rate)).astype(np.int64))
        start = (draws[:, 0] * (counts - length + 1)).astype(np.int64)
        kept = (index >= start[:, None]) & (index < (start + length)[:, None])
    return exists & (kept | (counts < 2)[:, None])
