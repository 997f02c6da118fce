"""Reads text: the columns of files, hubs and memory as tables of `datasets`, with roles, duplicates and exclusions.

A source is written as `options.Data.text` says. Files are `.txt`, `.tsv`, `.csv`, `.json`, `.jsonl` or `.parquet`, all but Parquet
also compressed.

Rows are duplicates or excluded by 8-byte hashes of their text. Among 100 million different rows, two share one with a
probability of 0.03 %.
"""

import contextlib
import csv
import glob
import hashlib
import json
import logging
import os
import re
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, dropwhile, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxdistill.core import ROLES, SECOND, InputError, error_line, errors_of, paths
from jaxdistill.core.files import buckets, drafted, file_digest, foreign_errors, is_remote, writing

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

TEXT = "text"
"""The column of the sentence itself, which every source has."""
NO_ROLE = "none"
WHOLE = "files:"
"""Prefix of a spec whose files are one text each; a folder means all its files at any depth that are not hidden."""
QUOTED = {"raw:": False, "quoted:": True}
"""Maps prefixes of a spec of `.tsv` files to whether their cells are quoted; without one, each file's first rows decide."""
BUILDERS = {".txt": "text", ".tsv": "csv", ".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""Maps suffixes to the builders of `datasets`."""
PACKED = (".gz", ".bz2", ".xz", ".zst")
EMPTY = re.compile("corresponds to no data|at least one example|No columns to parse|BatchSize must be|StopIteration")
"""Parts of the errors of `datasets` about files without rows."""
COLON = re.compile(r":(?![^\[\]]*\])")
"""Separates the parts of a hub's spec; does not match inside a slice of a split, such as `train[:10000]`."""
QUOTED_CELL = re.compile(r'(?<![^\t\r\n])"((?:[^"]|"")*+)(?:"(?![^\t\r\n])|\Z)')
"""A quoted cell of a tab-separated table; the last one may go on behind the sample."""
TEXTS = "texts"
"""Folder of the cache with the tables of `cached_table`."""
BATCH_ROWS = 4096
"""Rows read, tokenised or written at a time; a killed run tokenises at most that many again."""

Row = tuple[str, ...]
ColumnNames = Mapping[str, str] | Sequence[str]
"""Columns of a text: names, or a mapping from our names to the file's, such as `{"text": "en", "translation": "de"}`."""
Roles = tuple[Mapping[str, str], ...]
"""For each source, a mapping of its columns to their roles; an empty string for no role."""
Text = str | Path | Iterable[Any]
"""Sources as on the command line, paths of files, or text in memory: strings, tuples, mappings, a column or a table."""

log = logging.getLogger(__name__)


class MissingColumn(InputError):
    """A file lacks a requested column."""


class Portion(NamedTuple):
    """Some columns of the source with an index: our names mapped to the file's, and the role of each, empty for none."""

    source: int
    columns: Mapping[str, str]
    roles: Sequence[str]


class Table(NamedTuple):
    """The rows of a file, or of several files without columns."""

    dataset: "Dataset"
    names: Sequence[Sequence[str]]
    """For each of our columns, the file's columns that are joined with a space; empty cells are left out."""
    label: str
    """Names the table in errors."""

    def cells(self, begin: int = 0) -> Iterator[list[list[str]]]:
        """Yields the texts of each of our columns, some rows at a time from the row `begin` on; a missing value is an empty text."""
        rows: Any = self.dataset.with_format("arrow")
        for first in range(begin, len(self.dataset), BATCH_ROWS):
            with foreign_errors(f"cannot read {self.label}"):  # Arrow does not check that a JSON file is in UTF-8
                cells_by_name = rows[first : first + BATCH_ROWS].to_pydict()
            values = {
                name: ["" if cell is None or cell != cell else str(cell) for cell in cells]  # NaN differs from itself
                for name, cells in cells_by_name.items()
            }
            columns = []
            for names in self.names:
                parts = zip(*(values[name] for name in names), strict=True)
                joined = (" ".join(filter(None, map(str.strip, cells))) for cells in parts)
                columns.append(values[names[0]] if len(names) == 1 else list(joined))
            yield columns


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specs."""
    return [spec for spec in map(str.strip, text.split(",")) if spec]


def source_files(spec: str) -> list[Path]:
    """The files of a source, sorted by path; raises `InputError` if there are none. Empty for `hf:` specs."""
    if spec.startswith("hf:"):
        return []
    if spec.startswith("tfds:"):
        return [_tfds_file(spec)]
    location = os.path.expanduser(spec.removeprefix(prefix(spec)))
    if location.startswith("package:"):
        location = str(paths.in_package(location))
    elif location.startswith("data:"):
        folder = paths.needed_data_folder(location, instead=", or use a file of your own")
        location = str(folder / location.removeprefix("data:"))
    if os.path.isdir(location) and prefix(spec) == WHOLE:
        location = os.path.join(glob.escape(location), "**", "*")
    if is_remote(location):
        files = buckets.fetched_files(location)
    elif os.path.isfile(location):  # also a name with a bracket or a star in it
        files = [Path(location)]
    else:
        # Sorted as paths, part by part: the order of a text's rows must not change.
        files = sorted({Path(path) for path in glob.glob(location, recursive=True) if not os.path.isdir(path)})
    if not files:
        problem = "matches nothing" if glob.has_magic(location) else "does not exist"
        if os.path.isdir(location):
            problem = "is a folder"
        raise InputError(
            f"{spec} {problem}; name a file, a glob, {WHOLE}FOLDER for one text per file, hf:NAME:SPLIT:COLUMN or "
            "tfds:NAME:SPLIT:COLUMN."
        )
    return files


def files_of(option: str, specs: Sequence[str]) -> list[str]:
    """The files that the specs of an option name, each behind its spec's prefix such as `raw:`; errors name the option."""
    with errors_of(option):
        return [f"{prefix(spec)}{path}" for spec in specs for path in source_files(spec)]


def file_of(option: str, spec: str) -> str:
    """The only file that an option's spec names, with the spec's prefix such as `raw:`; raises `InputError` if not exactly one."""
    files = files_of(option, [spec])
    if len(files) != 1:
        names = ", ".join(map(os.path.basename, files))
        raise InputError(f"{option}={spec} is {len(files)} files ({names:.100}); name one on a disk or in a bucket.")
    return files[0]


def is_hub(spec: str) -> bool:
    """Whether a spec names a hub's data set."""
    return spec.startswith(("hf:", "tfds:"))


def prefix(spec: str) -> str:
    """The prefix of a spec that says how its files are read; empty without one."""
    return next(filter(spec.startswith, (WHOLE, *QUOTED)), "")


def suffix(path: Path) -> str:
    """The suffix of the file's format, such as `.tsv` for `x.tsv.gz`; empty for a format that is not text."""
    suffixes = [suffix for suffix in map(str.lower, path.suffixes) if suffix not in PACKED]
    return suffixes[-1] if suffixes and suffixes[-1] in BUILDERS else ""


def is_plain(spec: str) -> bool:
    """Whether a source's files have no column besides the text."""
    return prefix(spec) == WHOLE or {*map(suffix, source_files(spec))} == {".txt"}


def content_digest(specs: Sequence[str]) -> str:
    """SHA-256 of the specs' current content. File names do not matter."""
    facts = []
    for spec in specs:
        for path in source_files(spec):
            file_format = "" if prefix(spec) == WHOLE else suffix(path)  # also empty for a teacher's `.npy`
            facts.append([prefix(spec), file_format, digest_of_file(path)])
        if spec.startswith("hf:"):
            facts.append([spec, hub_table(spec)._fingerprint])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read again only if the file has changed."""
    with foreign_errors(f"cannot read {path}"):
        status = path.stat()
        return _digest_of_state(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _digest_of_state(path: Path, *state: int) -> str:
    """The digest of a file; `state` only keys the cache."""
    with open(path, "rb") as file:
        if file.read(40).startswith((b"version https://git-lfs.github.com/spec/", b"/annex/objects/")):
            raise InputError(f"{path} only points to a file elsewhere; fetch it with git lfs pull or git annex get.")
    return file_digest(path)


def check_unchanged(specs: Sequence[str], digest: str) -> None:
    """Raises `InputError` if a file was modified since the specs had this `content_digest`, under which results are cached."""
    if content_digest(specs) != digest:
        raise InputError(f"{', '.join(specs)} changed while it was read; run the same command again.")


def read(
    specs: Sequence[str],
    columns: ColumnNames = (TEXT,),
    *,
    numbers: bool = False,
    headerless: bool = False,
    cache: str = "",
) -> Iterator[Row]:
    """Yields the rows of all specs in a fixed order, empty sentences included; the files of a glob are sorted by path.

    Args:
      columns: `"sentence1|premise"` reads the first of these columns that a file has, `"subject+body"` both, joined with a space.
        Without a mapping, the only column of a table serves as `text`.
      numbers: also read columns of numbers, as text.
      headerless: a `.csv` or `.tsv` file may lack a header, if it has just these columns in this order.
      cache: as `data.cache_folder`.

    Raises `InputError`, which names the file, if a spec or a file is unusable.
    """
    for spec in specs:
        for table in tables(spec, columns, numbers=numbers, headerless=headerless, cache=cache):
            for cells in table.cells():
                yield from zip(*cells, strict=True)


def tables(
    spec: str, columns: ColumnNames, *, numbers: bool = False, headerless: bool = False, cache: str = ""
) -> Iterator[Table]:
    """Yields the tables of a source, in the order of its rows; see `read`."""
    named, files = columns_of(columns), source_files(spec)
    if is_hub(spec) and TEXT in named:
        named[TEXT] = COLON.split(spec)[-1]
    parts = [[path] for path in files] or [[]]
    if prefix(spec) == WHOLE or {*map(suffix, files)} == {".txt"}:  # without columns: all files are one table
        parts = [files]
        named = {name: TEXT if name == TEXT else source for name, source in named.items()}
    for part in parts:
        dataset = _loaded(part, named, spec, cache, headerless=headerless) if part else hub_table(spec)
        if any(isinstance(feature, dict) for feature in dataset.features.values()):
            dataset = dataset.flatten()
        label = spec if is_hub(spec) or len(part) > 1 else str(part[0])
        if label.startswith(str(paths.cache_folder() / TEXTS)):
            label = "the text in memory"
        available, selected = dataset.column_names, []
        for name, source in named.items():
            chosen = next((choice for choice in _choices(source) if {*choice} <= {*available}), ())
            if not chosen and name == source == TEXT and len(available) == 1:
                chosen = (available[0],)
            if not chosen:
                how = f"in a training data.columns=(({name!r}, 'COLUMN'),), elsewhere the program's option for a column, or in the file"
                if is_hub(spec) and name == TEXT:
                    how = "the last part of the spec"
                names = ", ".join(map(repr, available)) or "none"
                raise MissingColumn(f"{label} has no column {source!r}; it has {names}. Name one of these: {how}.")
            selected.append(chosen)
        dataset = dataset.select_columns(list(dict.fromkeys(chain.from_iterable(selected))))
        for name, feature in dataset.features.items():
            kind = getattr(feature, "dtype", "mixed values" if type(feature).__name__ == "Json" else "list")
            if kind not in ("string", "large_string", "null") and not (numbers and re.match(r"u?int|float", kind)):
                raise InputError(f"{label}: column {name!r} holds {kind}, not text.")
        yield Table(dataset, selected, label)


def _loaded(files: Sequence[Path], columns: Mapping[str, str], spec: str, cache: str, *, headerless: bool) -> "Dataset":
    """A file, or several of plain text, as a table of `datasets`, which copies them into our cache, into a folder named by the
    digest of their content."""
    import datasets

    builder = "text" if prefix(spec) == WHOLE else BUILDERS.get(suffix(files[0]))
    options: dict[str, Any] = {}
    advice = ""
    if builder == "text":
        options = {"sample_by": "document" if prefix(spec) == WHOLE else "line"}
    elif builder == "csv":
        options = _csv_options(files[0], columns, spec, headerless=headerless)
        if options["quoting"] == csv.QUOTE_NONE:
            advice = f"; if its cells are quoted, write quoted:{files[0]}"
    elif builder == "parquet":
        from pyarrow import parquet

        with foreign_errors(f"cannot read {files[0]}"):
            available = parquet.read_schema(files[0]).names
        options = {"columns": _needed(available, columns) or None}
    elif builder != "json":
        raise InputError(f"{files[0]} has an unknown format; use {', '.join(BUILDERS)}, or files: before it.")
    if builder in ("text", "csv"):
        columns_of_file = options.get("names", [TEXT])
        options["features"] = datasets.Features({name: datasets.Value("string") for name in columns_of_file})
        options["encoding"] = "utf-8-sig"
    digest = hashlib.sha256("".join(map(digest_of_file, files)).encode()).hexdigest()[:16]
    folder = paths.cache_folder(cache) / "arrow" / digest
    escaped = [glob.escape(os.path.abspath(path)) for path in files]
    try:
        with quiet_datasets(), warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names")  # pandas would drop cells
            # Not `load_dataset`, which tells the hub of every file that it loads.
            return getattr(datasets.Dataset, f"from_{builder}")(escaped, cache_dir=str(folder), **options)
    except Exception as error:
        if len(files) > 1:  # name the one that cannot be read
            for path in files:
                _loaded([path], columns, spec, cache, headerless=headerless)
        cause = error.__cause__ or error  # `datasets` itself says only that it failed
        if EMPTY.search(repr(cause)):
            raise InputError(f"{files[0]} is empty: it has no rows of text.") from None
        raise InputError(f"cannot read {files[0]} ({error_line(cause):.200}){advice}.") from None


def _csv_options(path: Path, columns: Mapping[str, str], spec: str, *, headerless: bool) -> dict[str, Any]:
    """How `datasets` reads a `.csv` or `.tsv` file."""
    separator = "," if suffix(path) == ".csv" else "\t"
    with foreign_errors(f"cannot read {path}"):
        is_quoted = QUOTED.get(prefix(spec))
        if is_quoted is None:
            is_quoted = separator == "," or _is_quoted(path, path.stat().st_mtime_ns)
        quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
        with _opened(path) as file:
            lines = enumerate(csv.reader(file, delimiter=separator, quoting=quoting))
            blank_lines, header = next(((number, cells) for number, cells in lines if cells), (0, []))
    if len(header) == 1 and not _needed(header, columns) and not re.fullmatch(r"[\w.:/-]{1,64}", header[0]):
        raise InputError(
            f"{path}:1 is the header of the table, but {header[0]!r:.60} does not look like the name of a column; check the "
            "separator, add a first line such as text, or use .txt for one sentence per line."
        )
    names = [name if name and header.count(name) == 1 else f"column {index}" for index, name in enumerate(header)]
    lacks_header = headerless and len(header) == len(columns) and not {*header} & {*columns.values()}
    if lacks_header:
        names = list(columns.values())
    options = {"sep": separator, "quoting": quoting, "header": None if lacks_header else 0, "names": names}
    options |= {"skiprows": blank_lines} if blank_lines else {}
    # `NA` is text, a blank line is a row, and the first of too many cells is no index.
    return options | {"keep_default_na": False, "skip_blank_lines": False, "index_col": False}


def _opened(path: Path) -> Any:
    """The file as text, decompressed if its name says so, with its line ends."""
    import fsspec

    return fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig", newline="")


@lru_cache
def _is_quoted(path: Path, changed_ns: int) -> bool:
    """`looks_quoted`, logged once for each state of the file; raises `InputError` if a later cell is not quoted properly."""
    is_quoted = looks_quoted(path)
    if is_quoted:
        problem = f"{path}: the first quotes surround cells, but others do not; write raw:{path} if quotes are text, or quoted:{path}"
        with foreign_errors(problem), _opened(path) as file:
            deque(quoted_rows(file), maxlen=0)  # pandas joins rows at such a quote
        log.warning("%s: its cells are quoted; to keep quotes as they are, write raw:%s", path, path)
    return is_quoted


def quoted_rows(file: Iterable[str]) -> Iterator[list[str]]:
    """The rows of a `.tsv` whose cells are quoted; raises `csv.Error` if one is not quoted properly."""
    csv.field_size_limit(2**31 - 1)  # characters; Python's default, 131,072, is less than a long document has
    return csv.reader(file, delimiter="\t", strict=True)


def looks_quoted(path: Path) -> bool:
    """Whether the cells of a `.tsv` are quoted, judged from its first quote on.

    All quotes must surround cells or be doubled inside, and a program must have had a reason to quote these cells: pandas quotes
    cells with a quote, a tab or a line end, Excel also those with a comma, others all cells and the header. Direct speech that opens
    in one cell and closes in another looks like a cell with a tab or a line end, but every line of such a table is a whole row.
    """
    with _opened(path) as file:
        header = next(file, "")
        from_first_quote = dropwhile(lambda line: '"' not in line, chain([header], file))
        sample = "".join(islice(from_first_quote, 201))
    cells = QUOTED_CELL.findall(sample)
    others = QUOTED_CELL.sub("", sample)
    quotes_commas = all("," in cell for cell in cells) and "," not in others
    has_reason = '"' in header or quotes_commas or any(re.search(r'["\t\r\n]', cell) for cell in cells)
    tabs = {line.count("\t") for line in re.split(r"[\r\n]+", sample.rstrip("\r\n"))}
    lines_are_rows = tabs == {header.count("\t")} and tabs != {0}
    is_speech = lines_are_rows and any(re.search(r"[\t\r\n]", cell) for cell in cells)
    return bool(cells) and '"' not in others and has_reason and not is_speech


@lru_cache  # a program asks several times, and each time would ask the hub
def hub_table(spec: str) -> "Dataset":
    """A data set of the Hugging Face hub; raises `InputError` if it cannot be loaded."""
    import datasets

    remedy = "without network use a local file, or HF_HUB_OFFLINE=1 with HF_HOME set to a folder that holds a copy"
    with foreign_errors(f"{spec} cannot be loaded as hf:NAME[:CONFIG]:SPLIT:COLUMN; {remedy}"), quiet_datasets():
        _, name, *config, split, _ = COLON.split(spec)
        return datasets.load_dataset(name, *config, split=split)


def _tfds_file(spec: str) -> Path:
    """A set's texts and numbers as a file in the cache; prepares the set as array_record, which needs no TensorFlow."""
    import pyarrow

    def columns_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
        scalars = {name: cell for name, cell in row.items() if not getattr(cell, "shape", ())}
        return {name: cell.decode() if isinstance(cell, bytes) else cell for name, cell in scalars.items()}

    remedy = "install jaxdistill[tfds], and where TensorFlow is, run tfds build NAME --file_format=array_record"
    with foreign_errors(f"{spec} cannot be loaded as tfds:NAME:SPLIT:COLUMN; {remedy}"), quiet_datasets():
        import tensorflow_datasets as tfds

        _, name, split, _ = COLON.split(spec)
        builder: Any = tfds.builder_from_directory(name) if Path(name).is_dir() else tfds.builder(name)
        rows = map(columns_of_row, builder.as_data_source(split))
        batches = iter(lambda: list(islice(rows, BATCH_ROWS)), [])
        key = [builder.info.full_name, split, Path(builder.data_dir).stat().st_mtime_ns]
        return cached_table(map(pyarrow.Table.from_pylist, batches), key)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Keeps `datasets` from showing bars, starting a thread for them, and logging; its errors are raised as usual."""
    import datasets
    from tqdm import tqdm

    with contextlib.ExitStack() as before:
        before.callback(setattr, tqdm, "monitor_interval", tqdm.monitor_interval)
        before.callback(datasets.logging.set_verbosity, datasets.logging.get_verbosity())
        if not datasets.are_progress_bars_disabled():
            before.callback(datasets.enable_progress_bars)
        tqdm.monitor_interval = 0  # starts no thread
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(logging.CRITICAL)
        yield


def cached_table(tables: Iterable["pyarrow.Table"], key: Sequence[Any]) -> Path:
    """A Parquet file in the cache with the rows of all tables, which need not fit in memory; `InputError` if empty.

    `key` is everything that determines the content, as JSON values. If the file exists, no table is read.
    """
    from pyarrow import parquet

    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path = paths.cache_folder() / TEXTS / f"{name}.parquet"
    if path.exists():
        return path
    with writing(path, paths.other_cache(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            writer = None
            for table in filter(len, tables):
                writer = writer or parquet.ParquetWriter(draft, table.schema)
                writer.write_table(table.cast(writer.schema))
            if writer is None:
                raise InputError("there is no row of text.")
            writer.close()
    return path


def _choices(source: str) -> list[tuple[str, ...]]:
    """What `source` may mean, best first; each choice is a tuple of columns to join. `|` separates alternatives, and `+` columns to join,
    unless a column's own name has these signs."""
    choices = [(source,)]
    for name in source.split("|"):
        choices += [(name,), tuple(name.split("+"))]
    return choices


def _needed(available: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """The available columns that are requested, or of which a field is, such as `translation.en`."""
    names = {f"{name}." for source in columns.values() for choice in _choices(source) for name in choice}
    return [column for column in available if any(name.startswith(f"{column}.") for name in names)]


def columns_of(columns: str | ColumnNames | Sequence[tuple[str, str]] | None) -> dict[str, str]:
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
    """The sources of a text; a string lists them as on the command line, text in memory becomes a cache file named by its content. `None`,
    NaN and similar values become empty sentences, as in a file.

    Args:
      columns: maps views to columns; for tuples, in their order. Empty: the text has only sentences.
      argument: the argument's name, for the `InputError` if there is no row, or no table can be made of it.
      numbers: further columns, which may hold numbers.
    """
    if isinstance(text, str):
        return split_specs(text)
    items = [text] if isinstance(text, Path) else text
    if isinstance(items, Sequence) and items and all(isinstance(item, Path) for item in items):
        return list(map(str, items))
    if isinstance(items, Sequence) and items and isinstance(items[0], str) and os.path.isfile(items[0]):
        raise InputError(
            f"{argument} is a list of file names, which would be read as sentences; give [pathlib.Path({items[0]!r}), ...]."
        )
    named = dict(columns) or {TEXT: TEXT}
    with errors_of(argument), foreign_errors("cannot read the text"):
        table = _arrow_table(text, [*named.values(), *numbers])
        names = _needed(table.column_names, named | {name: name for name in numbers})
        table = table.select(names or table.column_names)
        return [str(cached_table([table], table.to_pydict()))]


def _arrow_table(text: Any, names: Sequence[str]) -> "pyarrow.Table":
    """Converts text in memory to an Arrow table; `names` are the columns of tuples."""
    import pandas
    import pyarrow

    # Tables are recognised by their methods, so that their packages need not be imported.
    if hasattr(text, "collect"):  # a LazyFrame of polars
        text = text.collect()
    if hasattr(text, "iter"):  # of `datasets`
        return pyarrow.concat_tables(text.with_format("arrow").iter(BATCH_ROWS)).replace_schema_metadata(None)
    if hasattr(text, "to_arrow"):  # of polars
        text = text.to_arrow()
    if isinstance(text, pyarrow.Table):
        return text
    if hasattr(text, "to_pandas"):
        text = text.to_pandas()
    rows = text if hasattr(text, "dtype") or hasattr(text, "columns") or isinstance(text, Mapping) else list(text)
    frame = pandas.DataFrame(rows)
    if len(frame.columns) and not isinstance(frame.columns[0], str):  # pandas numbers columns without names
        frame.columns = list(names)
    return pyarrow.Table.from_pandas(frame.astype(object), preserve_index=False).replace_schema_metadata(None)


def parse_roles(text: str, *, columns: Sequence[str], sources: int) -> Roles:
    """Parses `data.roles`: which sentences are queries and which documents, for models with a prompt for each.

    `text` is a role for the whole text, roles for all sources in their order (`query,document`), or roles for some of `columns`
    (`text=query,second=document`); empty: no role.
    """
    entries = [entry.rpartition("=") for entry in (text.strip() or NO_ROLE).split(",")]
    roles = ["" if role.strip() == NO_ROLE else role.strip() for _, _, role in entries]
    named = {column.strip(): role for (column, equals, _), role in zip(entries, roles, strict=True) if equals}
    if len(roles) == 1 and not named:
        roles *= sources
    # By name, every role has a column.
    fits = len(named) == len(roles) and named.keys() <= {*columns} if named else len(roles) == sources
    if not fits or not {*roles} <= {*ROLES, ""}:
        raise InputError(
            f"data.roles={text!r} does not fit {sources} source{'s' * (sources != 1)} with the columns {', '.join(columns)}; give one of "
            f"{', '.join((*ROLES, NO_ROLE))} for all, for each source, or for columns: --config.data.roles=text=query,second=document."
        )
    if named:
        return ({column: named.get(column, "") for column in columns},) * sources
    return tuple(dict.fromkeys(columns, role) for role in roles)


def used_roles(roles: Roles) -> tuple[str, ...]:
    """The roles that occur, in the order of `ROLES`."""
    used = {role for source in roles for role in source.values()}
    return tuple(role for role in ROLES if role in used)


def portions(specs: Sequence[str], columns: Mapping[str, str], roles: Roles, *, separate: bool) -> list[Portion]:
    """The portions of a text, in its order: its sources, or if `separate`, each column of each source.

    A source may then lack any column but `text`; raises `InputError` for a column that none has.
    """
    if not separate:
        return [Portion(source, columns, [roles[source][name] for name in columns]) for source in range(len(specs))]
    chosen = []
    for source, spec in enumerate(specs):
        for name, file_name in columns.items():
            try:
                if name != TEXT:
                    next(tables(spec, {name: file_name}), None)  # raises if the source lacks the column
                chosen.append(Portion(source, {name: file_name}, [roles[source][name]]))
            except MissingColumn:
                is_last_source = source == len(specs) - 1
                if is_last_source and not any(name in portion.columns for portion in chosen):
                    raise
    return chosen


def text_key(text: str) -> int:
    """64-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_key(cells: Sequence[str], ordered: Sequence[str] = ()) -> int:
    """Hash of a row that ignores case, surrounding white space, and the order of `cells` but not of `ordered`."""
    folded = sorted(cell.strip().casefold() for cell in cells)
    folded += [cell.strip().casefold() for cell in ordered]
    return text_key("\0".join(folded))


def identifying(columns: Collection[str], *, chunked: bool) -> list[str]:
    """The columns that decide, in either order, whether two rows are equal; rows that are split into chunks have only `text`."""
    names = [TEXT] if chunked else [TEXT, SECOND]
    return [name for name in names if name in columns]


def excluded_keys(specs: Sequence[str], identity: Mapping[str, str], cache: str = "") -> set[int]:
    """The `row_key`s of the rows of `data.exclude`, computed from the columns `identity`."""
    with errors_of("data.exclude"):
        return {row_key(row) for row in read(specs, identity, cache=cache)}
