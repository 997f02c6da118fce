"""Finds the ends of sentences in text of any language.

Follows Unicode's sentence boundaries (UAX #29, https://www.unicode.org/reports/tr29/, rules SB6 to SB11) with these
differences. They suit text that is split into chunks, where a missed end costs less than a wrong one:

- A mark such as `?` or `.` ends a sentence only before white space; full-width marks (`。`, `！`) need none.
- A full stop does not end a sentence after a single letter (`U.S. Army`, `z. B. Wien`), an abbreviation without vowels
  (`Dr.`, `bzw.`), one of a few others (`Prof.`), a number of one or two digits (`3. Oktober`), or between a short word and
  a number (`Fig. 3`).
- An empty line ends a sentence; a single line break does not.
"""

import regex

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
