"""Splits long texts into chunks of whole sentences whose lengths, in tokens, are drawn at random.

Sentences of any language end as Unicode says (UAX #29, https://www.unicode.org/reports/tr29/, rules SB6 to SB11), with these
differences, because a missed end costs less here than a wrong one:

- A mark such as `?` or `.` ends a sentence only before white space; full-width marks (`。`, `！`) need none.
- A full stop does not end a sentence after a single letter (`U.S. Army`, `z. B. Wien`), an abbreviation without vowels
  (`Dr.`, `bzw.`), one of a few others (`Prof.`), a number of one or two digits (`3. Oktober`), or between a short word and
  a number (`Fig. 3`).
- An empty line ends a sentence; a single line break does not.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, tee
from typing import NamedTuple

import numpy as np
import regex
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.core.files import foreign_errors

VERSION = 2
"""Version of the splitting, part of the digest; bump if the same text gives other chunks."""
MEASURED_CHARACTERS = 1 << 20
"""Characters tokenised at a time."""
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
_BEFORE = 12
"""Number of characters before a full stop that are searched for an abbreviation."""


class _Stops(NamedTuple):
    """Places where a chunk may end."""

    places: Integer[np.ndarray, " n"]
    """Indices of characters, ascending."""
    tokens: Integer[np.ndarray, " n"]
    """Number of the text's tokens before each place."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunking:
    """How texts are split.

    Each chunk's length is drawn uniformly from `least` to `most` tokens. The text seeds the generator, so the same text
    always gives the same chunks. A chunk ends at the first sentence end at or after the drawn length, or at the last one
    that `most` allows. A sentence above `most` is split between words, and a word between tokens.
    """

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
        """Yields the chunks of each text, none of them empty."""
        texts, again = tee(texts)
        for text, spans in zip(again, self.spans(texts), strict=True):
            yield [text[start:end] for start, end in spans]

    def spans(self, texts: Iterable[str]) -> Iterator[list[tuple[int, int]]]:
        """Yields each text's chunks as (start, end) in characters; none is empty or has outer white space."""
        tokenizer = bare(self.tokenizer)
        for batch in _batches(texts):
            with foreign_errors("the tokenizer cannot read the text"):
                encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
            of_texts = []
            for text, encoding in zip(batch, encodings, strict=True):
                ends = np.fromiter((end for _, end in encoding.offsets), np.int64, len(encoding))
                cuts = self._cuts(text, np.maximum.accumulate(ends)) if len(ends) else []
                trimmed = (_trimmed(text, *cut) for cut in pairwise([0, *cuts]))
                of_texts.append([(start, end) for start, end in trimmed if start < end])
            # A word at the beginning of a chunk, without a space before it, may have more tokens than it had in the text.
            chunks = [text[slice(*span)] for text, spans in zip(batch, of_texts, strict=True) for span in spans]
            counts = map(len, tokenizer.encode_batch(chunks, add_special_tokens=False))
            for text, spans in zip(batch, of_texts, strict=True):
                yield [part for span in spans for part in self._shortened(text, span, next(counts))]

    def _shortened(self, text: str, span: tuple[int, int], tokens: int) -> list[tuple[int, int]]:
        """The span, or parts of it if its `tokens` are too many."""
        if tokens <= self.most or self.most == 1:  # a character may have more tokens than any limit
            return [span]
        start, end = span
        shorter = dataclasses.replace(self, most=max(2 * self.most - tokens, 1), least=0)
        [parts] = shorter.spans([text[start:end]])
        return [(start + first, start + last) for first, last in parts]

    def _cuts(self, text: str, token_ends: Integer[np.ndarray, " t"]) -> list[int]:
        """Ends of a text's chunks, in characters.

        Args:
          token_ends: end of each token, in characters, ascending.
        """

        def stops(places: Sequence[int] | Integer[np.ndarray, " n"]) -> _Stops:
            return _Stops(np.asarray(places, np.int64), np.searchsorted(token_ends, places, side="right"))

        if len(token_ends) <= self.least or (len(token_ends) <= self.most and not self.least):
            return [len(text)]
        words = [space.end() for space in _SPACES.finditer(text)]
        levels = [stops(sentence_ends(text)), stops([*words, len(text)]), stops(np.unique(token_ends))]
        key = hashlib.blake2b(text.encode(), digest_size=8).digest()
        generator = np.random.default_rng(int.from_bytes(key))
        cuts, done = [], 0
        while done < len(token_ends):
            drawn = int(generator.integers(self.least, self.most + 1)) if self.least else self.most
            end, done = self._next_end(levels, done, drawn)
            cuts.append(end)
        return cuts

    def _next_end(self, levels: Sequence[_Stops], done: int, drawn: int) -> tuple[int, int]:
        """End of the chunk that starts after `done` tokens, in characters and in tokens; `levels` from best to worst."""
        for places, tokens in levels:
            first, beyond = np.searchsorted(tokens, [done, done + self.most], side="right")
            if first < beyond:
                index = min(int(np.searchsorted(tokens, done + drawn)), beyond - 1)
                return int(places[index]), int(tokens[index])
        return int(places[first]), int(tokens[first])  # one character of more than `most` tokens


def tokens_around(tokenizer: Tokenizer, prompts: Iterable[str]) -> int:
    """Tokens that a model reads besides the chunk: special tokens and the longest prompt."""
    longest = max(len(tokenizer.encode(prompt, add_special_tokens=False)) for prompt in prompts)
    return tokenizer.num_special_tokens_to_add(False) + longest


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without outer white space."""
    chunk = text[start:end]
    return end - len(chunk.lstrip()), start + len(chunk.rstrip())


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Groups texts into lists of about `MEASURED_CHARACTERS` characters."""
    batch, characters = [], 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if characters >= MEASURED_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def bare(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither pads nor truncates."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def sentence_ends(text: str) -> list[int]:
    """Index after each sentence and its trailing white space, ascending; the last one is the length of the text."""
    ends = [match.end() for match in _MARKS.finditer(text) if _is_end(text, match)]
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]


def _is_end(text: str, match: regex.Match) -> bool:
    marks, after = match["marks"], match.end()
    if marks is None or after == len(text):
        return True
    if _FULL_WIDTH.search(marks):
        return not text[after].isdecimal()
    if not match["gap"] or _CONTINUES.match(text, after):
        return False
    if _STRONG.search(marks):
        return True
    before = text[max(0, match.start() - _BEFORE) : match.start()]
    if _LOWER.match(text, after) or (marks == "." and _ABBREVIATION.search(before)):
        return False
    return not (text[after].isdecimal() and _SHORT_WORD.search(before))
