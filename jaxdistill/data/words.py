"""Maps tokens to the words of the raw text, as white space separates them."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Integer
from tokenizers import Tokenizer

from jaxdistill.core import InputError
from jaxdistill.core.files import foreign_errors

CONTINUES, STARTS, PROTECTED = 0, 1, 2
"""Mark of a token: it continues a word, starts one, or belongs to no word (special tokens and the prompt)."""


class Unknown(NamedTuple):
    """Counts of unknown tokens and characters in a text."""

    unknown_tokens: int = 0
    tokens: int = 0
    """Number of tokens, without special and prompt tokens."""
    unknown_characters: int = 0
    """Characters of unknown tokens, at most 100 of each. A sentence without spaces can be a single unknown token."""
    characters: int = 0

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of unknown tokens and of unknown characters."""
        return self.unknown_tokens / max(self.tokens, 1), self.unknown_characters / max(self.characters, 1)

    def __str__(self) -> str:
        return "{:.2%} of tokens, {:.2%} of characters".format(*self.shares)


class Tokenised(NamedTuple):
    """Tokenised sentences, concatenated."""

    ids: Integer[np.ndarray, " tokens"]
    marks: Integer[np.ndarray, " tokens"]
    lengths: Integer[np.ndarray, " rows"]
    truncated: Bool[np.ndarray, " rows"]
    counts: Integer[np.ndarray, "rows 4"]
    """The fields of `Unknown` for each sentence."""

    @property
    def unknown(self) -> Unknown:
        return Unknown(*self.counts.sum(axis=0).tolist())


def tokenised_words(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[str], max_length: int, *, unknown: int | None = None
) -> Tokenised:
    """Tokenises non-empty sentences after their prompts, and marks tokens that start a word. Raises `InputError` for one without tokens.

    Args:
      max_length: the number of tokens at which the tokenizer is set to truncate. A sentence with just as many is not `truncated`.
      unknown: id of the unknown token, to count it; None: unknown tokens are not counted.
    """
    sentences = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    with foreign_errors("the tokenizer cannot read the text"):
        batch = tokenizer.encode_batch(sentences)
    lengths = np.fromiter(map(len, batch), np.int64, len(batch))
    if not lengths.all():
        text = texts[int(np.argmin(lengths))]
        raise InputError(f"the tokenizer produces no tokens for the sentence {text!r:.80}; remove it from the text.")
    truncated = np.array([len(encoding) >= max_length and bool(encoding.overflowing) for encoding in batch], np.bool_)
    total = int(lengths.sum())
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in batch), np.uint32, total)
    special = np.fromiter(chain.from_iterable(encoding.special_tokens_mask for encoding in batch), np.bool_, total)
    offsets = chain.from_iterable(chain.from_iterable(encoding.offsets for encoding in batch))
    begins, ends = np.fromiter(offsets, np.int64, 2 * total).reshape(total, 2).T  # characters of each token
    # Special tokens and the prompt's tokens belong to no word; another token belongs to the word of its first character. The token of a
    # trimmed space may be empty: at 0, without a prompt, it is not protected; at the sentence's end, the last character counts.
    sentence_of_token = np.repeat(np.arange(len(sentences)), lengths)
    prompt_ends = np.fromiter(map(len, prompts), np.int64, len(prompts))[sentence_of_token]
    is_protected = special | ((prompt_ends > 0) & (ends <= prompt_ends))
    characters = np.fromiter(map(len, sentences), np.int64, len(sentences))
    sentence_begins = np.cumsum(characters + 1) - (characters + 1)  # if a space joins the sentences
    first_character = sentence_begins[sentence_of_token] + np.minimum(begins, characters[sentence_of_token] - 1)
    word_of_token = np.where(is_protected, -1, _words_of_characters(" ".join(sentences))[first_character])
    starts = np.diff(word_of_token, prepend=-1) != 0
    marks = np.where(is_protected, PROTECTED, np.where(starts, STARTS, CONTINUES)).astype(np.uint8)
    # At most 100 characters of a token, so that one line of encoded data does not outweigh a text.
    covered = np.where(is_protected, 0, np.minimum(ends - begins, 100))
    is_unknown = (ids == unknown) & ~is_protected
    # In the order of `Unknown`'s fields.
    token_counts = (is_unknown, ~is_protected, np.where(is_unknown, covered, 0), covered)
    counts = np.stack([sums(values, lengths) for values in token_counts], axis=1)
    return Tokenised(ids, marks, lengths, truncated, counts)


def _words_of_characters(text: str) -> Integer[np.ndarray, " characters"]:
    """The number of each character's word, from 1 on. White space belongs to the word after it, as in many tokenizers."""
    is_space = np.char.isspace(np.frombuffer(text.encode("utf-32-le"), "<U1"))
    is_after_space = np.append(True, is_space)[:-1]
    return np.cumsum(is_after_space & ~is_space) + is_space


def sums(values: np.ndarray, lengths: Integer[np.ndarray, " rows"]) -> Integer[np.ndarray, " rows"]:
    """Sums of the tokens' `values` over each sentence. `lengths` are the sentences' numbers of tokens; none may be 0."""
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.int32)
