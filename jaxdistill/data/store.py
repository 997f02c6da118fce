"""Random access to ids, words and raw text of tokenised rows, memory-mapped.

Tokens and text are in parts (`token_parts`), which stores of the same text share. A store is a set of flat arrays with one
entry per kept row: `row` (its index among the rows of all parts), `input_row` and `keys`; and, for each column, `starts` (index
of the sentence's first token within its part) and `Counts`.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer
from tokenizers import Tokenizer

from jaxdistill.core import MASK_TOKENS, InputError
from jaxdistill.data.chunks import Chunking
from jaxdistill.data.token_parts import SUFFIX, TokenPart
from jaxdistill.data.words import PROTECTED, STARTS, Tokenised, Unknown, tokenised_words


class Gathered(NamedTuple):
    """Sentences of a store, concatenated."""

    ids: Integer[np.ndarray, " t"]
    words: Integer[np.ndarray, " t"]
    """Index of each token's word in its sentence, from 0; -1 for special tokens and the prompt."""
    lengths: Integer[np.ndarray, " b"]


class Counts(NamedTuple):
    """Counts of sentences that are known without reading tokens; each is an array of the store."""

    lengths: Integer[np.ndarray, " b"]
    """Number of all tokens."""
    words: Integer[np.ndarray, " b"]
    tokens: Integer[np.ndarray, " b"]
    """Number of tokens that are neither special nor of the prompt."""


class PairTemplate(NamedTuple):
    """Special tokens around a pair: `begin`, first sentence, `between`, second sentence, `end`."""

    begin: Integer[np.ndarray, " t"]
    between: Integer[np.ndarray, " t"]
    end: Integer[np.ndarray, " t"]
    between_first: int
    """Number of tokens of `between` that have the first sentence's type."""
    has_types: bool
    """Whether the second sentence has its own token type."""


class TokenStore:
    """Random access to tokenised rows, memory-mapped.

    Args:
      folder: written by `tokenize.build_store`.
      tokenizer: the store's tokenizer, for views that change the text. It is modified, so pass a copy.
      chunking: how the texts were split, if they were.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer | None = None, chunking: Chunking | None = None):
        self.folder, self._given_tokenizer, self.chunking = folder, tokenizer, chunking
        info = json.loads((folder / "store.json").read_text())
        self.digest: str = info["digest"]
        """Digest of everything that determines the tokens."""
        self.content_digest: str = info["content"]
        """Digest of the text alone: equal for stores of the same rows with different tokenizers."""
        self.source_digest: str = info["source"]
        """SHA-256 of the sources alone."""
        self.rows: int = info["rows"]
        self.input_rows: int = info["input_rows"]
        """Number of rows in the sources, excluded ones included."""
        self.max_length: int = info["max_length"]
        self.pad_id: int = info["pad_id"]
        self.columns: tuple[str, ...] = tuple(info["columns"])
        self.source_rows: tuple[int, ...] = tuple(info["source_rows"])
        """Number of rows from each spec."""
        self.prompts: dict[str, str] = info["prompts"]
        """Maps each role of the text to its prompt; the empty string stands for no role."""
        self._info = info
        self._arrays = {
            name: np.asarray(_mapped(folder / name, dtype, length))
            for name, (dtype, length, _) in info["arrays"].items()
        }
        self._place = {name: place for place, name in enumerate(self.columns)}
        parts = [TokenPart(path) for path in sorted((folder.parent / info["parts"]).glob(f"part-*{SUFFIX}"))]
        self._ends = np.cumsum([len(part) for part in parts])
        self._tokens = [[part.tokens(place) for part in parts] for place in range(len(self.columns))]
        self._longest: dict[str, int] = {}

    def __len__(self) -> int:
        return self.rows

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self._given_tokenizer is not None  # whoever reads other texts opens the store with one
        return self._given_tokenizer

    def _place_of(self, column: str) -> int:
        if column not in self._place:
            raise InputError(
                f"the text has no column {column!r}; it has {', '.join(self.columns)}. Set --config.data.columns."
            )
        return self._place[column]

    def _of(self, column: str, kind: str) -> np.ndarray:
        return self._arrays[f"{self._place_of(column)}.{kind}"]

    def _parts_of(self, rows: Sequence[int] | Integer[np.ndarray, " b"]) -> tuple[np.ndarray, np.ndarray]:
        """The part that holds each row, and the row's index within it."""
        places = self._arrays["row"][np.asarray(rows, np.int64)]
        numbers = np.searchsorted(self._ends, places, side="right")
        return numbers, places - np.concatenate([[0], self._ends])[numbers]

    def lengths(self, column: str) -> Integer[np.ndarray, " rows"]:
        """Number of tokens of each sentence."""
        return self._of(column, "lengths")

    def counts_of(self, column: str, rows: Integer[np.ndarray, " b"]) -> Counts:
        """Word and token counts of some sentences."""
        return Counts(*(self._of(column, kind)[rows].astype(np.int64) for kind in Counts._fields))

    def longest(self, column: str) -> int:
        """Number of tokens of the longest sentence."""
        if column not in self._longest:
            self._longest[column] = int(self.lengths(column).max())
        return self._longest[column]

    def unknown(self, column: str) -> Unknown:
        """Counts of unknown tokens and characters in a column."""
        return Unknown(*self._info["unknown"][column])

    def truncated(self, column: str) -> float:
        """Share of truncated sentences in a column."""
        return self._info["truncated"][column] / self.rows

    def ids(self, column: str, row: int) -> Integer[np.ndarray, " l"]:
        """Token ids of a sentence, special tokens included."""
        return self.gather(column, np.array([row])).ids

    def words(self, column: str, row: int) -> Integer[np.ndarray, " l"]:
        """Index of each token's word, from 0; -1 for special tokens and the prompt."""
        return self.gather(column, np.array([row])).words

    def gather(self, column: str, rows: Integer[np.ndarray, " b"]) -> "Gathered":
        """Ids and words of many sentences at once."""
        numbers, starts = self._parts_of(rows)[0], self._of(column, "starts")[rows]
        lengths = self._of(column, "lengths")[rows].astype(np.int64)
        tokens = self._tokens[self._place_of(column)]
        places = [*zip(numbers.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)]
        none = tokens[0]
        ids = np.concatenate([none.ids[:0], *[tokens[number].ids[begin:end] for number, begin, end in places]])
        marks = np.concatenate([none.marks[:0], *[tokens[number].marks[begin:end] for number, begin, end in places]])
        # Words are counted over all sentences at once; subtracting the count before each sentence restarts them at 0.
        count = np.cumsum(marks == STARTS)
        before = np.concatenate([[0], count])[np.cumsum(lengths) - lengths]
        words = np.where(marks == PROTECTED, -1, count - 1 - np.repeat(before, lengths))
        return Gathered(ids, words, lengths)

    def text(self, column: str, row: int) -> str:
        """The raw sentence, without surrounding white space."""
        return self._texts(column, [row])[0]

    def _texts(self, column: str, rows: Sequence[int]) -> list[str]:
        tokens = self._tokens[self._place_of(column)]
        return [tokens[number].texts[int(row)].as_py() for number, row in zip(*self._parts_of(rows), strict=True)]

    def texts(self, column: str = "text", prompts: Mapping[str, str] | None = None) -> "Texts":
        """All sentences of a column as a lazy sequence; `prompts` maps roles to prompts to prepend."""
        self._place_of(column)
        return Texts(self, column, prompts)

    def roles(self, column: str, rows: Sequence[int] | Integer[np.ndarray, " n"]) -> list[str]:
        """The role of each sentence: `query`, `document`, or an empty string."""
        portions = np.searchsorted(np.cumsum(self._info["portion_rows"]), np.asarray(rows, np.int64), side="right")
        of_portion = [portion[column] for portion in self._info["roles"]]
        return [of_portion[portion] for portion in portions]

    def tokenised(
        self, column: str, rows: Integer[np.ndarray, " n"], texts: Sequence[str], *, max_length: int
    ) -> Tokenised:
        """Tokenises `texts`, which replace the sentences of `rows`, with this store's tokenizer and their roles' prompts."""
        self._tokenizer.enable_truncation(max_length)
        prompts = [self.prompts[role] for role in self.roles(column, rows)]
        return tokenised_words(self._tokenizer, texts, prompts, max_length)

    @cached_property
    def pair_template(self) -> "PairTemplate":
        """Special tokens that the tokenizer puts around the two sentences of a pair."""
        self._tokenizer.no_truncation()
        # Which special tokens a pair gets does not depend on its sentences, so any two will do.
        encoding = self._tokenizer.encode(self.text("text", 0), self.text("text", 0))
        ids, types = np.asarray(encoding.ids, np.int64), np.asarray(encoding.type_ids)
        of = np.array([2 if sequence is None else sequence for sequence in encoding.sequence_ids])
        starts = [int(np.argmax(of == sentence)) for sentence in (0, 1)]
        ends = [len(of) - int(np.argmax(of[::-1] == sentence)) for sentence in (0, 1)]
        parts = (slice(0, starts[0]), slice(ends[0], starts[1]), slice(ends[1], len(of)))
        begin, between, end = (ids[part] for part in parts)
        return PairTemplate(
            begin, between, end, int((types[parts[1]] == 0).sum()), has_types=bool(types[parts[2]].any())
        )

    @cached_property
    def mask_token(self) -> str:
        """The tokenizer's mask token, registered so that it is read as one token; raises `InputError` if there is none."""
        token = next((mask for mask in MASK_TOKENS if self._tokenizer.token_to_id(mask) is not None), None)
        if token is None:
            raise InputError(
                f"the tokenizer has no mask token ({', '.join(MASK_TOKENS)}); choose a view without masks."
            )
        if self._tokenizer.token_to_id(token) not in self._tokenizer.get_added_tokens_decoder():
            self._tokenizer.add_special_tokens([token])
        return token

    @property
    def keys(self) -> Integer[np.ndarray, " rows"]:
        """A 64-bit hash of each row's `text`; equal texts have equal keys."""
        return self._arrays["keys"]

    @property
    def input_row(self) -> Integer[np.ndarray, " rows"]:
        """Index of each row in the sources, and therefore in the user's own vectors."""
        return self._arrays["input_row"]

    @property
    def source_of_row(self) -> Integer[np.ndarray, " rows"]:
        """Index of each row's spec."""
        return np.repeat(np.arange(len(self.source_rows), dtype=np.int32), self.source_rows)

    def report(self) -> list[str]:
        """Lines about the text for the run's log."""
        info = self._info
        sources = len(self.source_rows)
        lines = [f"text: {self.rows:,} rows of {sources} source{'s' * (sources != 1)}, digest {self.digest[:12]}"]
        if info.get("chunked"):
            lines.append(f"split: {info['input_rows'] - info['empty']:,} texts into chunks")
        left_out = {"empty": "with an empty sentence", "duplicates": "duplicates", "excluded": "in data.exclude"}
        counts = [f"{info[key]:,} {what}" for key, what in left_out.items() if info.get(key)]
        if counts or "excluded" in info:
            lines.append(f"left out: {', '.join(counts) or 'nothing, no row is in data.exclude'}")
        for name in self.columns:
            tokens = info["lengths"][name]
            lines.append(
                f"column {name}: {tokens:,} tokens, {tokens / self.rows:.1f} per sentence, "
                f"{self.truncated(name):.2%} of sentences truncated at {self.max_length} tokens"
            )
        return lines


class Texts(Sequence):
    """The sentences of one column, read from disk on access."""

    def __init__(self, store: TokenStore, column: str, prompts: Mapping[str, str] | None = None):
        self._store, self._column, self._prompts = store, column, prompts

    def __len__(self) -> int:
        return self._store.rows

    def __getitem__(self, place):
        if not isinstance(place, slice):
            return self._of([range(len(self))[place]])[0]
        return self._of(range(*place.indices(len(self))))

    def _of(self, rows: Sequence[int]) -> list[str]:
        texts = self._store._texts(self._column, rows)
        if self._prompts is None:
            return texts
        roles = self._store.roles(self._column, rows)
        return [self._prompts[role] + text for role, text in zip(roles, texts, strict=True)]


def is_complete(folder: Path) -> bool:
    """Whether a store's arrays and description match their checksums; reads all of them."""
    try:
        info = json.loads((folder / "store.json").read_text())
        return info.pop("checksum") == description_checksum(info) and all(
            (folder / name).stat().st_size == np.dtype(dtype).itemsize * length
            and zlib.crc32(_mapped(folder / name, dtype, length).data) == checksum
            for name, (dtype, length, checksum) in info["arrays"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def description_checksum(info: Mapping[str, object]) -> int:
    """CRC-32 of the content of `store.json` without the checksum itself."""
    return zlib.crc32(json.dumps(info).encode())


def _mapped(path: Path, dtype: str, length: int) -> np.ndarray:
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,)) if length else np.zeros(0, dtype)
