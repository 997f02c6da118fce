"""Reads text: the columns of files, hubs and memory as tables of `datasets`, with roles, duplicates and exclusions.

Rows are duplicates or excluded by 8-byte hashes of their text. Among 100 million different rows, two share one with a
probability of 0.03 %.
"""

import csv
import glob
import hashlib
import logging
import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from jaxtyping import UInt64

from jaxdistill.core import ROLES, SECOND, InputError, errors_of, paths, plugins
from jaxdistill.data.sources import (
    BATCH_ROWS,
    BUILDERS,
    HUBS,
    PACKED,
    QUOTED,
    WHOLE,
    cached_table,
    content_digest,
    digest_of_file,
    errors_of_reading,
    file_state,
    hub_column,
    hub_table,
    is_hub,
    local_files,
    prefix,
    quiet_datasets,
    source_files,
    suffix,
)

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

TEXT = "text"
"""The column of the sentence itself, which every source has."""
ID = "_id"
"""Column of a whole file's path, as BEIR names ids."""
IDENTITY = (TEXT, SECOND)
"""Columns that identify a row for `data.exclude`, in either order."""
NO_ROLE = "none"
HEADER = re.compile(r"[\w.:/-]{1,64}")
"""What passes for the header of a single column that the caller did not name: one word, not a sentence."""
SAMPLE_LINES = 200
"""Lines of a `.tsv`, from its first quote on, that show whether its cells are quoted."""
QUOTED_CELL = re.compile(r'(?<![^\t\r\n])"((?:[^"]|"")*+)(?:"(?![^\t\r\n])|\Z)')
"""A quoted cell of a tab-separated table; the last one may go on behind the sample."""
BOM = "\ufeff"
"""Byte order mark, which `datasets` leaves at the start of compressed files."""

Row = tuple[str, ...]
"""The texts of one row, in the order of the requested columns."""
Roles = tuple[Mapping[str, str], ...]
"""For each source, a mapping of its columns to their roles; an empty string for no role."""
Keys: TypeAlias = UInt64[np.ndarray, " rows"]
Text = str | Path | Iterable[Any]
"""A source as on the command line (path, glob, `hf:...`), paths of files, or text in memory: strings, tuples, mappings, a
column or a table."""

log = logging.getLogger(__name__)


class MissingColumn(InputError):
    """A file lacks a requested column."""


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
    label: str
    """What to name in errors."""

    def cells(self, batch: "pyarrow.Table") -> list[list[str]]:
        """The texts of each of our columns; a missing value is an empty text."""
        with errors_of_reading(self.label):  # Arrow does not check that texts are UTF-8
            values = {name: list(map(_text, cells)) for name, cells in batch.to_pydict().items()}
        return [
            values[names[0]]
            if len(names) == 1
            else [
                " ".join(filter(None, map(str.strip, row)))
                for row in zip(*(values[name] for name in names), strict=True)
            ]
            for names in self.names
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
      specs: see `sources`; the files of a glob are sorted by name.
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
    named, files = column_map(columns), source_files(spec)
    if is_hub(spec):
        named = {name: hub_column(spec) if name == TEXT else source for name, source in named.items()}
    if spec.startswith("hf:"):
        yield _chosen(hub_table(spec), named, spec, numbers=numbers)
    elif spec.startswith(WHOLE) or all(suffix(path) == ".txt" for path in files):
        options = {"sample_by": "document" if spec.startswith(WHOLE) else "line"}
        try:
            dataset = _load(files, "text", cache, options, columns=[TEXT])
        except InputError:
            for path in files:  # to name the one that cannot be read
                _load([path], "text", cache, options, columns=[TEXT])
            raise
        if spec.startswith(WHOLE) and len(named) > 1:
            dataset = dataset.add_column(ID, list(map(str, files)))
        yield _chosen(dataset, named, str(files[0]) if len(files) == 1 else spec)
    else:
        for path in files:
            label = spec if is_hub(spec) else str(path)
            if suffix(path) in plugins.readers:
                path = _read_by_plugin(path, named)
                yield _chosen(_load_table(path, named, spec, cache), {name: name for name in named}, label)
            else:
                yield _chosen(_load_table(path, named, spec, cache), named, label, numbers=numbers)


def _chosen(dataset: "Dataset", columns: Mapping[str, str], label: str, *, numbers: bool = False) -> Table:
    """The columns of ours in a table; raises `InputError` for one that is missing or no text."""
    if any(isinstance(feature, dict) for feature in dataset.features.values()):
        dataset = dataset.flatten()
    names = chosen_columns(dataset.column_names, columns, label)
    dataset = dataset.select_columns(list(dict.fromkeys(name for chosen in names for name in chosen)))
    for name, feature in dataset.features.items():
        kind = getattr(feature, "dtype", "list")
        if kind not in ("string", "large_string", "null") and not (numbers and re.match(r"u?int|float", kind)):
            raise InputError(f"{label}: column {name!r} holds {kind}, not text.")
    return Table(dataset, names, label)


def _load_table(path: Path, columns: Mapping[str, str], spec: str, cache: str) -> "Dataset":
    """The table of a file with columns."""
    builder = BUILDERS[suffix(path)]
    if builder == "csv":
        separator = "," if suffix(path) == ".csv" else "\t"
        with errors_of_reading(path):
            is_quoted = QUOTED.get(prefix(spec), separator == "," or _is_quoted(path, file_state(path)))
            quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
            with _opened(path) as file:
                header = next(csv.reader(file, delimiter=separator, quoting=quoting), [])
        if len(header) == 1 and header[0] not in requested_names(columns) and not HEADER.fullmatch(header[0]):
            raise InputError(
                f"{path}:1 is the header of the table, but {header[0]!r:.60} does not look like the name of a column; check the "
                "separator, add a first line such as text, or use .txt for one sentence per line."
            )
        names = [name if name and header.count(name) == 1 else f"column {index}" for index, name in enumerate(header)]
        return _load([path], builder, cache, {"sep": separator, "quoting": quoting}, columns=names)
    options = {}
    if builder == "parquet":
        from pyarrow import parquet

        with errors_of_reading(path):
            available = parquet.read_schema(path).names
        options = {"columns": _top_columns(available, requested_names(columns)) or None}
    return _load([path], builder, cache, options)


def _load(
    files: Sequence[Path], builder: str, cache: str, options: Mapping[str, Any], columns: Sequence[str] = ()
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
    digest = hashlib.sha256("".join(map(digest_of_file, files)).encode()).hexdigest()[:16]
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


def _read_by_plugin(path: Path, columns: Mapping[str, str]) -> Path:
    """The rows that a user's own reader yields, as a table in the cache."""
    import pyarrow

    kind = suffix(path)

    def batches() -> Iterator["pyarrow.Table"]:
        try:
            rows = iter(plugins.readers[kind](path, dict(columns)))
            while batch := list(islice(rows, BATCH_ROWS)):
                yield pyarrow.table(dict(zip(columns, map(list, zip(*batch, strict=True)), strict=True)))
        except KeyError as error:
            raise MissingColumn(f"{path}: the reader for {kind} has no column {error}.") from None

    with errors_of_reading(path):
        return cached_table(batches(), [digest_of_file(path), plugins.reader_sources[kind], dict(columns)])


def _opened(path: Path) -> Any:
    """The file as text, decompressed if its name says so, with its line ends."""
    import fsspec

    return fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig", newline="")


@cache
def _is_quoted(path: Path, state: object) -> bool:
    """Whether the cells of a `.tsv` are quoted, as its first lines with a quote are.

    All quotes must surround cells or be doubled inside, and a program must have had a reason to quote these cells: pandas quotes
    cells with a quote, a tab or a line end, Excel also those with a comma, others all cells and the header.
    """
    with _opened(path) as file:
        number, line = next(((number, line) for number, line in enumerate(file) if '"' in line), (1, ""))
        sample = line + "".join(islice(file, SAMPLE_LINES))
    cells, others = QUOTED_CELL.findall(sample), QUOTED_CELL.sub("", sample)
    of_commas = all("," in cell for cell in cells) and "," not in others
    has_reason = number == 0 or of_commas or any(re.search(r'["\t\r\n]', cell) for cell in cells)
    is_quoted = bool(cells) and '"' not in others and has_reason
    if is_quoted:
        log.warning("%s: its cells are quoted; to keep quotes as they are, write raw:%s", path, path)
    return is_quoted


def column_map(columns: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Maps our column names to the file's; in a list of names, both are equal."""
    named = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    return {name: source or name for name, source in named.items()}


def requested_names(columns: Mapping[str, str]) -> set[str]:
    """All names that the requested columns may have in a file."""
    return {name for source in columns.values() for choice in _choices(source) for name in choice}


def chosen_columns(available: Sequence[str], columns: Mapping[str, str], table: str) -> list[tuple[str, ...]]:
    """The table's columns for each of ours: of `sentence1|premise`, the first that exists; of `subject+body`, both; a single
    column serves as `text`."""
    selected = []
    for name, source in columns.items():
        chosen = next((choice for choice in _choices(source) if {*choice} <= {*available}), ())
        if not chosen and name == TEXT and len(available) == 1:
            chosen = (available[0],)
        if not chosen:
            names = ", ".join(map(repr, available)) or "none"
            how = f"data.columns=(({name!r}, 'COLUMN'),), or columns={{{name!r}: 'COLUMN'}} in Python"
            if table.startswith(HUBS) and name == TEXT:
                how = "the last part of the spec"
            raise MissingColumn(f"{table} has no column {source!r}; it has {names}. Name one of these: {how}.")
        selected.append(chosen)
    return selected


def _choices(source: str) -> list[tuple[str, ...]]:
    """The columns that may serve as `subject+body|text`, the preferred ones first; any string may be a column's whole name."""
    return [(source,), *(one for name in source.split("|") for one in ((name,), tuple(name.split("+"))))]


def _top_columns(available: Sequence[str], names: Collection[str]) -> list[str]:
    """The columns that are among `names`, or of which `names` has a field, such as `translation.en`."""
    return [column for column in available if any(f"{name}.".startswith(f"{column}.") for name in names)]


def columns_of(columns: str | Mapping[str, str] | Sequence[str] | Sequence[tuple[str, str]] | None) -> dict[str, str]:
    """Maps views to columns; takes a mapping, pairs, names that serve as both, or the name of the sentences' column.

    >>> columns_of("body"), columns_of(["text", "second"])
    ({'text': 'body'}, {'text': 'text', 'second': 'second'})
    """
    if isinstance(columns, str):
        return {TEXT: columns} if columns else {}
    if isinstance(columns, Mapping):
        return dict(columns)
    return dict((column, column) if isinstance(column, str) else column for column in columns or ())


def sources_of(
    text: Text, columns: Mapping[str, str], *, argument: str = "text", numbers: Sequence[str] = ()
) -> list[str]:
    """The sources of a text as the command line takes them; text in memory becomes a cache file named by its content.

    `None`, NaN and similar values become empty sentences, which training leaves out and counts, as in a file.

    Args:
      columns: maps views to columns; for tuples, in their order. Empty: the text has only sentences.
      argument: the argument's name, for errors.
      numbers: further columns, which may hold numbers.

    Raises:
      InputError: there is no row, or it cannot be a table; names the argument. `read` checks columns.
    """
    if isinstance(text, str | Path):
        return [str(text)] if str(text) else []
    if isinstance(text, Sequence) and text and all(isinstance(item, Path) for item in text):
        return list(map(str, text))
    endings = tuple(f"{end}{packed}" for end in BUILDERS for packed in ("", *PACKED))
    if isinstance(text, Sequence) and text and isinstance(text[0], str) and text[0].endswith(endings):
        if os.path.exists(text[0]):
            raise InputError(
                f"{argument} is a list of file names, which would be read as sentences; give [pathlib.Path({text[0]!r}), ...]."
            )
    named = dict(columns) or {TEXT: TEXT}
    with errors_of(argument), errors_of_reading("the text"):
        table = _arrow_table(text, [*named.values(), *numbers])
        names = _top_columns(table.column_names, [*requested_names(named), *numbers])
        table = table.select(names or table.column_names)
        if not len(table):
            raise InputError("there is no row of text.")
        return [str(cached_table([table], table.to_pydict()))]


def _arrow_table(text: Any, names: Sequence[str]) -> "pyarrow.Table":
    """Text in memory as a table of Arrow. Libraries' tables are recognised by their members, so that none is imported.

    Args:
      names: names of the cells of tuples.
    """
    import pyarrow

    def array(values: Any) -> Any:
        if hasattr(values, "to_arrow"):  # of polars
            values = values.to_arrow()
        elif not isinstance(values, pyarrow.Array | pyarrow.ChunkedArray):
            values = pyarrow.array(values if hasattr(values, "__array__") else list(values), from_pandas=True)
        return values.cast(values.type.value_type) if pyarrow.types.is_dictionary(values.type) else values

    if hasattr(text, "collect"):  # a LazyFrame of polars
        text = text.collect()
    if hasattr(text, "iter"):  # of `datasets`
        return pyarrow.concat_tables(text.with_format("arrow").iter(BATCH_ROWS)).replace_schema_metadata(None)
    if isinstance(text, Mapping) or hasattr(text, "columns"):
        columns = text if isinstance(text, Mapping) else getattr(text, "column_names", text.columns)
        return pyarrow.table({name: array(text[name]) for name in columns})
    if hasattr(text, "to_pandas") or hasattr(text, "to_arrow"):  # a column
        return pyarrow.table({TEXT: array(text)})
    rows = text.tolist() if hasattr(text, "tolist") else list(text)
    if rows and isinstance(rows[0], Mapping):
        return pyarrow.table({name: array([row.get(name) for row in rows]) for name in rows[0]})
    cells = [row if isinstance(row, tuple | list) else (row,) for row in rows]
    if wrong := next((row for row in cells if len(row) != len(names)), None):
        raise InputError(
            f"a row has {len(wrong)} values ({wrong!r:.60}), but there are {len(names)} columns ({', '.join(names)}); "
            "name each in order, such as columns=['text', 'second']."
        )
    return pyarrow.table({name: array(values) for name, values in zip(names, zip(*cells, strict=True), strict=False)})


class Watched:
    """Text that must not change while a program processes it, because results are cached under its digest."""

    def __init__(self, specs: Sequence[str], columns: Mapping[str, str] | Sequence[str] = (TEXT,), *, cache: str = ""):
        self._specs, self._columns, self._cache = tuple(specs), columns, cache
        self._states = {path: file_state(path) for path in local_files(specs)}
        self.digest = content_digest(specs)

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


def parse_roles(text: str, *, columns: Sequence[str], sources: int) -> Roles:
    """Parses `data.roles`: which sentences are queries and which documents, to which models prepend different prompts.

    Args:
      text: a role for the whole text, roles for all sources in their order (`query,document`), or roles for columns
        (`text=query,second=document`); empty: no role.
      columns: names of the text's columns.
      sources: number of sources.
    """
    entries = [[word.strip() for word in entry.rpartition("=")] for entry in (text.strip() or NO_ROLE).split(",")]
    named = {column: role for column, _, role in entries}
    by_column = any(equals for _, equals, _ in entries)
    roles = [role for _, _, role in entries] * (sources if len(entries) == 1 else 1)
    if by_column and (len(named) < len(entries) or named.keys() - {*columns}):
        wrong = f"names columns in {text!r}, and the text has {', '.join(columns)}"
    elif not by_column and len(roles) != sources:
        wrong = f"has {len(roles)} roles for {sources} source{'s' * (sources != 1)}"
    elif strange := {*roles} - {*ROLES, NO_ROLE}:
        wrong = f"has the role {min(strange)!r}, which is none of {', '.join((*ROLES, NO_ROLE))}"
    elif by_column:
        return ({column: named.get(column, "").replace(NO_ROLE, "") for column in columns},) * sources
    else:
        return tuple(dict.fromkeys(columns, role.replace(NO_ROLE, "")) for role in roles)
    raise InputError(
        f"data.roles {wrong}; give one role for all, one for each source, or one for each column, such as "
        "--config.data.roles=text=query,second=document"
    )


def used_roles(roles: Roles) -> tuple[str, ...]:
    """The roles that occur, in the order of `ROLES`."""
    used = {role for source in roles for role in source.values()}
    return tuple(role for role in ROLES if role in used)


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

    def has(spec: str, column: Mapping[str, str]) -> bool:
        try:
            next(tables(spec, column), None)
        except MissingColumn:
            return False
        return True

    chosen = [
        Portion(source, {name: theirs}, [roles[source][name]])
        for source, spec in enumerate(specs)
        for name, theirs in columns.items()
        if name == TEXT or has(spec, {name: theirs})
    ]
    for name, theirs in columns.items():
        if all(name not in portion.columns for portion in chosen):
            raise InputError(f"no source of data.text has a column {theirs!r}; correct --config.data.columns.")
    return chosen


def text_key(text: str) -> int:
    """Hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_key(cells: Sequence[str], ordered: Sequence[str] = ()) -> int:
    """Hash of a row that ignores case, surrounding white space, and the order of `cells` but not of `ordered`."""
    folded = [[cell.strip().casefold() for cell in part] for part in (cells, ordered)]
    return text_key("\0".join([*sorted(folded[0]), *folded[1]]))


def identifying(columns: Collection[str], *, chunked: bool) -> list[str]:
    """The columns that decide whether two rows are equal; with chunks, rows have a single column."""
    return [name for name in IDENTITY[: 1 if chunked else None] if name in columns]


def excluded_keys(specs: Sequence[str], identity: Mapping[str, str], cache: str = "") -> Keys:
    """The distinct `row_key`s of the rows of `data.exclude`, ascending, computed from the columns `identity`."""
    with errors_of("data.exclude"):
        return np.unique(np.fromiter((row_key(row) for row in read(specs, identity, cache=cache)), np.uint64))
