"""Sources of text: which files the user's specs name, and whether these have changed.

A source is one of: a file or glob (`.txt`, `.tsv`, `.csv`, `.json`, `.jsonl`, `.parquet`; all but Parquet also compressed), also
in a bucket (`s3://...`, `gs://...`); `package:NAME/PATH` (a file inside an installed package); `data:PATH` (a file or glob in the
folder JAXDISTILL_DATA); `hf:NAME[:CONFIG]:SPLIT:COLUMN`; `tfds:NAME:SPLIT:COLUMN`. `files:` before a file, glob or folder makes
each file one text, whatever its extension. `raw:` or `quoted:` before a `.tsv` file or glob says how its quotes are read.
"""

import contextlib
import glob
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from jaxdistill import paths
from jaxdistill.core import InputError, errors_of
from jaxdistill.data import hub
from jaxdistill.data.columns import TEXT, column_map, requested_names
from jaxdistill.files import buckets, is_remote, parts

MAX_COMMAS = 8
IN_DATA = "data:"
WHOLE = "files:"
"""Prefix of a spec whose files are one text each; a folder means all its files at any depth that are not hidden."""
QUOTED = {"raw:": False, "quoted:": True}
"""Maps prefixes of a spec of `.tsv` files to whether their cells are quoted; without one, each file's first rows decide."""
BUILDERS = {".txt": "text", ".tsv": "csv", ".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""Maps suffixes to the builders of `datasets`."""
PACKED = (".gz", ".bz2", ".xz", ".zst")
"""Suffixes of compressed files."""
EMPTY = ("corresponds to no data", "at least one example", "No columns to parse")
"""Parts of the errors of `datasets` and pandas about files without rows."""


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specs. An existing path with up to `MAX_COMMAS` commas is one spec."""
    specs, pieces = [], text.split(",")
    while pieces:
        joined = (",".join(pieces[:count]).strip() for count in range(min(len(pieces), MAX_COMMAS + 1), 1, -1))
        spec = next((path for path in joined if os.path.exists(os.path.expanduser(path))), pieces[0].strip())
        specs.append(spec)
        del pieces[: spec.count(",") + 1]
    return [spec for spec in specs if spec]


def source_files(
    spec: str,
    columns: Mapping[str, str] | Sequence[str] = (TEXT,),
    *,
    allowed: str = "a file, a glob, hf:NAME:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN",
) -> list[Path]:
    """The files of a source, sorted by path; raises `InputError`, with what is allowed, if there are none.

    A hub's data set becomes a file of these columns in the cache.
    """
    if hub.is_hub(spec):
        named = {name: hub.column_of(spec) if name == TEXT else source for name, source in column_map(columns).items()}
        return [hub.cached_file(spec, requested_names(named))]
    if spec.startswith(WHOLE):
        folder = os.path.expanduser(spec.removeprefix(WHOLE))
        return source_files(os.path.join(glob.escape(folder), "**", "*") if os.path.isdir(folder) else folder)
    if how := prefix(spec):
        files = source_files(spec.removeprefix(how))
        if other := next((path for path in files if suffix(path) != ".tsv"), None):
            raise InputError(f"{other} is not a .tsv file; leave out {how} before its name.")
        return files
    if spec.startswith("package:"):
        path = paths.in_package(spec)
        if not path.is_file():
            raise InputError(f"{spec} does not exist in that package.")
        return [path]
    if is_remote(spec):
        if files := buckets.fetched_files(spec, paths.fetched_folder()):
            return files
        raise InputError(f"no object matches {spec}; check the address, and quote the glob.")
    path = Path(os.path.expanduser(spec))
    if spec.startswith(IN_DATA):
        path = paths.needed_data_folder(spec, instead=", or use a file of your own") / spec.removeprefix(IN_DATA)
    if "\0" in spec:
        raise InputError(f"{spec!r} contains a NUL character, which file names cannot have.")
    if path.is_dir():
        raise InputError(
            f"{spec} is a folder; name a file, a glob such as {path / '*.txt.gz'}, or {WHOLE}{spec} for one text per file."
        )
    if path.exists():
        return [path]
    if files := sorted(file for file in map(Path, glob.glob(str(path), recursive=True)) if file.is_file()):
        return files
    if glob.has_magic(str(path)):
        raise InputError(f"no file matches {spec}; check the folder, and quote the glob.")
    raise InputError(f"{spec} does not exist; name {allowed}.")


def files_of(option: str, specs: Sequence[str]) -> list[Path]:
    """The files that the specs of an option name; its errors name the option."""
    with errors_of(option):
        if spec := next(filter(prefix, specs), ""):
            raise InputError(f"{spec}: {prefix(spec)} is for sources of text; name the file, or save it as .csv.")
        return [path for spec in specs for path in source_files(spec, allowed="a file or a glob")]


def file_of(option: str, spec: str) -> Path:
    """The one file that an option names."""
    files = files_of(option, [spec])
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{option}={spec} is {len(files)} files ({names:.100}); name one of them.")
    return files[0]


def local_files(specs: Sequence[str]) -> list[Path]:
    """All local files that the specs name; a hub's data set has none."""
    return [path for spec in specs if not hub.is_hub(spec) for path in source_files(spec)]


def prefix(spec: str) -> str:
    """The prefix of a spec of `.tsv` files that says how quotes are read; empty without one."""
    return next(filter(spec.startswith, QUOTED), "")


def known_suffix(path: Path) -> str:
    """The format's suffix in the file's name, without a compression's; empty for a format that is not text."""
    name = path.name.lower()
    name = next((name.removesuffix(packed) for packed in PACKED if name.endswith(packed)), name)
    return next((known for known in (*BUILDERS, *parts.readers) if name.endswith(known)), "")


def suffix(path: Path) -> str:
    """As `known_suffix`; raises `InputError` for a format that is not text."""
    if ending := known_suffix(path):
        return ending
    raise InputError(
        f"{path} has an unknown format; use {', '.join((*BUILDERS, *parts.readers))}, or files: before it."
    )


def is_plain(spec: str) -> bool:
    """Whether a source's files have no column besides the text."""
    if spec.startswith(WHOLE) or hub.is_hub(spec):
        return spec.startswith(WHOLE)
    return all(suffix(path) == ".txt" for path in source_files(spec))


def refuse_unread(column: str, specs: Sequence[str], option: str) -> None:
    """Raises `InputError` for a column that no source reads: `.txt` files have no columns, and a hub's spec names its own."""
    if column != TEXT and all(suffix(path) == ".txt" for path in local_files(specs)):
        raise InputError(f"{option}={column} has no effect on {', '.join(specs)}, which is not a table; leave it out.")


def check_weights(weights: Sequence[float], *, sources: int) -> None:
    """Raises `InputError` unless weights are empty or one positive number per source."""
    if weights and (len(weights) != sources or not all(0 < weight < float("inf") for weight in weights)):
        got = f"weights {list(weights)} for {sources} source{'s' * (sources != 1)}"
        raise InputError(f"{got}; set --config.data.weights to one positive number per source, or leave it empty.")


def content_digest(specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,)) -> str:
    """SHA-256 of the specs' current content. File names do not matter. The source code of a user's own reader does, because a
    changed reader gives other rows for the same bytes."""
    facts = []
    for spec in specs:
        kind = WHOLE if spec.startswith(WHOLE) else prefix(spec)
        for path in source_files(spec, columns):
            form = "" if kind == WHOLE else known_suffix(path)
            facts.append([kind, form, parts.reader_sources.get(form, ""), file_digest_of(path)])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def file_digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes; read again only if the file has changed."""
    return _digest_of_state(path, file_state(path))


@lru_cache(maxsize=1 << 16)
def _digest_of_state(path: Path, state: tuple[int, ...] | None) -> str:
    with errors_of_reading(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextlib.contextmanager
def errors_of_reading(path: object) -> Iterator[None]:
    """Turns any error inside into an `InputError` of one line that names the file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        if any(part in reason for part in EMPTY):
            raise InputError(f"{path} is empty: it has no rows of text.") from None
        raise InputError(f"cannot read {path}: {reason:.300}.") from None
