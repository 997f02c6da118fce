"""Reads rows of the files and data sets that the user names, streamed, never all in memory.

A spec is a file or glob (`.txt`, `.tsv`, `.csv`, `.jsonl`, `.parquet`, plain or `.gz`), `package:NAME/PATH` (a file
inside an installed package), `data:PATH` (a file or glob in the folder that JAXDISTILL_DATA names),
`hf:NAME[:CONFIG]:SPLIT:COLUMN` or `tfds:NAME:SPLIT:COLUMN`.
"""

import glob
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxdistill import paths, reading
from jaxdistill.core import InputError
from jaxdistill.data import formats, hub
from jaxdistill.files import local
from jaxdistill.paths import in_package

Row = tuple[str, ...]
"""The texts of one row, in the order of the columns asked for."""

TEXT = "text"
"""The column that every source has: the sentence itself."""
IN_DATA = "data:"


def column_map(columns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Names of our columns to names of the file's columns; a plain list of names means that they are equal."""
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    return {name: source or name for name, source in named.items()}


def read(
    specs: Sequence[str],
    columns: Mapping[str, str] | Sequence[str] = (TEXT,),
    line_bytes: int = reading.LINE_BYTES,
) -> Iterator[Row]:
    """Rows of all specs, one behind the other, in a fixed order; empty sentences are rows too.

    Args:
      specs: see the module's docstring; a glob's files come in the order of their names.
      columns: what a row holds: names, or a mapping from our names to the file's column names,
        such as `{"text": "sentence", "translation": "de"}`. A table with one column needs no mapping for `text`. Of
        `"sentence1|premise"` each file's first that it has is read.
      line_bytes: longest line or cell of a file.

    Raises:
      InputError: a spec, a file or a row cannot be used; names the file and line.
    """
    for spec in specs:
        yield from rows(spec, columns, line_bytes)


def rows(
    spec: str, columns: Mapping[str, str] | Sequence[str] = (TEXT,), line_bytes: int = reading.LINE_BYTES
) -> Iterator[Row]:
    """Rows of one spec."""
    wanted = column_map(columns)
    if hub.is_hub(spec):
        yield from hub.rows(spec, wanted)
        return
    for path in files(spec):
        yield from formats.rows(path, wanted, line_bytes)


def files(spec: str) -> list[Path]:
    """The files that a spec names, sorted; at least one."""
    if spec.startswith("package:"):
        return [_packaged(spec)]
    path = _in_data_folder(spec) if spec.startswith(IN_DATA) else local(spec, "text")
    if "\0" in spec:
        raise InputError(f"{spec!r} has a NUL character, which no file name has.")
    if path.is_dir():
        raise InputError(f"{spec} is a folder; name a file, or a glob such as {path / '*.txt.gz'}.")
    if path.exists():
        return [path]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
    if found:
        return found
    if glob.has_magic(str(path)):
        raise InputError(f"no file matches {spec}; quote the glob and check the folder.")
    raise InputError(f"{spec} does not exist; name a file, a glob, hf:NAME:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN.")


def local_files(specs: Sequence[str]) -> list[Path]:
    """All files that the specs name; hub sets have none."""
    return [path for spec in specs if not hub.is_hub(spec) for path in files(spec)]


def check_weights(weights: Sequence[float], *, sources: int) -> None:
    """Raises `InputError` unless there is no weight, or one positive number for each source."""
    if weights and (len(weights) != sources or not all(0 < weight < float("inf") for weight in weights)):
        got = f"weights {list(weights)} for {sources} sources"
        raise InputError(f"{got}; give one positive number for each, or none.")


def content_digest(specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,)) -> str:
    """sha256 of what the specs hold now: bytes of files, texts of hub sets. The names do not enter it."""
    digest = hashlib.sha256()
    for spec in specs:
        digest.update(b"source")
        if hub.is_hub(spec):
            for row in rows(spec, columns):
                digest.update("\0".join(row).encode() + b"\n")
            continue
        for path in files(spec):
            with reading.open_regular(path) as file:
                digest.update(f"file {''.join(path.suffixes[-2:])} {os.fstat(file.fileno()).st_size}".encode())
                try:
                    while block := file.read(reading.BLOCK_BYTES):
                        digest.update(block)
                except OSError as error:
                    raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    return digest.hexdigest()


class Watched:
    """Text that must stay what it is while a program makes something of it, under its digest."""

    def __init__(self, specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,)):
        self._specs, self._columns = tuple(specs), columns
        self._states = {path: _state(path) for path in local_files(specs)}
        self.digest = content_digest(specs, columns)

    def rows(self) -> Iterator[Row]:
        """As `read`."""
        return read(self._specs, self._columns)

    def check(self) -> None:
        """Raises `InputError` if a file was written to since; costs no reading, so that every chunk can be checked."""
        for path, state in self._states.items():
            if _state(path) != state:
                raise InputError(
                    f"{path} changed while it was read, so nothing was made of it; give the same command again once it "
                    "stays as it is."
                )

    def check_content(self) -> None:
        """As `check`, by reading the content again; files that were written anew with the same content pass."""
        if content_digest(self._specs, self._columns) != self.digest:
            raise InputError(
                f"{', '.join(self._specs)} changed while it was read, so nothing was made of it; give the same command "
                "again once it stays as it is."
            )


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _in_data_folder(spec: str) -> Path:
    return paths.needed_data_folder(spec, instead=", or give a file of your own") / spec.removeprefix(IN_DATA)


def _packaged(spec: str) -> Path:
    path = in_package(spec)
    if not path.is_file():
        raise InputError(f"{spec} is no file of that package.")
    return path


def split_specs(text: str) -> list[str]:
    """Sources of a comma-separated list."""
    return [spec.strip() for spec in text.split(",") if spec.strip()]
