"""Reads WordNet's database files and replaces words by their synonyms.

For each part of speech, a folder holds `index.POS` (words with the offsets of their synsets, the most frequent sense
first), `data.POS` (the synsets) and `POS.exc` (irregular inflections and their base forms).

Source: the manual page wndb(5WN), https://wordnet.princeton.edu/documentation/wndb5wn.
"""

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

from jaxdistill.core import InputError

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
"""Letters, with hyphens and apostrophes inside: `well-known` and `isn't` are words."""
MARKER = re.compile(r"\((?:a|p|ip)\)$")
"""Suffix of an adjective that says where in a sentence it may stand."""

FUNCTION_WORDS = frozenset(
    """
    a am an and any are as at be been being but by can could did do does for from had has have he her him his how i if in
    into is it its may me might mine must my no nor not of off on or our out over own shall she should so some such than
    that the their them then there these they this those to too up us was we were what when where which who whom why will
    with would you your
    """.split()
)
"""Function words, which are never replaced: WordNet lacks them, and has other words of the same spelling (`a` is an
ångström, `in` indium, `us` America)."""


class WordNet:
    """Synonyms by word, from a local WordNet 3.x database."""

    def __init__(self, folder: str | Path = "", *, senses: int = 0):
        """
        Args:
          folder: contains `index.noun`, `data.noun` and so on; empty: the first of the usual places that exists.
          senses: number of senses of a word per part of speech, most frequent first; 0: all.
        """
        self.folder = found_folder(folder)
        self._senses = senses
        try:
            self._index = {pos: dict(self._entries(pos)) for pos in PARTS_OF_SPEECH}
            self._bases = {pos: dict(self._exceptions(pos)) for pos in PARTS_OF_SPEECH}
            self._data = {pos: (self.folder / f"data.{pos}").read_bytes() for pos in PARTS_OF_SPEECH}
        except OSError as error:
            raise InputError(f"{error.filename} cannot be read: {error.strerror}; is {self.folder} WordNet?") from None
        self._known: dict[str, list[str]] = {}

    def synonyms(self, word: str) -> list[str]:
        """The other lemmas in all synsets of a lower-case word; if it is not listed, of its irregular base forms."""
        if word not in self._known:
            listed = [(pos, word) for pos in PARTS_OF_SPEECH if word in self._index[pos]]
            forms = listed or [(pos, base) for pos in PARTS_OF_SPEECH for base in self._bases[pos].get(word, ())]
            lemmas = [lemma for pos, form in forms for lemma in self._lemmas(pos, form)]
            same = {word} | {form for _, form in forms}
            self._known[word] = [lemma for lemma in dict.fromkeys(lemmas) if lemma.lower() not in same]
        return self._known[word]

    def _lemmas(self, pos: str, word: str) -> Iterator[str]:
        offsets = self._index[pos].get(word, ())
        for offset in offsets[: self._senses or None]:
            start = int(offset)
            fields = self._data[pos][start : self._data[pos].find(b"\n", start)].decode("utf-8", "replace").split()
            if fields[:1] != [offset] or len(fields) < 4:
                raise InputError(f"{self.folder}: data.{pos} and index.{pos} do not belong together (word {word!r}).")
            for lemma in fields[4 : 4 + 2 * int(fields[3], 16) : 2]:
                yield MARKER.sub("", lemma).replace("_", " ")

    def _entries(self, pos: str) -> Iterator[tuple[str, list[str]]]:
        """Words and the offsets of their synsets; the licence at the top is indented."""
        path = self.folder / f"index.{pos}"
        with open(path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.startswith(" "):
                    continue
                fields = line.split()
                count = int(fields[2]) if len(fields) > 6 and fields[2].isdigit() else len(fields)
                if not all(map(str.isdigit, fields[-count:])):
                    raise InputError(
                        f"{path}:{number} is not an entry of a WordNet index; download the database again."
                    )
                yield fields[0], fields[-count:]

    def _exceptions(self, pos: str) -> Iterator[tuple[str, list[str]]]:
        with open(self.folder / f"{pos}.exc", encoding="utf-8", errors="replace") as file:
            for inflected, *bases in filter(None, map(str.split, file)):
                yield inflected, bases


def found_folder(folder: str | Path) -> Path:
    """The given folder, or the first of the usual ones that exists; raises `InputError` if there is none."""
    nltk = [*os.environ.get("NLTK_DATA", "").split(os.pathsep), "~/nltk_data"]
    usual = ["/usr/share/wordnet", *(f"{place}/corpora/wordnet" for place in nltk if place)]
    for place in [folder] if folder else usual:
        if Path(os.path.expanduser(place)).is_dir():
            return Path(os.path.expanduser(place))
    raise InputError(
        f"WordNet was not found: no folder {' or '.join([str(folder)] if folder else usual)}; run"
        " apt-get install wordnet-base, or unzip nltk's corpora/wordnet.zip, and name the folder with --wordnet."
    )


def replaced(text: str, wordnet: WordNet, *, rate: float, rng: random.Random) -> str:
    """`text` with each of its words replaced by a random synonym with probability `rate`; function words stay."""

    def chosen(match: re.Match) -> str:
        word = match[0]
        if rng.random() >= rate or word.lower() in FUNCTION_WORDS:
            return word
        synonyms = wordnet.synonyms(word.lower())
        return with_case_of(word, rng.choice(synonyms)) if synonyms else word

    return WORD.sub(chosen, text)


def with_case_of(original: str, word: str) -> str:
    """`word` with its first letter in the case of the original's."""
    return (word[:1].upper() if original[:1].isupper() else word[:1].lower()) + word[1:]
