"""Reads text: opens the files that sources name as tables of `datasets`."""

import csv
import glob
import hashlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from jaxdistill import paths
from jaxdistill.core import InputError
from jaxdistill.data import hub
from jaxdistill.data.cached import cached_table, quiet_datasets
from jaxdistill.data.columns import TEXT, MissingColumn, chosen_columns, column_map, requested_names, top_columns
from jaxdistill.data.roles import Roles
from jaxdistill.data.sources import (
    BUILDERS,
    QUOTED,
    WHOLE,
    content_digest,
    errors_of_reading,
    file_digest_of,
    file_state,
    local_files,
    prefix,
    source_files,
    suffix,
)
from jaxdistill.files import parts

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

Row = tuple[str, ...]
"""The texts of one row, in the order of the requested columns."""

ID = "_id"
"""Column of a whole file's path, as BEIR names ids."""
BATCH_ROWS = 1024
"""Rows decoded at a time."""
NAME = re.compile(r"[\w.:/-]{1,64}")
"""What passes for the header of a single column that the caller did not name: one word, not a sentence."""
SAMPLE_LINES = 200
"""Lines of a `.tsv`, from its first quote on, that show whether its cells are quoted."""
CELL = re.compile(r'(?:"((?:[^"]|"")*+)"|([^"\t\r\n]*+))(?:[\t\r\n]|\Z)')
"""A cell of a tab-separated table, quoted or not, and the character behind it."""
BOM = "\ufeff"
"""Byte order mark, which `datasets` leaves at the start of compressed files."""

log = logging.getLogger(__name__)


class Portion(NamedTuple):
    """Some columns of a source."""

    source: int
    """Index of its spec."""
    columns: Mapping[str, str]
    """Maps our column names to the file's."""
    roles: Sequence[str]
    """The role of each column; empty for none."""


class Table(NamedTuple):
    """The rows of a file, or of several files without columns."""

    dataset: "Dataset"
    names: Sequence[Sequence[str]]
    """For each of our columns, the file's columns that are joined with a space; empty cells are left out."""

    place: str
    """What to name in errors."""

    def cells(self, batch: "pyarrow.Table") -> list[list[str]]:
        """The texts of each of our columns; a missing value is an empty text."""
        with errors_of_reading(self.place):  # Arrow does not check that texts are UTF-8
            values = batch.to_pydict()
        columns = [[[_text(value) for value in values[name]] for name in names] for names in self.names]
        return [
            read[0]
            if len(read) == 1
            else [" ".join(filter(None, map(str.strip, row))) for row in zip(*read, strict=True)]
            for read in columns
        ]

    def rows(self) -> Iterator[Row]:
        """Yields the rows in order."""
        for batch in self.dataset.with_format("arrow").iter(BATCH_ROWS):
            yield from zip(*self.cells(cast(Any, batch)), strict=True)


def read(
    specs: Sequence[str],
    columns: Mapping[str, str] | Sequence[str] = (TEXT,),
    *,
    numbers: bool = False,
    cache: str = "",
) -> Iterator[Row]:
    """Yields the rows of all specs in a fixed order, empty sentences included.

    Args:
      specs: see the module's docstring; the files of a glob are sorted by name.
      columns: names, or a mapping from our names to the file's columns, such as
        `{"text": "sentence", "translation": "de"}`. A table with one column needs no mapping for `text`.
        `"sentence1|premise"` reads the first of these columns that a file has, `"subject+body"` both, joined with a space.
      numbers: also read columns of numbers, as text.
      cache: as `data.cache_folder`.

    Raises:
      InputError: a spec or a file is unusable; names the file.
    """
    for spec in specs:
        for table in tables(spec, columns, numbers=numbers, cache=cache):
            yield from table.rows()


def tables(
    spec: str, columns: Mapping[str, str] | Sequence[str], *, numbers: bool = False, cache: str = ""
) -> Iterator[Table]:
    """Yields the tables of a source, in the order of its rows; see `read`."""
    named, files = column_map(columns), source_files(spec, columns)
    if hub.is_hub(spec):
        named = {name: hub.column_of(spec) if name == TEXT else source for name, source in named.items()}
    if spec.startswith(WHOLE) or all(suffix(path) == ".txt" for path in files):
        yield _plain(spec, files, named, cache)
        return
    for path in files:
        if suffix(path) in parts.readers:
            path = _read_by_plugin(path, named)
            yield _table(path, {name: name for name in named}, spec, numbers=False, cache=cache)
        else:
            yield _table(path, named, spec, numbers=numbers, cache=cache)


def _plain(spec: str, files: Sequence[Path], columns: Mapping[str, str], cache: str) -> Table:
    """The table of files without columns: each line or each file is a row."""
    whole = spec.startswith(WHOLE)
    options = {"sample_by": "document" if whole else "line"}
    try:
        dataset = _load(files, "text", cache, options, columns=[TEXT])
    except InputError:
        for path in files:  # to name the one that cannot be read
            _load([path], "text", cache, options, columns=[TEXT])
        raise
    if whole and len(columns) > 1:
        dataset = dataset.add_column(ID, list(map(str, files)))
    place = str(files[0]) if len(files) == 1 else spec
    return Table(dataset, chosen_columns(dataset.column_names, columns, place), place)


def _table(path: Path, columns: Mapping[str, str], spec: str, *, numbers: bool, cache: str) -> Table:
    """The table of a file with columns."""
    import datasets
    from pyarrow import parquet

    builder, options, header, names = BUILDERS[suffix(path)], {}, None, None
    place = spec if hub.is_hub(spec) else str(path)
    if builder == "csv":
        with errors_of_reading(path):
            is_quoted = suffix(path) == ".csv" or _is_quoted(path, QUOTED.get(prefix(spec)))
            header = _header(path, columns, quoted=is_quoted)
        names = [name if name and header.count(name) == 1 else f"column {index}" for index, name in enumerate(header)]
        options = {
            "sep": "," if suffix(path) == ".csv" else "\t",
            "quoting": csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        }
    elif builder == "parquet":
        with errors_of_reading(path):
            schema = parquet.read_schema(path)
            available = list(datasets.Features.from_arrow_schema(schema).flatten())
        needed = {name for some in chosen_columns(available, columns, place) for name in some}
        options = {"columns": top_columns(schema.names, needed)}
    dataset = _load([path], builder, cache, options, columns=names)
    if any(isinstance(feature, dict) for feature in dataset.features.values()):
        dataset = dataset.flatten()
    chosen = chosen_columns(header or dataset.column_names, columns, place)
    read = list(dict.fromkeys(name for some in chosen for name in some))
    for name in read:
        _check_type(dataset.features[name], f"{place}: column {name!r}", numbers=numbers)
    return Table(dataset.select_columns(read), chosen, place)


def _load(
    files: Sequence[Path], builder: str, cache: str, options: Mapping[str, Any], columns: Sequence[str] | None
) -> "Dataset":
    """The files as a table of `datasets`, whose copy of them is in our cache under the digest of their content.

    Args:
      columns: all columns, if they are known; their cells are text.
    """
    import datasets

    if columns:
        options = {**options, "features": datasets.Features({name: datasets.Value("string") for name in columns})}
    if builder in ("csv", "text"):
        options = {**options, "encoding": "utf-8-sig"}
    if builder == "csv":  # `NA` is text, a blank line is a row, and the first of too many cells is no index
        options = {**options, "keep_default_na": False, "skip_blank_lines": False, "index_col": False}
        options |= {"names": columns, "header": 0}
    digest = hashlib.sha256("".join(map(file_digest_of, files)).encode()).hexdigest()[:16]
    folder = paths.cache_folder(cache) / "arrow" / digest
    escaped = [glob.escape(os.path.abspath(path)) for path in files]
    with errors_of_reading(", ".join(map(str, files))):
        with quiet_datasets(), warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names")  # pandas would drop cells
            # Not `load_dataset`, which tells the hub of every file that it loads.
            return getattr(datasets.Dataset, f"from_{builder}")(escaped, cache_dir=str(folder), **options)


def _text(value: object) -> str:
    if value is None or value != value:
        return ""
    return value.removeprefix(BOM) if isinstance(value, str) else str(value)


def _check_type(feature: Any, place: str, *, numbers: bool) -> None:
    """Raises `InputError` for a column that is not text."""
    kind = getattr(feature, "dtype", "list")
    is_number = numbers and re.match(r"u?int|float", kind)
    if kind not in ("string", "large_string", "null") and not is_number:
        raise InputError(f"{place} holds {kind}, not text.")


def _read_by_plugin(path: Path, columns: Mapping[str, str]) -> Path:
    """The rows that a user's own reader yields, as a table in the cache."""
    import pyarrow

    kind = suffix(path)

    def batches() -> Iterator["pyarrow.Table"]:
        try:
            rows = iter(parts.readers[kind](path, dict(columns)))
            while batch := list(islice(rows, BATCH_ROWS)):
                if wrong := next((row for row in batch if len(row) != len(columns)), None):
                    told = f"{path}: a row of the reader for {kind} has {len(wrong)} texts, expected {len(columns)}"
                    raise (MissingColumn if len(wrong) < len(columns) else InputError)(f"{told}: {', '.join(columns)}.")
                yield pyarrow.table(dict(zip(columns, map(list, zip(*batch, strict=True)), strict=True)))
        except KeyError as error:
            raise MissingColumn(f"{path}: the reader for {kind} has no column {error}.") from None

    with errors_of_reading(path):
        return cached_table(batches(), key=[file_digest_of(path), parts.reader_sources[kind], dict(columns)])


def table_rows(path: Path, *, quoted: bool | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, cells) of a `.csv` or `.tsv` file, for tables that are not training text.

    Args:
      quoted: whether the cells of a `.tsv` are quoted; None: as its first rows are.
    """
    is_csv = suffix(path) == ".csv"
    csv.field_size_limit(sys.maxsize)
    with errors_of_reading(path), opened(path) as file:
        if is_csv or _is_quoted(path, quoted):
            table = csv.reader(file, strict=True, delimiter="," if is_csv else "\t")
            try:
                for cells in table:
                    yield table.line_num, cells
            except csv.Error as error:
                other = "use .tsv" if is_csv else f"write raw:{path} if they are text"
                place = f"{path}:{table.line_num}"
                raise InputError(f"{place} is not valid CSV: {error}; check the quotes, or {other}.") from None
        else:
            yield from ((number, line.rstrip("\r\n").split("\t")) for number, line in enumerate(file, start=1))


def opened(path: Path) -> Any:
    """The file as text, decompressed if its name says so, with its line ends."""
    import fsspec

    return fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig", newline="")


def _header(path: Path, columns: Mapping[str, str], *, quoted: bool) -> list[str]:
    """Names of a table's columns; raises `InputError` if its only one looks like a sentence, or if it is empty."""
    _, header = next(table_rows(path, quoted=quoted), (0, []))
    if not header:
        raise InputError(f"{path} is empty: it has no rows of text.")
    if len(header) == 1 and header[0] not in requested_names(columns) and not NAME.fullmatch(header[0]):
        raise InputError(
            f"{path}:1 is the header of the table, but {header[0]!r:.60} does not look like the name of a column; check the "
            "separator, add a first line such as text, or use .txt for one sentence per line."
        )
    return header


def _is_quoted(path: Path, quoted: bool | None) -> bool:
    """Whether the cells of a `.tsv` are quoted as by `csv.excel_tab`: as given, or as the first lines with a quote are."""
    if quoted is not None:
        return quoted
    with opened(path) as file:
        for number, line in enumerate(file):
            if '"' in line:
                is_quoted = _looks_quoted(line + "".join(islice(file, SAMPLE_LINES)), with_header=number == 0)
                if is_quoted:
                    _say_quoted(path)
                return is_quoted
    return False


def _looks_quoted(sample: str, *, with_header: bool) -> bool:
    """Whether all quotes in these lines surround cells or are doubled inside, and a program had a reason to quote those cells:
    pandas quotes cells with a quote, a tab or a line end, Excel also those with a comma, others all cells and the header."""
    cells, position = [], 0
    while position < len(sample) and (cell := CELL.match(sample, position)):
        cells.append(cell)
        position = cell.end()
    if '"' in sample[position + 1 :].replace('""', ""):  # the last cell may end behind the sample, but not within it
        return False
    quoted = [cell[1] for cell in cells if cell[1] is not None]
    of_commas = all("," in cell for cell in quoted) and not any("," in (cell[2] or "") for cell in cells)
    return bool(quoted) and (with_header or of_commas or any(re.search(r'["\t\r\n]', cell) for cell in quoted))


@cache
def _say_quoted(path: Path) -> None:
    log.warning("%s: its cells are quoted; to keep quotes as they are, write raw:%s", path, path)


class Watched:
    """Text that must not change while a program processes it, because results are cached under its digest."""

    def __init__(self, specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,), *, cache: str = ""):
        self._specs, self._columns, self._cache = tuple(specs), columns, cache
        self._states = {path: file_state(path) for path in local_files(specs)}
        self.digest = content_digest(specs, columns)

    def rows(self) -> Iterator[Row]:
        """Yields the rows, as `read` does."""
        return read(self._specs, self._columns, cache=self._cache)

    def check(self) -> None:
        """Raises `InputError` if a file was modified."""
        for path, state in self._states.items():
            if file_state(path) != state:
                raise InputError(
                    f"{path} changed while it was read, so the results are discarded; run the same command again "
                    "once it no longer changes."
                )


def portions(specs: Sequence[str], columns: Mapping[str, str], roles: Roles, *, separate: bool) -> list[Portion]:
    """The portions of a text, in its order: its sources, or each column of each source.

    Args:
      columns: the result of `column_map`.
      roles: maps columns to roles, for each spec.
      separate: make each column of a source its own portion.

    Raises:
      InputError: no source has one of the columns.
    """
    if not separate:
        return [Portion(source, columns, [roles[source][name] for name in columns]) for source in range(len(specs))]
    chosen = [
        Portion(source, {name: theirs}, [roles[source][name]])
        for source, spec in enumerate(specs)
        for name, theirs in columns.items()
        if name == TEXT or _has(spec, {name: theirs})
    ]
    for name, theirs in columns.items():
        if all(name not in portion.columns for portion in chosen):
            raise InputError(f"no source of data.text has a column {theirs!r}; correct --config.data.columns.")
    return chosen


def _has(spec: str, column: Mapping[str, str]) -> bool:
    try:
        next(tables(spec, column), None)
    except MissingColumn:
        return False
    return True
