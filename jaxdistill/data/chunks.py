"""Splits long texts into chunks of whole sentences whose lengths, in tokens, are drawn at random.

Sentences of any language end as Unicode says (UAX #29, https://www.unicode.org/reports/tr29/, rules SB6 to SB11), with these
differences, because a missed end costs less here than a wrong one:

- A mark such as `?` or `.` ends a sentence only before white space; full-width marks (`。`, `！`) need none.
- A full stop does not end a sentence after a single letter (`U.S. Army`, `z. B. Wien`), an abbreviation without vowels (`Dr.`, `bzw.`),
  one of a few others (`Prof.`), a number of one or two digits (`3. Oktober`), or between a short word and a number (`Fig. 3`).
- An empty line ends a sentence; a single line break does not.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

import numpy as np
import regex
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.core.files import foreign_errors

VERSION = 2
"""Version of the splitting, part of the digest; bump if the same text gives other chunks."""
_SPACES = re.compile(r"\s+")
_MARKS = regex.compile(
    r"(?P<marks>[\p{SB=STerm}\p{SB=ATerm}…]+)(?:[\p{SB=Close}--[\p{Ps}\p{Pi}]]|\p{Pi}(?=\s))*(?P<gap>\s*)|\n\s*\n\s*",
    regex.V1,
)
"""Closing quotes and brackets belong to the sentence before them; `“` closes one in German."""
_FULL_WIDTH = regex.compile(r"[[\p{SB=STerm}\p{SB=ATerm}]&&[\p{EA=W}\p{EA=F}\p{EA=H}]]", regex.V1)
_STRONG = regex.compile(r"\p{SB=STerm}")
_CONTINUES = regex.compile(r"\p{SB=SContinue}")
_LOWER = regex.compile(r"[^\p{L}\p{SB=STerm}\p{SB=ATerm}\n]*\p{Ll}")
_ABBREVIATION = regex.compile(
    r"(?<![\p{L}\p{N}])(?:[\p{Lu}\p{Ll}]|[bcdfghjklmnpqrstvwxz]{2,4}|\p{Nd}{1,2}"
    r"|prof|gen|sen|rep|gov|rev|col|capt|hon|al|ca|approx|dept|univ|vol|ed|eds|etc|usw|bspw|evtl|geb|gest)$",
    regex.IGNORECASE,
)
_SHORT_WORD = regex.compile(r"(?<!\p{L})\p{L}{1,4}$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunking:
    """How texts are split. Each chunk's length is drawn uniformly from `least` to `most` tokens, by a generator that the text seeds, so
    that the same text always gives the same chunks. A chunk ends at the first sentence end at or after the drawn length, or at the last
    one that `most` allows. A sentence above `most` is split between words, and a word above `most` between tokens."""

    tokenizer: Tokenizer
    """Counts the tokens; its truncation and padding settings are ignored."""
    most: int
    """Maximum tokens of a chunk, special tokens and prompts excluded."""
    least: int = 0
    """Shortest drawn length; 0: every length is `most`."""

    @property
    def digest(self) -> str:
        """Digest of everything besides the text that determines the chunks."""
        parts = [VERSION, bare(self.tokenizer).to_str(), self.most, self.least]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def split(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Yields the chunks of each text, without white space at their ends; no chunk is empty."""
        tokenizer, texts = bare(self.tokenizer), iter(texts)
        while batch := list(islice(texts, 16)):  # few, because each may be a whole book
            with foreign_errors("the tokenizer cannot read the text"):
                encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
            chunks_of_texts = []
            for text, encoding in zip(batch, encodings, strict=True):
                ends = np.maximum.accumulate([end for _, end in encoding.offsets])  # must ascend for `searchsorted`
                chunk_ends = self._chunk_ends(text, ends) if len(ends) else []
                chunks = (text[start:end].strip() for start, end in pairwise([0, *chunk_ends]))
                chunks_of_texts.append([chunk for chunk in chunks if chunk])
            # Without the space before it, a chunk's first word may have more tokens than in the text. So each chunk is counted alone,
            # in order. One above `most` is split into chunks that are at least the excess shorter: room for their first words.
            counts = map(len, tokenizer.encode_batch(list(chain(*chunks_of_texts)), add_special_tokens=False))
            for chunks in chunks_of_texts:
                fitting = []
                for chunk in chunks:
                    excess = next(counts) - self.most
                    if excess <= 0 or self.most == 1:  # 1 cannot be lowered, and a character may have more tokens
                        fitting.append(chunk)
                    else:
                        shorter = dataclasses.replace(self, most=max(self.most - excess, 1), least=0)
                        fitting += next(shorter.split([chunk]))
                yield fitting

    def _chunk_ends(self, text: str, token_ends: Integer[np.ndarray, " t"]) -> list[int]:
        """Ends of a text's chunks, as indices of its characters; `token_ends` are the ascending ends of its tokens."""
        least = self.least or self.most
        if len(token_ends) <= least:
            return [len(text)]  # one chunk, whatever length would be drawn
        word_ends = [*(space.end() for space in _SPACES.finditer(text)), len(text)]
        # Where a chunk may end (after a sentence, else a word, else a token), each with the number of tokens before it.
        allowed_ends = [np.asarray(ends) for ends in (sentence_ends(text), word_ends, np.unique(token_ends))]
        levels = [(ends, np.searchsorted(token_ends, ends, side="right")) for ends in allowed_ends]
        key = hashlib.blake2b(text.encode(), digest_size=8).digest()
        generator = np.random.default_rng(int.from_bytes(key))
        chunk_ends = []
        begin = 0  # number of tokens before the next chunk
        while begin < len(token_ends):
            length = int(generator.integers(least, self.most + 1))
            end, begin = self._next_end(levels, begin, length)
            chunk_ends.append(end)
        return chunk_ends

    def _next_end(self, levels: Sequence[tuple[np.ndarray, ...]], begin: int, length: int) -> tuple[int, int]:
        """Where the chunk that begins at token `begin` ends, ideally after `length` tokens: the index of a character, and the number of
        tokens before it. `levels` has arrays of possible ends; the first level with one within `most` tokens is used."""
        for ends, tokens_before in levels:
            # The ends from `first` to before `stop` give a chunk of 1 to `most` tokens.
            first, stop = np.searchsorted(tokens_before, [begin, begin + self.most], side="right")
            if first < stop:
                chosen = min(np.searchsorted(tokens_before, begin + length), stop - 1)  # or the last within `most`
                return int(ends[chosen]), int(tokens_before[chosen])
        # Only a single character can have more than `most` tokens. It is a chunk nevertheless.
        ends, tokens_before = levels[-1]
        first = np.searchsorted(tokens_before, begin, side="right")
        return int(ends[first]), int(tokens_before[first])


def tokens_around(tokenizer: Tokenizer, prompts: Iterable[str]) -> int:
    """Number of tokens that surround a chunk: the special tokens and the tokens of the longest prompt."""
    longest = max(len(tokenizer.encode(prompt, add_special_tokens=False)) for prompt in prompts)
    return tokenizer.num_special_tokens_to_add(False) + longest


def bare(tokenizer: Tokenizer) -> Tokenizer:
    """A copy of a tokenizer that neither pads nor truncates."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def sentence_ends(text: str) -> list[int]:
    """Index after each sentence and its trailing white space, ascending; the last one is the length of the text."""
    ends = [match.end() for match in _MARKS.finditer(text) if _is_end(text, match)]
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]


def _is_end(text: str, match: regex.Match) -> bool:
    """Whether a match of `_MARKS` ends a sentence, by the rules at the top of this file."""
    marks, after = match["marks"], match.end()
    if marks is None or after == len(text):  # an empty line, or the end of the text
        return True
    if _FULL_WIDTH.search(marks):
        return not text[after].isdecimal()  # before a digit, it is a decimal point
    if not match["gap"] or _CONTINUES.match(text, after):  # no white space, or a comma or the like after it
        return False
    if _STRONG.search(marks):  # `?` or `!`, not only full stops
        return True
    before = text[max(0, match.start() - 12) : match.start()]  # longer than any abbreviation
    if _LOWER.match(text, after) or (marks == "." and _ABBREVIATION.search(before)):
        return False  # a lower-case word follows, or an abbreviation precedes
    is_reference = text[after].isdecimal() and _SHORT_WORD.search(before)  # such as `Fig. 3`
    return not is_reference
