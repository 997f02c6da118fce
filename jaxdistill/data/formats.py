"""How is a file of text read? One reader for each format; every complaint names the file and the line."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from jaxdistill.core import InputError

SUFFIXES = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
LONGEST_FIELD = 1 << 30
"""Characters of a CSV cell; Python's own limit of 131,072 would refuse a long document."""
PARQUET_ROWS = 4096
"""Rows decoded at a time."""


def rows(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Rows of one file, in order; `columns` maps our names to the file's.

    Raises:
      InputError: unknown format, no row at all, bytes that are not UTF-8, a row without the column or with more fields than
        the header, a broken file.
    """
    read = {".txt": _txt, ".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}[suffix(path)]
    count = 0
    try:
        with _opened(path) as file:
            for row in read(path, file, columns):
                count += 1
                yield row
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole gzip file ({error}); fetch it again.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not count:
        raise InputError(f"{path} is empty: it has no row of text.")


def suffix(path: Path) -> str:
    """The format by the file's name, `.gz` put aside."""
    name = path.name.lower().removesuffix(".gz")
    for known in SUFFIXES:
        if name.endswith(known):
            return known
    raise InputError(f"{path} has no known format; use {', '.join(SUFFIXES)}, plain or .gz.")


def chosen_columns(available: Sequence[str], columns: Mapping[str, str], place: str) -> list[str]:
    """The columns of a table that serve as ours: of `sentence1|premise` the first that it has; an only column as `text`."""
    chosen = []
    for name, source in columns.items():
        found = next((one for one in (source, *source.split("|")) if one in available), None)
        if found is None and name == "text" and len(available) == 1:
            found = available[0]
        if found is None:
            raise InputError(
                f"{place} has no column {source!r}, it has {', '.join(map(repr, available)) or 'none'}; "
                f"name the one to use (data.columns.{name} in training, an option of the other programs)."
            )
        chosen.append(found)
    return chosen


def checked_text(value: object, place: str, column: str) -> str:
    """A cell as text; a missing value is an empty sentence."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(f"{place}: column {column!r} holds {type(value).__name__} {value!r:.40}, not text.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{place}: column {column!r} holds half a surrogate pair, which is no Unicode text.") from None
    return value


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb")


def _lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Lines with their line ends; a byte order mark is dropped."""
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}:{number} is not UTF-8 (byte {line[error.start]:#04x} at {error.start}); "
                f"convert the file, for instance with iconv -f latin1 -t utf-8."
            ) from None


def _txt(path: Path, file: IO[bytes], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    others = [name for name in columns if name != "text"]
    if others:
        raise InputError(
            f"{path} has no column {others[0]!r}: a .txt file has only 'text', a sentence a line; use .tsv instead."
        )
    for line in _lines(path, file):
        yield (line.rstrip("\r\n"),)


def _tsv(path: Path, file: IO[bytes], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Tab separated, a header line, no quoting."""
    table = enumerate((line.rstrip("\r\n").split("\t") for line in _lines(path, file)), start=1)
    yield from _cells(path, table, columns)


def _csv(path: Path, file: IO[bytes], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Comma separated, a header line, standard quoting."""
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(_lines(path, file), strict=True)
    try:
        yield from _cells(path, ((reader.line_num, cells) for cells in reader), columns)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num} is no CSV: {error}; check the quotes, or use .tsv.") from None


def _cells(path: Path, table: Iterator[tuple[int, list[str]]], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The wanted cells of each `(line, cells)` after the header; of a blank line, empty ones."""
    _, header = next(table, (0, None))
    if header is None:
        return
    names = chosen_columns(header, columns, f"{path}:1 (header)")
    places = [header.index(name) for name in names]
    for line, cells in table:
        missing = [name for name, place in zip(names, places, strict=True) if place >= len(cells)]
        if missing and cells not in ([], [""]):
            raise InputError(
                f"{path}:{line} has {len(cells)} fields and so no column {missing[0]!r}; correct or remove the row."
            )
        if len(cells) > len(header):
            raise InputError(
                f"{path}:{line} has {len(cells)} fields, the header {len(header)}: "
                "which of them is which column is not known; correct or remove the row."
            )
        yield tuple(cells[place] if place < len(cells) else "" for place in places)


def _jsonl(path: Path, file: IO[bytes], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """A JSON object a line; blank lines are passed over."""
    for number, line in enumerate(_lines(path, file), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"{place} is no JSON: {error}; .jsonl holds an object a line.") from None
        if not isinstance(row, dict):
            raise InputError(f'{place} is {type(row).__name__}, not an object such as {{"text": "..."}}.')
        yield tuple(checked_text(row[name], place, name) for name in chosen_columns(list(row), columns, place))


def _parquet(path: Path, file: IO[bytes], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    import pyarrow
    from pyarrow import parquet

    whole = io.BytesIO(file.read()) if path.name.lower().endswith(".gz") else file
    try:
        table = parquet.ParquetFile(whole)
        names = chosen_columns(table.schema_arrow.names, columns, str(path))
        number = 0
        for batch in table.iter_batches(PARQUET_ROWS, columns=list(dict.fromkeys(names))):
            cells = batch.to_pydict()
            for values in zip(*(cells[name] for name in names), strict=True):
                number += 1
                place = f"{path} row {number}"
                yield tuple(checked_text(value, place, name) for value, name in zip(values, names, strict=True))
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no whole Parquet file: {str(error).splitlines()[0]}") from None
