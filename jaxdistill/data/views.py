"""Makes views of sentences: deletes words from their token ids, masks a span of their text, or joins pairs.

A view is a column of the text (`text`, `translation`, ...) or an augmentation of `text`: `identity`, `delete_words`
(deletes each word with probability 0.1), `delete_one_word`, or `crop` (keeps a contiguous 90 % of the words).
`delete_words:0.2` and `crop:0.2` set the deleted share. Words are separated by white space in the raw text. Deleting a
word's tokens equals deleting it from the text if the tokenizer does not look across words.

`pair` joins the columns `text` and `second` into one sequence, as a cross-encoder reads them; `pair:reversed` joins them
in the other order.

`mask_span` (Mirror-BERT) replaces 5 characters of the text by the tokenizer's mask token and tokenises the result;
`mask_span:8` replaces 8.
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
        if not self.second:
            return store.longest(self.column)
        return min(store.longest(self.column) + store.longest(self.second), store.max_length)


def parse_view(name: str, columns: Sequence[str]) -> View:
    """Parses the name of a view; a column takes precedence over an augmentation of the same name."""
    if name in columns:
        return View(column=name)
    if name in plugins.views:
        return View(column="text", augmentation=name)
    if name == "pair":
        return View(column="text", second=SECOND)
    if name == "pair:reversed":
        return View(column=SECOND, second="text")
    if name in ("identity", "delete_one_word"):
        return View(column="text", augmentation=name)
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
        rewrite = rewrite or partial(span_masked, mask=store.mask_token, characters=view.characters)
        first_draws = draws()[:, 0].tolist()
        texts = [rewrite(store.text(view.column, row), draw) for row, draw in zip(rows, first_draws, strict=True)]
        tokens = store.tokenised(view.column, rows, texts)
        return Ragged(tokens.ids, tokens.lengths)
    tokens = store.gather(view.column, rows)
    if not view.is_random:
        return Ragged(tokens.ids, tokens.lengths)
    kept = kept_words(view, store.counts_of(view.column, rows).words, draws())
    sentence = np.repeat(np.arange(len(rows)), tokens.lengths)
    keep = (tokens.words < 0) | kept[sentence, tokens.words]  # special tokens and the prompt stay
    return Ragged(tokens.ids[keep], np.bincount(sentence[keep], minlength=len(rows)))


def most_tokens(
    view: View, store: TokenStore, rows: Integer[np.ndarray, " b"], draws: Draws
) -> Integer[np.ndarray, " b"]:
    """Upper bounds of the lengths of `viewed`, computed from the store's counts without reading tokens. They are exact if no word is
    deleted; a deleted word lowers its bound by one token, because its number of tokens is not known here."""
    assert not view.changes_text
    counts = store.counts_of(view.column, rows)
    if view.second:
        both = counts.tokens + store.counts_of(view.second, rows).tokens
        return np.minimum(both + store.pair_template.special_tokens, store.max_length)
    if not view.is_random:
        return counts.lengths
    kept = kept_words(view, counts.words, draws())
    return counts.lengths - (counts.words - kept.sum(axis=1))


def _joined_pairs(store: TokenStore, first: str, second: str, rows: np.ndarray) -> Ragged:
    """Joins and truncates pairs as the tokenizer does (`longest_first`). NOTE: if both sentences were already truncated when the text
    was tokenised, the odd token may go to the other sentence."""
    template, sentences = store.pair_template, []
    room = store.max_length - template.special_tokens
    for column in (first, second):
        tokens = store.gather(column, rows)
        ends = np.cumsum(store.counts_of(column, rows).tokens)
        sentences.append(np.split(tokens.ids[tokens.words >= 0], ends[:-1]))  # without special tokens and prompt
    sequences, firsts = [], []
    for left, right in zip(*sentences, strict=True):
        # The longer sentence is cut until both are equal, then both are cut; the longer keeps an odd token.
        short, long = sorted((len(left), len(right)))
        short = min(short, room // 2)
        long = min(long, room - short)
        left_length, right_length = (short, long) if len(left) <= len(right) else (long, short)
        parts = [template.begin, left[:left_length], template.between, right[:right_length], template.end]
        sequences.append(np.concatenate(parts))
        of_first_type = len(template.begin) + left_length + template.between_first
        firsts.append(of_first_type if template.has_types else len(sequences[-1]))
    return ragged(sequences, np.array(firsts, np.int64))


def span_masked(text: str, uniform: float, *, mask: str, characters: int) -> str:
    """Replaces a random span of `text` by `mask`; texts below 30 characters are unchanged.

    `uniform`, in [0, 1), sets where the span begins. As in Mirror-BERT's code, the first occurrence of the drawn characters is masked,
    and the last character never is. Unlike in that code, RoBERTa gets its `<mask>`, not the text `[MASK]`, which its tokenizer would
    split.

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
    """Which words a random view keeps of sentences with `counts` words. `draws` is as in `Draws`. A sentence's only word stays."""
    index = np.arange(draws.shape[1])
    first_draws = draws[:, 0]
    exists = index < counts[:, None]
    if view.augmentation == "delete_words":
        draws = np.where(exists, draws, -1.0)
        stays = draws >= view.rate
        stays[np.arange(len(draws)), draws.argmax(axis=1)] = True  # the word with the largest draw, so that one stays
    elif view.augmentation == "delete_one_word":
        stays = index != (first_draws * counts).astype(np.int64)[:, None]
    else:  # crop
        length = np.maximum(1, np.round(counts * (1.0 - view.rate)).astype(np.int64))
        start = (first_draws * (counts - length + 1)).astype(np.int64)[:, None]
        stays = (index >= start) & (index < start + length[:, None])
    return exists & (stays | (counts < 2)[:, None])
