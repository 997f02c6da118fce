"""Tokenises text once into a store on disk that is found again by its digest (see `store`).

All rows are tokenised into parts (`token_parts`). Duplicates and excluded rows are then left out by hashes (`row_keys`), so
memory grows by only a few bytes per row.
"""

import hashlib
import json
import logging
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool
from tokenizers import Tokenizer

from jaxdistill.cluster import processes
from jaxdistill.core import InputError, errors_of
from jaxdistill.data import row_keys, sources
from jaxdistill.data.chunks import Chunking, bare, tokens_around
from jaxdistill.data.part_folder import PartFolder
from jaxdistill.data.portions import portions
from jaxdistill.data.roles import Roles
from jaxdistill.data.store import Counts, TokenStore, description_checksum, is_complete
from jaxdistill.data.token_parts import COUNTS, PartWriter, TokenPart
from jaxdistill.data.words import Unknown
from jaxdistill.files import make_folder_atomic
from jaxdistill.files.reading import LINE_BYTES

FORMAT = 2
"""Version of the rule which rows a text has, part of every digest; bump to invalidate everything stored for a text."""
LAYOUT = 3
"""Version of the store's files and tokens, part of the store's digest only; bump to tokenise again."""

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
    chunking: Chunking | None = None,
    line_bytes: int = LINE_BYTES,
    progress: bool = False,
) -> TokenStore:
    """Tokenises the text of `specs` into a store, or opens the existing one.

    Args:
      specs: files, globs and hub sets, see `sources`.
      tokenizer: adds its special tokens; its padding and truncation settings are ignored.
      max_length: maximum tokens per sentence, special tokens and prompt included.
      cache_folder: holds one folder per store, named by its digest and created atomically.
      columns, line_bytes: as in `sources.read`; the columns must include `text`.
      prompts: maps each role (empty for none) to its prompt, which no view deletes.
      roles: maps columns to roles, for each spec; empty: no sentence has a role.
      dedupe: keep only the first of rows whose columns are all equal after stripping and case folding, `text` and
        `second` of pairs in either order. Sentences of different roles differ.
      exclude: further specs with the same columns; leaves out rows with the same `text` (and `second`), compared likewise.
      chunking: splits cells into rows of one column `text`; `exclude` is compared with whole cells.

    Rows with an empty column are dropped and counted, like excluded ones. The store keeps the order of the text.
    """
    wanted, tokenizer = sources.column_map(columns), bare(tokenizer)
    tokenizer.enable_truncation(max_length)
    roles = roles or (dict.fromkeys(wanted, ""),) * len(specs)
    prompts = {role: prompts[role] for role in sorted({role for source in roles for role in source.values()})}
    _check(wanted, tokenizer, max_length, prompts)
    identity = {name: wanted[name] for name in row_keys.identifying(wanted, chunked=chunking is not None)}
    text, others = sources.Watched(specs, wanted), _watched(exclude, identity)
    of_rows = [list(roles)] if prompts.keys() - {""} else []
    split = [chunking.digest] if chunking else ["whole rows"] if dedupe and len(wanted) > len(identity) else []
    content = _digest(FORMAT, text.digest, wanted, dedupe, *[watched.digest for watched in others], *of_rows, *split)
    tokens = [LAYOUT, tokenizer.to_str(), prompts, max_length]
    folder = Path(cache_folder) / _digest(content, *tokens)
    writer = PartWriter(
        specs=specs,
        portions=portions(specs, wanted, roles, separate=chunking is not None, line_bytes=line_bytes),
        columns=[sources.TEXT] if chunking else list(wanted),
        tokenizer=tokenizer,
        max_length=max_length,
        prompts=prompts,
        chunking=chunking,
        line_bytes=line_bytes,
    )
    of_parts = [text.digest, wanted, *of_rows, chunking and chunking.digest, *tokens]
    parts = writer.written(folder.with_name(_digest("parts", *of_parts)), text, progress=progress)
    excluded = partial(row_keys.excluded_rows, exclude, identity, line_bytes) if exclude else None
    _finish(folder, writer, parts, content, excluded=excluded, dedupe=dedupe, watched=(text, *others))
    return TokenStore(folder, tokenizer, chunking)


def _watched(exclude: Sequence[str], identity: Mapping[str, str]) -> list[sources.Watched]:
    """The text of `data.exclude`, whose digest is part of the store's; empty without any."""
    with errors_of("data.exclude"):
        return [sources.Watched(exclude, identity)] if exclude else []


def _finish(
    folder: Path,
    writer: PartWriter,
    parts: PartFolder,
    content: str,
    excluded: Callable[[], row_keys.KeySet] | None,
    dedupe: bool,
    watched: Sequence[sources.Watched],
) -> None:
    """Makes the store from its parts in the first process, unless it exists; the others wait.

    Args:
      content: digest of the text alone.
      excluded: reads the keys of the rows to leave out; None: there are none.
      watched: the text, and the text of `data.exclude`.
    """
    info = {"digest": folder.name, "content": content, "source": watched[0].digest, "parts": parts.folder.name}

    def fill(unfinished: Path) -> None:
        _write(unfinished, writer, parts, info, excluded=excluded() if excluded else None, dedupe=dedupe)
        for one in watched:  # otherwise the digest could name other text
            parts.discard_unless(one.check_content)

    if parts.is_first and not _is_usable(folder):
        make_folder_atomic(folder, fill, what="the token store", is_complete=is_complete)
    processes.wait("the token store is there")


def _is_usable(folder: Path) -> bool:
    """Whether the store exists and is complete; removes a damaged one."""
    if folder.exists() and not is_complete(folder):
        log.warning("the token store %s is damaged; rebuilding it", folder)
        shutil.rmtree(folder)
    return folder.exists()


def _write(
    folder: Path, writer: PartWriter, parts: PartFolder, info: dict, excluded: row_keys.KeySet | None, dedupe: bool
) -> None:
    """Writes the arrays of the rows to keep, then `store.json`, which marks the store as complete."""
    counts, per_portion = Counter(parts.counts()), np.zeros(len(writer.portions), np.int64)
    kept = _rows_to_keep(parts, excluded, dedupe, counts)
    of_columns = {name: Counter[str]() for name in writer.columns}
    portion_ends, begin = np.cumsum(parts.origin["portion_rows"]), 0
    with _Files(folder) as files:
        for number in range(parts.count):
            part = TokenPart(parts.path(number))
            rows = np.flatnonzero(kept[begin : begin + len(part)])
            inputs = part.numbers("input_row")[rows]
            per_portion += np.bincount(np.searchsorted(portion_ends, inputs, side="right"), minlength=len(per_portion))
            files.append("row", begin + rows)
            files.append("input_row", inputs)
            files.append("keys", part.numbers("keys")[rows])
            for place, name in enumerate(writer.columns):
                of_part = {kind: part.numbers(f"{place}.{kind}")[rows] for kind in COUNTS}
                starts = part.tokens(place).starts
                of_part["lengths"] = np.diff(starts)[rows].astype(np.int32)
                files.append(f"{place}.starts", starts[rows])
                of_columns[name].update({kind: int(each.sum(dtype=np.int64)) for kind, each in of_part.items()})
                for kind in Counts._fields:
                    files.append(f"{place}.{kind}", of_part[kind])
            begin += len(part)
    if not per_portion.sum():
        why = "has an empty sentence" + (" or is in data.exclude" if counts["excluded"] else "")
        raise InputError(f"{', '.join(writer.specs)}: every row {why}; no text remains for training.")
    sources_of = [portion.source for portion in writer.portions]
    source_rows = np.bincount(sources_of, per_portion, len(writer.specs)).astype(np.int64)
    pad = writer.tokenizer.token_to_id("[PAD]"), writer.tokenizer.token_to_id("<pad>"), 0
    info = info | {
        "prompts": writer.prompts,
        "max_length": writer.max_length,
        "rows": int(per_portion.sum()),
        "input_rows": parts.rows,
        "source_rows": source_rows.tolist(),
        "roles": [dict(zip(writer.columns, portion.roles, strict=True)) for portion in writer.portions],
        "portion_rows": per_portion.tolist(),
        "chunked": writer.chunking is not None,
        "empty": counts["empty"],
        "duplicates": counts["duplicates"],
        "truncated": {name: sums["truncated"] for name, sums in of_columns.items()},
        "unknown": {name: [sums[kind] for kind in Unknown._fields] for name, sums in of_columns.items()},
        "lengths": {name: sums["lengths"] for name, sums in of_columns.items()},
        **({} if excluded is None else {"excluded": counts["excluded"]}),
        "pad_id": next(id for id in pad if id is not None),
        "columns": list(writer.columns),
        "arrays": files.shapes,
    }
    info = {"checksum": description_checksum(info)} | info
    (folder / "store.json").write_text(json.dumps(info, indent=1))


def _rows_to_keep(
    parts: PartFolder, excluded: row_keys.KeySet | None, dedupe: bool, counts: Counter[str]
) -> Bool[np.ndarray, " rows"]:
    """Whether the store keeps each row of the parts; adds the others to `counts`."""

    def each_part():  # one at a time: pages of a mapped file count as the process's memory once read
        return (TokenPart(parts.path(number)) for number in range(parts.count))

    kept = []
    for part in each_part():
        out = np.zeros(len(part), bool) if excluded is None else excluded.holds(part.numbers("exclude_keys"))
        counts["excluded"] += len(np.unique(part.numbers("input_row")[out]))  # counts rows, not their chunks
        kept.append(~out)
    kept = np.concatenate(kept)
    if dedupe:
        before = kept.sum()
        row_keys.drop_repeats(kept, lambda: (part.numbers("repeat_keys") for part in each_part()))
        counts["duplicates"] = int(before - kept.sum())
    return kept


class _Files(ExitStack):
    """Flat arrays that are appended to on disk."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder, self._files = folder, {}
        self.shapes: dict[str, list] = {}
        """Maps each array's name to its dtype, length and CRC-32."""

    def append(self, name: str, values: np.ndarray) -> None:
        if name not in self._files:
            self._files[name] = self.enter_context(open(self._folder / name, "wb"))
            self.shapes[name] = [values.dtype.str, 0, 0]
        content = values.tobytes()
        self._files[name].write(content)
        self.shapes[name][1] += len(values)
        self.shapes[name][2] = zlib.crc32(content, self.shapes[name][2])


def _check(wanted: Mapping[str, str], tokenizer: Tokenizer, max_length: int, prompts: Mapping[str, str]) -> None:
    if "text" not in wanted:
        raise InputError(f"data.columns names {', '.join(wanted) or 'no column'}; one of them must be 'text'.")
    least = tokens_around(tokenizer, prompts.values()) + 1
    if max_length < least:
        raise InputError(
            f"max_length={max_length} leaves no token for the text; the minimum with special tokens and prompt is {least}."
        )


def _digest(*parts) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
