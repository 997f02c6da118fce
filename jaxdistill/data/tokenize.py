"""Tokenises text once, in batches, into a store on disk that is reused by its digest (see `store`).

Memory does not grow with the text, except for a set of 8-byte keys if duplicates or rows of other files are excluded.
"""

import dataclasses
import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice, tee
from pathlib import Path
from types import MappingProxyType

import numpy as np
from tokenizers import Tokenizer

from jaxdistill.bars import progress_bar
from jaxdistill.core import SECOND, InputError
from jaxdistill.data import sources
from jaxdistill.data.chunks import Chunking
from jaxdistill.data.portions import Portion, portions
from jaxdistill.data.roles import Roles
from jaxdistill.data.store import TokenStore, description_checksum, is_complete
from jaxdistill.data.words import PROTECTED, STARTS, Unknown, tokenised_words
from jaxdistill.files import make_folder_atomic
from jaxdistill.files.reading import LINE_BYTES
from jaxdistill.ops.unknown import unknown_id

FORMAT = 2
"""Version of the file layout, part of the digest; bump to invalidate stores."""
LAYOUT = 2
"""Version of what is derived from the tokens, part of the digest of the store alone; bump to tokenise again."""
CHUNK_ROWS = 4096
"""Rows tokenised at a time."""
IDENTITY = ("text", SECOND)
"""Columns that identify a row among those to exclude, in either order."""

log = logging.getLogger(__name__)


def build_store(
    specs: Sequence[str],
    *,
    tokenizer: Tokenizer,
    max_length: int,
    cache_folder: str | Path,
    columns: Mapping[str, str] | Sequence[str] = ("text",),
    prompts: Mapping[str, str] = MappingProxyType({"": ""}),
    roles: Roles = (),
    dedupe: bool = False,
    exclude: Sequence[str] = (),
    weights: Sequence[float] = (),
    chunking: Chunking | None = None,
    line_bytes: int = LINE_BYTES,
    progress: bool = False,
) -> TokenStore:
    """Tokenises the text of `specs` into a store, or opens the existing one.

    Args:
      specs: files, globs and hub sets, see `sources`.
      tokenizer: used with its special tokens; its own padding and truncation settings are ignored.
      max_length: maximum tokens per sentence, special tokens and prompt included.
      cache_folder: holds one folder per store, named by its digest and created atomically.
      columns, line_bytes: as in `sources.read`; the columns must include `text`.
      prompts: role (empty for none) to what is prepended to its sentences; no view deletes its tokens.
      roles: for each spec its columns to their roles; empty: no sentence has one.
      dedupe: keep only the first of rows whose columns are all equal after stripping and case folding, `text` and
        `second` of pairs in either order. Sentences of different roles differ.
      exclude: more specs with the same columns; rows with their `text`, and `second` of pairs, are excluded likewise.
      weights: only validated here: empty, or one positive number per spec.
      chunking: splits cells, of the columns that a source has, into rows of one column `text`; `exclude` is for whole cells.

    Rows with an empty column are dropped and counted, like excluded ones. The store has the order of the text.
    """
    wanted = sources.column_map(columns)
    tokenizer = _fresh(tokenizer, max_length)
    roles = roles or (dict.fromkeys(wanted, ""),) * len(specs)
    prompts = {role: prompts[role] for role in sorted({role for source in roles for role in source.values()})}
    _check(specs, wanted, tokenizer, max_length, prompts, weights)
    identity = {name: wanted[name] for name in identifying(wanted, chunked=chunking is not None)}
    text, excluded = sources.Watched(specs, wanted), _exclusion(exclude, identity)
    parts = [watched.digest for watched in excluded] + ([list(roles)] if prompts.keys() - {""} else [])
    parts += [chunking.digest] if chunking else ["whole rows"] if dedupe and len(wanted) > len(identity) else []
    content = _digest(FORMAT, text.digest, wanted, dedupe, *parts)
    digest = _digest(content, LAYOUT, tokenizer.to_str(), prompts, max_length)
    folder = Path(cache_folder) / digest
    if _is_usable(folder):
        return TokenStore(folder, tokenizer, chunking)
    draft = _Draft(tokenizer, wanted, prompts, dedupe, tuple(exclude), identity, chunking, max_length, line_bytes)
    info = {"digest": digest, "content": content, "source": text.digest, "prompts": prompts, "max_length": max_length}

    def fill(unfinished: Path) -> None:
        read = portions(specs, wanted, roles, separate=chunking is not None, line_bytes=line_bytes)
        draft.write(unfinished, specs, read, info, progress)
        for watched in (text, *excluded):  # else the digest could name other text
            watched.check_content()

    make_folder_atomic(folder, fill, what="the token store", is_complete=is_complete)
    return TokenStore(folder, tokenizer, chunking)


def _is_usable(folder: Path) -> bool:
    """Whether there is a complete store; removes a damaged one."""
    if folder.exists() and not is_complete(folder):
        log.warning("the token store %s is damaged; rebuilding it", folder)
        shutil.rmtree(folder)
    return folder.exists()


@dataclasses.dataclass
class _Draft:
    """A store while it is written: counts and settings."""

    tokenizer: Tokenizer
    wanted: Mapping[str, str]
    prompts: Mapping[str, str]
    dedupe: bool
    exclude: tuple[str, ...]
    identity: Mapping[str, str]
    """The columns that identify a row, to those of the files in `exclude`."""
    chunking: Chunking | None
    max_length: int
    line_bytes: int
    input_rows: int = 0
    empty: int = 0
    duplicates: int = 0
    excluded: int = 0

    def write(self, folder: Path, specs: Sequence[str], text: Sequence[Portion], info: dict, progress: bool) -> None:
        """Writes all arrays, then `store.json`, which marks the store as complete."""
        self.columns = [sources.TEXT] if self.chunking else list(self.wanted)
        self.truncated = dict.fromkeys(self.columns, 0)
        self.unknown, self.unknown_id = dict.fromkeys(self.columns, Unknown()), unknown_id(self.tokenizer)
        source_rows, portion_rows = np.zeros(len(specs), np.int64), np.zeros(len(text), np.int64)
        elsewhere, seen = excluded_rows(self.exclude, self.identity, self.line_bytes), set[bytes]()
        with _Files(folder) as files, progress_bar(None, "rows", shown=progress and "tokenising") as bar:
            for column in range(len(self.columns)):
                files.append(f"{column}.starts", np.zeros(1, np.int64))
                files.append(f"{column}.text_starts", np.zeros(1, np.int64))
            for place, portion in enumerate(text):
                kept = self._rows_to_keep(specs[portion.source], portion, elsewhere, seen)
                while chunk := list(islice(kept, CHUNK_ROWS)):
                    self._append(files, chunk, portion.roles)
                    portion_rows[place] += len(chunk)
                    bar.update(len(chunk))
                source_rows[portion.source] += portion_rows[place]
            shapes = files.shapes
        if not source_rows.sum():
            why = "has an empty sentence" + (" or is in data.exclude" if self.excluded else "")
            raise InputError(f"{', '.join(specs)}: every row {why}; no text remains for training.")
        pad = self.tokenizer.token_to_id("[PAD]"), self.tokenizer.token_to_id("<pad>"), 0
        info |= {"rows": int(source_rows.sum()), "input_rows": self.input_rows, "source_rows": source_rows.tolist()}
        info |= {"roles": [dict(zip(self.columns, portion.roles, strict=True)) for portion in text]}
        info |= {"portion_rows": portion_rows.tolist(), "chunked": self.chunking is not None}
        info |= {
            "empty": self.empty,
            "duplicates": self.duplicates,
            "truncated": self.truncated,
            "unknown": self.unknown,
        }
        info |= {"excluded": self.excluded} if self.exclude else {}
        info |= {"pad_id": next(id for id in pad if id is not None), "columns": self.columns, "arrays": shapes}
        info = {"checksum": description_checksum(info)} | info
        (folder / "store.json").write_text(json.dumps(info, indent=1))

    def _rows_to_keep(
        self, spec: str, portion: Portion, elsewhere: set[bytes], seen: set[bytes]
    ) -> Iterator[tuple[int, list[str]]]:
        """Yields the rows to keep, stripped, with their index in the input."""
        identity = list(map(self.columns.index, identifying(self.columns, chunked=self.chunking is not None)))
        others = [place for place in range(len(self.columns)) if place not in identity]
        rows = self._filled(spec, portion, identity, elsewhere)
        for number, cells in self._split(rows) if self.chunking else rows:
            if self.dedupe:
                sides = [f"{portion.roles[place]}\0{cells[place]}" for place in identity]
                key = row_key(sides, [cells[place] for place in others])
                if key in seen:
                    self.duplicates += 1
                    continue
                seen.add(key)
            yield number, cells

    def _filled(
        self, spec: str, portion: Portion, identity: Sequence[int], elsewhere: set[bytes]
    ) -> Iterator[tuple[int, list[str]]]:
        """Yields the rows without an empty cell that are not excluded."""
        for row in sources.rows(spec, portion.columns, self.line_bytes):
            number, self.input_rows = self.input_rows, self.input_rows + 1
            cells = [cell.strip() for cell in row]
            if not all(cells):
                self.empty += 1
            elif elsewhere and row_key([cells[place] for place in identity]) in elsewhere:
                self.excluded += 1
            else:
                yield number, cells

    def _split(self, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
        """Yields the chunks of rows of one column."""
        assert self.chunking is not None
        numbers, texts = tee(rows)
        chunked = self.chunking.split(cell for _, (cell,) in texts)
        for (number, _), chunks in zip(numbers, chunked, strict=True):
            yield from ((number, [chunk]) for chunk in chunks)

    def _append(self, files: "_Files", chunk: list[tuple[int, list[str]]], roles: Sequence[str]) -> None:
        """Tokenises a chunk and appends it to every array."""
        files.append("input_row", np.array([number for number, _ in chunk], np.int64))
        wide = np.uint16 if self.tokenizer.get_vocab_size() <= 1 << 16 else np.uint32
        for place, name in enumerate(self.columns):
            texts = [cells[place] for _, cells in chunk]
            prompt = self.prompts[roles[place]]
            tokens = tokenised_words(self.tokenizer, texts, prompt, self.max_length, unknown=self.unknown_id)
            self.unknown[name] += tokens.unknown
            self.truncated[name] += tokens.truncated
            files.append(f"{place}.ids", tokens.ids.astype(wide))
            files.append(f"{place}.marks", tokens.marks)
            files.append_ends(f"{place}.starts", tokens.lengths)
            files.append(f"{place}.words", _sums(tokens.marks == STARTS, tokens.lengths))
            files.append(f"{place}.contents", _sums(tokens.marks != PROTECTED, tokens.lengths))
            raw = [text.encode() for text in texts]
            files.append(f"{place}.text", np.frombuffer(b"".join(raw), np.uint8))
            files.append_ends(f"{place}.text_starts", np.array([len(text) for text in raw], np.int64))
            if name == "text":
                files.append("keys", np.frombuffer(b"".join(map(_key, texts)), np.uint64))


class _Files(ExitStack):
    """Flat arrays that are appended to on disk."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder, self._files, self._end = folder, {}, {}
        self.shapes: dict[str, list] = {}
        """Dtype, length and CRC-32 of each array, by its name."""

    def append(self, name: str, values: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = self.enter_context(open(self._folder / name, "wb"))
            self.shapes[name] = [values.dtype.str, 0, 0]
        content = values.tobytes()
        self._files[name].write(content)
        self.shapes[name][1] += len(values)
        self.shapes[name][2] = zlib.crc32(content, self.shapes[name][2])

    def append_ends(self, name: str, lengths: np.ndarray) -> None:
        """Appends the end offsets of pieces of these lengths, continuing from the last end."""
        ends = self._end.get(name, 0) + np.cumsum(lengths, dtype=np.int64)
        self._end[name] = int(ends[-1])
        self.append(name, ends)


def _check(
    specs, wanted: Mapping[str, str], tokenizer: Tokenizer, max_length: int, prompts: Mapping[str, str], weights
) -> None:
    sources.check_given(specs)
    if "text" not in wanted:
        raise InputError(f"data.columns names {', '.join(wanted) or 'no column'}; one of them must be 'text'.")
    sources.check_weights(weights, sources=len(specs))
    longest = max(len(tokenizer.encode(prompt, add_special_tokens=False)) for prompt in prompts.values())
    least = tokenizer.num_special_tokens_to_add(False) + longest + 1
    if max_length < least:
        raise InputError(
            f"max_length={max_length} leaves no token for the text; the minimum with special tokens and prompt is {least}."
        )


def identifying(columns: Collection[str], *, chunked: bool) -> list[str]:
    """The columns that tell whether two rows are the same; the chunks of a text are rows of one column."""
    return [name for name in IDENTITY[: 1 if chunked else None] if name in columns]


def excluded_rows(specs: Sequence[str], identity: Mapping[str, str], line_bytes: int) -> set[bytes]:
    """The `row_key` of each row of `data.exclude`, by its columns `identity`."""
    with _excluding():
        return {row_key(row) for row in sources.read(specs, identity, line_bytes)}


def _exclusion(exclude: Sequence[str], identity: Mapping[str, str]) -> list[sources.Watched]:
    """The sources of excluded rows, which are part of the digest; empty without any."""
    with _excluding():
        return [sources.Watched(exclude, identity)] if exclude else []


@contextmanager
def _excluding() -> Iterator[None]:
    """Prefixes errors with the option's name."""
    try:
        yield
    except InputError as error:
        raise InputError(f"data.exclude: {error}") from None


def row_key(cells: Sequence[str], ordered: Sequence[str] = ()) -> bytes:
    """Hash of a row's sentences that ignores surrounding white space, case, and the order of `cells`."""
    folded = [[cell.strip().casefold() for cell in part] for part in (cells, ordered)]
    return _key("\0".join([*sorted(folded[0]), *folded[1]]))


def _fresh(tokenizer: Tokenizer, max_length: int) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.enable_truncation(max_length)
    return copy


def _digest(*parts) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _sums(which: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """How many tokens of each sentence are chosen."""
    return np.add.reduceat(which, np.cumsum(lengths) - lengths, dtype=np.int32)


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
