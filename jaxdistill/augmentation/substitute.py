"""Replaces tokens of a sentence by ones that a masked language model predicts.

All chosen tokens of a sentence (only letters and digits) are masked at once. Each is replaced by another token of its kind,
one that begins a word or one that continues it, so that the rest of the raw text is unchanged. The part of a long sentence
that the model cannot read is never masked.
"""

import random
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
import tokenizers
from jaxtyping import Float, Integer

from jaxdistill.augmentation.wordnet import with_case_of
from jaxdistill.bars import Advance
from jaxdistill.checkpoints.masked_lm import MaskedLanguageModel, likeliest_words
from jaxdistill.data.packing import pad
from jaxdistill.inference import SLOTS_PER_SENTENCE, padded_length

SUBWORD = "##"
SPACE_MARKS = ("\u0120", "\u2581")
"""Characters that stand for the space before a piece, in byte-level and in sentencepiece tokenizers."""
UNUSABLE, CONTINUES, AFTER_SPACE, OTHER = range(4)
"""Kinds of tokens. In WordPiece, `OTHER` begins a word; in other vocabularies, it begins a text or continues a word."""


class Masked(NamedTuple):
    """A sentence with some of its tokens chosen."""

    text: str
    ids: Integer[np.ndarray, " l"]
    """The sentence's tokens before masking."""
    places: list[int]
    """Indices of the masked tokens."""
    spans: list[tuple[int, int]]
    """Start and end of each masked token, in characters of the text."""
    draws: list[float]
    """A random number in [0, 1) for each masked token."""


class Substituter:
    """Rewrites sentences by replacing a share of their tokens."""

    def __init__(self, language_model: MaskedLanguageModel, *, rate: float, top_k: int, batch_size: int):
        """
        Args:
          language_model: the model that chooses.
          rate: share of tokens to mask, in (0, 1).
          top_k: number of likeliest tokens from which a replacement is drawn, in proportion to their probabilities.
          batch_size: number of sentences of 32 tokens that are computed together; of shorter ones, more.
        """
        self.model, self.mask_id = language_model.model, language_model.mask_id
        self.params = jax.device_put(language_model.params)
        self.rate, self.top_k, self.batch_size = rate, top_k, batch_size
        self.words, self.kinds = word_table(self.model.tokenizer, self.model.definition.architecture.vocab_size)
        self.allowed = jax.device_put(np.stack([self.kinds == kind for kind in range(OTHER + 1)]))

    def __call__(self, texts: Sequence[str], rngs: Sequence[random.Random], advance: Advance) -> list[str]:
        """The rewritten sentences; each uses its own random generator. Calls `advance` with numbers of finished sentences."""
        encodings = self.model.tokenizer.encode_batch(list(texts))
        masked = [self._masked(*one) for one in zip(texts, encodings, rngs, strict=True)]
        results = list(texts)
        busy = [row for row, sentence in enumerate(masked) if sentence.places]
        advance(len(texts) - len(busy))
        for rows in self._batches(busy, masked):
            batch = [masked[row] for row in rows]
            logits, ids = self._likeliest(batch)
            start = 0
            for row, sentence in zip(rows, batch, strict=True):
                end = start + len(sentence.places)
                results[row] = self._rewritten(sentence, logits[start:end], ids[start:end])
                start = end
            advance(len(rows))
        return results

    def _masked(self, text: str, encoding: tokenizers.Encoding, rng: random.Random) -> Masked:
        ids, end = np.asarray(encoding.ids, np.int32), 0
        places, spans, draws = [], [], []
        for place, (begin, stop) in enumerate(encoding.offsets):
            apart = end <= begin < stop  # not a second token of the same character
            end = max(end, stop)
            if self.kinds[ids[place]] != UNUSABLE and apart and rng.random() < self.rate:
                places.append(place)
                spans.append((begin, stop))
                draws.append(rng.random())
        return Masked(text, ids, places, spans, draws=draws)

    def _batches(self, rows: Sequence[int], masked: Sequence[Masked]) -> Iterator[list[int]]:
        """Yields rows to compute together, longest first, so that a lack of memory shows at once."""
        rows = sorted(rows, key=lambda row: -len(masked[row].ids))
        while rows:
            most = max(self.batch_size * SLOTS_PER_SENTENCE // self._length(masked[rows[0]].ids), 1)
            yield rows[:most]
            rows = rows[most:]

    def _length(self, ids: Integer[np.ndarray, " l"]) -> int:
        return padded_length(len(ids), self.model.max_length)

    def _likeliest(self, batch: Sequence[Masked]) -> tuple[Float[np.ndarray, "m best"], Integer[np.ndarray, "m best"]]:
        """Logits and ids of the replacements of all masked tokens, sentences concatenated."""
        length, sequences = self._length(batch[0].ids), []
        for sentence in batch:
            sequences.append(sentence.ids.copy())
            sequences[-1][sentence.places] = self.mask_id
        slots = np.concatenate([row * length + np.array(one.places) for row, one in enumerate(batch)])
        originals = np.concatenate([one.ids[one.places] for one in batch])
        # Counts are rounded up to powers of two, so that few shapes are compiled.
        missing = _power_of_two(len(slots)) - len(slots)
        slots, padded = (np.pad(array, (0, missing)).astype(np.int32) for array in (slots, originals))
        definition = self.model.definition
        tokens = pad(sequences, length=length, count=_power_of_two(len(batch)), pad_id=definition.architecture.pad_id)
        likeliest = likeliest_words(
            definition,
            self.params,
            tokens,
            slots,
            allowed=self.allowed,
            kinds=self.kinds[padded],
            originals=padded,
            count=self.top_k,
        )
        logits, ids = (np.asarray(array)[: len(originals)] for array in likeliest)
        return logits, ids

    def _rewritten(self, sentence: Masked, logits: np.ndarray, ids: np.ndarray) -> str:
        parts, end = [], 0
        for place, (begin, stop), draw, scores, words in zip(
            sentence.places, sentence.spans, sentence.draws, logits, ids, strict=True
        ):
            covered = sentence.text[begin:stop]
            original = covered.lstrip()
            word = self.words[words[sampled(scores, draw)]] if np.isfinite(scores[0]) else original
            if self.words[sentence.ids[place]] != original:
                word = with_case_of(original, word)  # the tokenizer lower-cases, so the model writes lower case
            parts += [sentence.text[end:begin], covered[: len(covered) - len(original)], word]
            end = stop
        return "".join([*parts, sentence.text[end:]])


def sampled(logits: Float[np.ndarray, " best"], draw: float) -> int:
    """Samples an index from the softmax of `logits`, by the random number `draw` in [0, 1)."""
    weights = np.exp(logits.astype(np.float64) - logits[0])
    return min(int(np.searchsorted(np.cumsum(weights), draw * weights.sum(), side="right")), len(logits) - 1)


def word_table(tokenizer: tokenizers.Tokenizer, size: int) -> tuple[list[str], Integer[np.ndarray, " words"]]:
    """The text and the kind of each token; punctuation, special tokens and parts of characters are `UNUSABLE`."""
    special = {id for id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    words, kinds = [""] * size, np.full(size, UNUSABLE, np.int32)
    for token, id in tokenizer.get_vocab().items():
        word = tokenizer.decode([id], skip_special_tokens=False).strip(f" {SPACE_MARKS[-1]}").removeprefix(SUBWORD)
        if id in special or not word or not all(unicodedata.category(letter)[0] in "LMN" for letter in word):
            continue
        words[id] = word
        kinds[id] = CONTINUES if token.startswith(SUBWORD) else AFTER_SPACE if token.startswith(SPACE_MARKS) else OTHER
    return words, kinds


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
