"""Reads text files, with one reader per format; errors name the file and the line."""

import csv
import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.core import InputError
from jaxdistill.data.structs import cells_of, field_names, with_fields
from jaxdistill.files import parts, reading

SUFFIXES = (".txt", ".tsv", ".csv", ".jsonl", ".parquet")
Cell = Callable[..., str]
"""Converts a cell to text: `checked_text` or `number_or_text`."""
Lines = Iterator[tuple[int, str]]
"""Line numbers and lines from `reading.lines`."""
NAME = re.compile(r"[\w.:/-]{1,64}")
"""What passes for the header of a single column that the caller did not name: one word, not a sentence."""
PARQUET_ROWS = 4096
"""Maximum rows decoded at a time."""
PARQUET_BYTES = 64 << 20
"""Maximum text decoded at a time, estimated from the file's metadata."""
UNPACKED_BYTES = 1 << 30
"""Maximum decompressed size of a compressed `.parquet`, which is read into memory."""
SAMPLE_LINES = 200
"""Lines of a `.tsv`, from its first quote on, that show whether its cells are quoted."""
CELL = re.compile(r'(?:"((?:[^"]|"")*+)"|([^"\t\r\n]*+))(?:[\t\r\n]|\Z)')
"""A cell of a tab-separated table, quoted or not, and the character behind it."""

log = logging.getLogger(__name__)


class MissingColumn(InputError):
    """A file lacks a requested column."""


def checked_text(value: object, place: str, column: str, limit_bytes: int = reading.LINE_BYTES) -> str:
    """Returns a cell as text; a missing value becomes an empty sentence."""
    if value is None:
        return ""
    if not isinstance(value, str):
        field = next(iter(value), "") if isinstance(value, Mapping) else ""
        advice = f"; name a field of it, such as {column}.{field}" if field else ""
        raise InputError(f"{place}: column {column!r} holds {type(value).__name__} {value!r:.40}, not text{advice}.")
    if len(value) > limit_bytes:
        raise reading.too_long(place, limit_bytes)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{place}: column {column!r} holds an unpaired surrogate, which is not valid Unicode."
        ) from None
    return value


def number_or_text(value: object, place: str, column: str, limit_bytes: int = reading.LINE_BYTES) -> str:
    """Like `checked_text`, but converts a number to text; NaN, as pandas writes a missing one, becomes an empty text."""
    if isinstance(value, float) and value != value:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else checked_text(value, place, column, limit_bytes)


def rows(
    path: Path,
    columns: Mapping[str, str],
    line_bytes: int = reading.LINE_BYTES,
    *,
    cell: Cell = checked_text,
    quoted: bool | None = None,
) -> Iterator[tuple[str, ...]]:
    """Yields the rows of one file in order; `columns` maps our names to the file's.

    Args:
      line_bytes: longest line or cell.
      cell: converts a cell of a typed format (`.jsonl`, `.parquet`) to text.
      quoted: as in `tsv_rows`.

    Raises:
      InputError: unknown format, not a regular file, no rows, bytes that are not UTF-8, a line above the limit, a row
        without the column or with more fields than the header, a duplicate column, a damaged file.
    """
    readers = {".txt": _txt, ".tsv": partial(_tsv, quoted=quoted), ".csv": _csv, ".jsonl": partial(_jsonl, cell=cell)}
    kind, count = suffix(path), 0
    if quoted is not None and kind != ".tsv":
        raise InputError(f"{path} is not a .tsv file; leave out {'quoted:' if quoted else 'raw:'} before its name.")
    if kind in parts.readers:
        yield from _from_outside(path, kind, columns)
        return
    with reading.opened_text(path) as file:
        if kind == ".parquet":
            records = _parquet(path, file, columns, line_bytes, cell=cell)
        else:
            csv.field_size_limit(line_bytes)
            records = readers[kind](path, reading.lines(path, file, line_bytes), columns)
        for row in records:
            count += 1
            yield row
    if not count:
        raise InputError(f"{path} is empty: it has no rows of text.")


def reader_source(path: Path) -> str:
    """Digest of the source code of the user's own reader for a file; empty for formats of this module."""
    return parts.reader_sources.get(_known_suffix(path), "")


def whole_file(
    path: Path, columns: Mapping[str, str], id_name: str, line_bytes: int = reading.LINE_BYTES
) -> tuple[str, ...]:
    """The single row of a file that is one text: its content as `text`, its path in the column `id_name`.

    Line ends become `\\n`, as in Python's text mode, so that offsets match other programs that open the file as text.
    """
    cells = dict.fromkeys(columns, str(path))
    for name in (name for name, source in columns.items() if name != "text" and (id_name,) not in _choices(source)):
        raise MissingColumn(f"{path} has no column {name!r}: a whole file is one text; use a table, such as .jsonl.")
    lines, size = [], 0
    with reading.opened_text(path) as file:
        for _, line in reading.lines(path, file, line_bytes):
            lines.append(line.rstrip("\r\n") + "\n" * line.endswith(("\r", "\n")))
            size += len(line)
            if size > line_bytes:
                raise reading.too_long(str(path), line_bytes)
    cells["text"] = "".join(lines)
    return tuple(cells[name] for name in columns)


def suffix(path: Path) -> str:
    """The format's suffix in the file's name, without a compression's; raises `InputError` if unknown."""
    if known := _known_suffix(path):
        return known
    raise InputError(
        f"{path} has an unknown format; use {', '.join((*SUFFIXES, *parts.readers))}, plain, .gz, .bz2 or .xz."
    )


def _known_suffix(path: Path) -> str:
    name = reading.unpacked_name(path)
    return next((known for known in (*SUFFIXES, *parts.readers) if name.endswith(known)), "")


def _from_outside(path: Path, kind: str, columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields and checks the rows of a user's own reader; raises `MissingColumn` if it does not give all columns."""
    try:
        for number, row in enumerate(parts.readers[kind](path, dict(columns)), start=1):
            if len(row) != len(columns):
                told = f"{path}: row {number} of the reader for {kind} has {len(row)} texts, expected {len(columns)}"
                raise (MissingColumn if len(row) < len(columns) else InputError)(f"{told}: {', '.join(columns)}.")
            texts = (checked_text(cell, f"{path}: row {number}", name) for cell, name in zip(row, columns, strict=True))
            yield tuple(texts)
    except KeyError as error:
        raise MissingColumn(f"{path}: the reader for {kind} has no column {error}.") from None


class Found(NamedTuple):
    """The columns of a table from which ours are read."""

    names: list[str]
    counts: list[int]
    """How many of `names`, in order, each of our columns joins."""

    def row(self, cells: Iterable[str]) -> tuple[str, ...]:
        """The texts of our columns from the cells of `names`; joins cells with a space and leaves out empty ones."""
        rest = iter(cells)
        return tuple(
            next(rest) if count == 1 else " ".join(filter(None, map(str.strip, islice(rest, count))))
            for count in self.counts
        )


def chosen_columns(available: Sequence[str], columns: Mapping[str, str], place: str, *, advice: str = "") -> Found:
    """The table's columns for ours: of `sentence1|premise`, the first that exists; of `subject+body`, both; a single column
    serves as `text`.

    Args:
      advice: ends the error about a missing column; a template for our name. Empty: how options name it.
    """
    selected = Found([], [])
    for name, source in columns.items():
        chosen = next((choice for choice in _choices(source) if {*choice} <= {*available}), ())
        if not chosen and name == "text" and len(available) == 1:
            chosen = (available[0],)
        if not chosen:
            raise MissingColumn(
                f"{place} has no column {source!r}; it has {', '.join(map(repr, available)) or 'none'}. "
                + (advice.format(name) or _how_to_name(columns, name, place))
            )
        if twice := [column for column in chosen if list(available).count(column) > 1]:
            raise InputError(f"{place} has the column {twice[0]!r} twice; rename one of them.")
        selected.names.extend(chosen)
        selected.counts.append(len(chosen))
    return selected


def _how_to_name(columns: Mapping[str, str], name: str, place: str) -> str:
    """Says where the user names the column that a table lacks."""
    if place.startswith(("hf:", "tfds:")) and name == "text":
        return "End the spec with one of these names."
    pairs = [f'("{ours}", "{"COLUMN" if ours == name else theirs}")' for ours, theirs in columns.items()]
    given = f"({', '.join(pairs)}{',' * (len(pairs) == 1)})"
    return f"Name the column: data.columns={given} in a training, or another program's option that ends in column."


def _choices(source: str) -> list[tuple[str, ...]]:
    """The columns that may serve as `subject+body|text`, the preferred ones first; any string may be a column's whole name."""
    return [(source,), *(one for name in source.split("|") for one in ((name,), tuple(name.split("+"))))]


def requested_names(columns: Mapping[str, str]) -> set[str]:
    """All names that the requested columns may have in a file."""
    return {name for source in columns.values() for choice in _choices(source) for name in choice}


def _txt(path: Path, lines: Lines, columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    others = [name for name in columns if name != "text"]
    if others:
        raise MissingColumn(
            f"{path} has no column {others[0]!r}: a .txt file has only 'text', one sentence per line; use .tsv instead."
        )
    for _, line in lines:
        yield (line.rstrip("\r\n"),)


def _tsv(path: Path, lines: Lines, columns: Mapping[str, str], *, quoted: bool | None) -> Iterator[tuple[str, ...]]:
    yield from _cells(path, tsv_rows(path, lines, quoted=quoted), columns)


def _csv(path: Path, lines: Lines, columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    yield from _cells(path, quoted_rows(path, lines), columns)


def tsv_rows(path: Path, lines: Lines, *, quoted: bool | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of a tab-separated table.

    Args:
      quoted: whether cells are quoted as by `csv.excel_tab`; False: a quote is an ordinary character; None: as the first lines
        with a quote are. Lines before them read the same either way.
    """
    sample: list[tuple[int, str]] = []
    if quoted is None:
        for number, line in lines:
            if '"' in line:
                sample = [(number, line), *islice(lines, SAMPLE_LINES)]
                quoted = _is_quoted("".join(line for _, line in sample), with_header=number == 1)
                if quoted:
                    _say_quoted(path)
                break
            yield number, line.rstrip("\r\n").split("\t")
    if quoted:
        yield from quoted_rows(path, chain(sample, lines), delimiter="\t", before=sample[0][0] - 1 if sample else 0)
    else:
        yield from ((number, line.rstrip("\r\n").split("\t")) for number, line in chain(sample, lines))


def _is_quoted(sample: str, *, with_header: bool) -> bool:
    """Whether all quotes in these lines surround cells or are doubled inside, and a program had a reason to quote those cells:
    pandas quotes cells with a quote, a tab or a line end, Excel also those with a comma, others all cells and the header."""
    cells, place = [], 0
    while place < len(sample) and (cell := CELL.match(sample, place)):
        cells.append(cell)
        place = cell.end()
    if '"' in sample[place + 1 :].replace('""', ""):  # the last cell may end behind the sample, but not within it
        return False
    quoted = [cell[1] for cell in cells if cell[1] is not None]
    of_commas = all("," in cell for cell in quoted) and not any("," in (cell[2] or "") for cell in cells)
    return bool(quoted) and (with_header or of_commas or any(re.search(r'["\t\r\n]', cell) for cell in quoted))


@cache
def _say_quoted(path: Path) -> None:
    log.warning("%s: its cells are quoted; to keep quotes as they are, write raw:%s", path, path)


def quoted_rows(path: Path, lines: Lines, *, delimiter: str = ",", before: int = 0) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of a table with standard quoting; `before` is the number of lines already read."""
    reader, line = csv.reader((line for _, line in lines), strict=True, delimiter=delimiter), before
    try:
        for cells in reader:
            line = before + reader.line_num
            yield line, cells
    except csv.Error as error:
        other = "use .tsv" if delimiter == "," else f"write raw:{path} if they are text"
        raise InputError(f"{path}:{line + 1} is not valid CSV: {error}; check the quotes, or {other}.") from None


def _cells(path: Path, table: Iterator[tuple[int, list[str]]], columns: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yields the requested cells of each `(line, cells)` after the header; a blank line gives empty cells."""
    _, header = next(table, (0, None))
    if header is None:
        return
    selected = chosen_columns(header, columns, f"{path}:1 (header)")
    names = selected.names
    if len(header) == 1 and names[0] not in requested_names(columns) and not NAME.fullmatch(header[0]):
        raise InputError(
            f"{path}:1 is the header of the table, but {header[0]!r:.60} does not look like the name of a column; check the "
            "separator, add a first line such as text, or use .txt for one sentence per line."
        )
    places = [header.index(name) for name in names]
    for line, cells in table:
        missing = [name for name, place in zip(names, places, strict=True) if place >= len(cells)]
        if missing and cells not in ([], [""]):
            raise InputError(
                f"{path}:{line} has {len(cells)} fields, too few for column {missing[0]!r}; correct or remove the row."
            )
        if len(cells) > len(header):
            raise InputError(
                f"{path}:{line} has {len(cells)} fields, but the header has {len(header)}; correct or remove the row."
            )
        yield selected.row(cells[place] if place < len(cells) else "" for place in places)


def _jsonl(path: Path, lines: Lines, columns: Mapping[str, str], *, cell: Cell) -> Iterator[tuple[str, ...]]:
    """One JSON object per line; skips blank lines. If the first row's only column serves as `text`, all rows must have it."""
    allowed: set[str] = set()
    for number, line in lines:
        if not line.strip():
            continue
        place = f"{path}:{number}"
        row = reading.parsed_json(line.strip(), place)
        if not isinstance(row, dict):
            raise InputError(f'{place} is {type(row).__name__}, not an object such as {{"text": "..."}}.')
        row = with_fields(row)
        selected = chosen_columns(list(row), columns, place)
        allowed = allowed or requested_names(columns).union(selected.names)
        if not allowed.issuperset(selected.names):
            raise MissingColumn(
                f"{place} has no column {columns['text']!r}, unlike the first row; it has {selected.names[0]!r}."
            )
        yield selected.row(cell(row[name], place, name) for name in selected.names)


def _parquet(
    path: Path, file: reading.Readable, columns: Mapping[str, str], line_bytes: int, cell: Cell
) -> Iterator[tuple[str, ...]]:
    from pyarrow import parquet

    whole, number = _unpacked(path, file) if path.suffix.lower() in reading.PACKED else file, 0
    with reading.foreign_errors(f"{path} is not a complete Parquet file"):
        schema = parquet.read_schema(whole)
        fields = [name for name in field_names(schema) if name not in schema.names]
        selected = chosen_columns([*schema.names, *fields], columns, str(path))
        names = list(dict.fromkeys(selected.names))
        # Dictionary-encoded columns stay encoded: decoded, 4,096 rows of one long text would take 4,096 times its memory.
        plain = [name for name in names if name in schema.names and not schema.field(name).type.num_fields]
        table = parquet.ParquetFile(whole, read_dictionary=plain)
        for batch in table.iter_batches(_rows_at_a_time(table), columns=names):
            own = {name: _column(batch.column(name)) for name in batch.schema.names}
            for values in zip(*(cells_of(name, own, own.__getitem__) for name in selected.names), strict=True):
                number += 1
                place = f"{path} row {number}"
                cells_of_row = zip(values, selected.names, strict=True)
                yield selected.row(cell(value, place, name, line_bytes) for value, name in cells_of_row)


def _unpacked(path: Path, file: reading.Readable) -> io.BytesIO:
    content = file.read(UNPACKED_BYTES + 1)
    if len(content) > UNPACKED_BYTES:
        raise InputError(
            f"{path} has more than {UNPACKED_BYTES:,} bytes decompressed; decompress it, Parquet is compressed inside."
        )
    return io.BytesIO(content)


def _rows_at_a_time(table: Any) -> int:
    groups = [table.metadata.row_group(place) for place in range(table.metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=0)
    return max(1, min(PARQUET_ROWS, int(PARQUET_BYTES / max(row_bytes, 1))))


def _column(column: Any) -> list[Any]:
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        return column.to_pylist()
    distinct = column.dictionary.to_pylist()
    return [None if place is None else distinct[place] for place in column.indices.to_pylist()]
