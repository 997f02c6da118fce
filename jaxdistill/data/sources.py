"""Streams rows of the files and data sets that the user names.

A spec is one of: a file or glob (`.txt`, `.tsv`, `.csv`, `.jsonl`, `.parquet`; plain, `.gz`, `.bz2` or `.xz`), also in a
bucket (`s3://...`, `gs://...`); `package:NAME/PATH` (a file inside an installed package); `data:PATH` (a file or glob in the
folder JAXDISTILL_DATA); `hf:NAME[:CONFIG]:SPLIT:COLUMN`; `tfds:NAME:SPLIT:COLUMN`. `files:` before a file, glob or folder makes each
file one text, whatever its extension. `raw:` or `quoted:` before a `.tsv` file or glob says how its quotes are read.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxdistill import paths
from jaxdistill.core import InputError, errors_of
from jaxdistill.data import formats, hub
from jaxdistill.files import buckets, is_remote, matching, reading
from jaxdistill.paths import in_package

Row = tuple[str, ...]
"""The texts of one row, in the order of the requested columns."""

TEXT = "text"
"""The column of the sentence itself, which every source has."""
MOST_COMMAS = 8
IN_DATA = "data:"
WHOLE = "files:"
"""Prefix of a spec whose files are one text each; a folder means all its files at any depth that are not hidden."""
QUOTED = {"raw:": False, "quoted:": True}
"""Maps prefixes of a spec of `.tsv` files to whether their cells are quoted; without one, each file's first rows decide."""
ID_NAMES = ("_id", "id")
"""Columns that may hold a text's id: BEIR's, then the usual one. A whole file's id is its path."""


def column_map(columns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Maps our column names to the file's; in a list of names, both are equal."""
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    return {name: source or name for name, source in named.items()}


def read(
    specs: Sequence[str],
    columns: Mapping[str, str] | Sequence[str] = (TEXT,),
    line_bytes: int = reading.LINE_BYTES,
    *,
    cell: formats.Cell = formats.checked_text,
) -> Iterator[Row]:
    """Yields the rows of all specs in a fixed order, empty sentences included.

    Args:
      specs: see the module's docstring; the files of a glob are sorted by name.
      columns: names, or a mapping from our names to the file's columns, such as
        `{"text": "sentence", "translation": "de"}`. A table with one column needs no mapping for `text`.
        `"sentence1|premise"` reads the first of these columns that a file has, `"subject+body"` both, joined with a space.
      line_bytes: maximum bytes of a line or cell.
      cell: `formats.number_or_text` for columns that hold numbers.

    Raises:
      InputError: a spec, a file or a row is unusable; the error names file and line.
    """
    wanted = column_map(columns)
    for spec in specs:
        if hub.is_hub(spec):
            yield from hub.rows(spec, wanted, line_bytes, cell=cell)
            continue
        for path in source_files(spec):
            if spec.startswith(WHOLE):
                yield formats.whole_file(path, wanted, ID_NAMES[0], line_bytes)
            else:
                yield from formats.rows(path, wanted, line_bytes, cell=cell, quoted=QUOTED.get(_prefix(spec)))


def is_plain(spec: str) -> bool:
    """Whether a source's files have no column besides the text."""
    if spec.startswith(WHOLE) or hub.is_hub(spec):
        return spec.startswith(WHOLE)
    return all(formats.suffix(path) == ".txt" for path in source_files(spec))


def has_columns(spec: str, columns: Mapping[str, str], *, cell: formats.Cell = formats.checked_text) -> bool:
    """Whether all files of a source have these columns."""
    if spec.startswith(WHOLE) or hub.is_hub(spec):
        each = [read([spec], columns, cell=cell)]
    else:
        quoted = QUOTED.get(_prefix(spec))
        each = [formats.rows(path, columns, cell=cell, quoted=quoted) for path in source_files(spec)]
    try:
        for of_file in each:
            next(of_file, None)
    except formats.MissingColumn:
        return False
    return True


def source_files(
    spec: str, allowed: str = "a file, a glob, hf:NAME:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN"
) -> list[Path]:
    """The files that a spec names, sorted by path; raises `InputError`, with what is allowed, if there are none."""
    if spec.startswith(WHOLE):
        return _whole_files(spec.removeprefix(WHOLE))
    spec = spec.removeprefix(_prefix(spec))
    if spec.startswith("package:"):
        path = in_package(spec)
        if not path.is_file():
            raise InputError(f"{spec} does not exist in that package.")
        return [path]
    if is_remote(spec):
        if files := buckets.fetched_files(spec, paths.fetched_folder()):
            return files
        raise InputError(f"no object matches {spec}; check the address, and quote the glob.")
    path = Path(os.path.expanduser(spec))
    if spec.startswith(IN_DATA):
        folder = paths.needed_data_folder(spec, instead=", or use a file of your own")
        path = folder / spec.removeprefix(IN_DATA)
    if "\0" in spec:
        raise InputError(f"{spec!r} contains a NUL character, which file names cannot have.")
    if path.is_dir():
        raise InputError(
            f"{spec} is a folder; name a file, a glob such as {path / '*.txt.gz'}, or {WHOLE}{spec} for one text per file."
        )
    if path.exists():
        return [path]
    if files := matching(Path(path.anchor), path.relative_to(path.anchor)):
        return files
    if glob.has_magic(str(path)):
        raise InputError(f"no file matches {spec}; check the folder, and quote the glob.")
    raise InputError(f"{spec} does not exist; name {allowed}.")


def files_of(option: str, specs: Sequence[str]) -> list[Path]:
    """The files that the specs of an option name; its errors name the option."""
    with errors_of(option):
        if spec := next(filter(_prefix, specs), ""):
            raise InputError(f"{spec}: {_prefix(spec)} is for sources of text; name the file, or save it as .csv.")
        return [path for spec in specs for path in source_files(spec, "a file or a glob")]


def file_of(option: str, spec: str) -> Path:
    """The one file that an option names."""
    files = files_of(option, [spec])
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{option}={spec} is {len(files)} files ({names:.100}); name one of them.")
    return files[0]


def _prefix(spec: str) -> str:
    return next(filter(spec.startswith, QUOTED), "")


def _whole_files(spec: str) -> list[Path]:
    folder = os.path.expanduser(spec)
    return source_files(os.path.join(glob.escape(folder), "**", "*") if os.path.isdir(folder) else spec)


def local_files(specs: Sequence[str]) -> list[Path]:
    """All local files that the specs name; a hub's data set has none."""
    return [path for spec in specs if not hub.is_hub(spec) for path in source_files(spec)]


def refuse_unread(column: str, specs: Sequence[str], option: str) -> None:
    """Raises `InputError` for a column that no source reads: `.txt` files have no columns, and a hub's spec names its own."""
    if column != TEXT and all(formats.suffix(path) == ".txt" for path in local_files(specs)):
        raise InputError(f"{option}={column} has no effect on {', '.join(specs)}, which is not a table; leave it out.")


def check_weights(weights: Sequence[float], *, sources: int) -> None:
    """Raises `InputError` unless weights are empty or one positive number per source."""
    if weights and (len(weights) != sources or not all(0 < weight < float("inf") for weight in weights)):
        got = f"weights {list(weights)} for {sources} source{'s' * (sources != 1)}"
        raise InputError(f"{got}; set --config.data.weights to one positive number per source, or leave it empty.")


def content_digest(specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,)) -> str:
    """SHA-256 of the specs' current content: bytes of files, texts of hub data sets. File names do not matter. The source code
    of a user's own reader does, because a changed reader gives other rows for the same bytes."""
    digest = hashlib.sha256()
    for spec in specs:
        digest.update(WHOLE.encode() if spec.startswith(WHOLE) else _prefix(spec).encode() or b"source")
        if hub.is_hub(spec):
            for row in read([spec], columns):
                digest.update("\0".join(row).encode() + b"\n")
            continue
        for path in source_files(spec):
            digest.update(formats.reader_source(path).encode())
            with reading.open_regular(path) as file:
                kind = "table" if ".tsv" in path.suffixes else "file"  # not "file", of which no cell was quoted
                digest.update(f"{kind} {''.join(path.suffixes[-2:])} {os.fstat(file.fileno()).st_size}".encode())
                try:
                    while block := file.read(reading.BLOCK_BYTES):
                        digest.update(block)
                except OSError as error:
                    raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


class Watched:
    """Text that must not change while a program processes it, because results are cached under its digest."""

    def __init__(self, specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,)):
        self._specs, self._columns = tuple(specs), columns
        self._states = {path: _state(path) for path in local_files(specs)}
        self.digest = content_digest(specs, columns)

    def rows(self) -> Iterator[Row]:
        """Yields the rows, as `read` does."""
        return read(self._specs, self._columns)

    def check(self) -> None:
        """Raises `InputError` if a file was modified. Reads no content, so it is cheap enough for every chunk."""
        for path, state in self._states.items():
            if _state(path) != state:
                raise InputError(
                    f"{path} changed while it was read, so the results are discarded; run the same command again "
                    "once it no longer changes."
                )

    def check_content(self) -> None:
        """Like `check`, but compares the content; files rewritten with the same content pass."""
        if content_digest(self._specs, self._columns) != self.digest:
            raise InputError(
                f"{', '.join(self._specs)} changed while it was read, so the results are discarded; "
                "run the same command again once it no longer changes."
            )


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specs. An existing path with up to `MOST_COMMAS` commas is one spec."""
    specs, parts = [], text.split(",")
    while parts:
        joined = (",".join(parts[:count]).strip() for count in range(min(len(parts), MOST_COMMAS + 1), 1, -1))
        spec = next((path for path in joined if os.path.exists(os.path.expanduser(path))), parts[0].strip())
        specs.append(spec)
        del parts[: spec.count(",") + 1]
    return [spec for spec in specs if spec]
