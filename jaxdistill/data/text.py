"""Reads text: the columns of files, hubs and memory as tables of `datasets`, with roles, duplicates and exclusions.

A *spec* names a source of text, as `options.Data.text` says. *Our names* of a text's columns, such as `text` and `second`, are mapped
to the file's. Files are `.txt`, `.tsv`, `.csv`, `.json`, `.jsonl` or `.parquet`, all but Parquet also compressed.
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
"""Prefix of a spec whose files are one text each; a folder stands for all files in it, at any depth, that are not hidden."""
QUOTED = {"raw:": False, "quoted:": True}
"""Maps prefixes of a spec of tables to whether their cells are quoted; without one, `_is_quoted` decides for each file."""
BUILDERS = {".txt": "text", ".tsv": "csv", ".csv": "csv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""Maps suffixes to the builders of `datasets`."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
EMPTY = re.compile("corresponds to no data|at least one example|No columns to parse|BatchSize must be|StopIteration")
"""Parts of the errors of `datasets` about files without rows."""
COLON = re.compile(r":(?![^\[\]]*\])")
"""Separates the parts of a hub's spec; does not match inside a slice of a split, such as `train[:10000]`."""
QUOTED_CELL = re.compile(r'(?<![^\t\r\n])"((?:[^"]|"")*+)(?:"(?![^\t\r\n])|\Z)')
"""A quoted cell of a tab-separated table; the last one of a sample of lines may be cut off."""
TEXTS = "texts"  # folder in the cache for the files of `cached_table`
BATCH_ROWS = 4096
"""Rows read, tokenised or written at a time; a restarted run repeats at most this many."""

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
    """Some columns of a source: its index, our names mapped to the file's, and the role of each column, empty for none."""

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

    def blocks(self, begin: int = 0) -> Iterator[list[list[str]]]:
        """Yields blocks of rows, from row `begin` on: for each of our columns, a list of texts, empty for missing values."""
        rows: Any = self.dataset.with_format("arrow")
        for block_begin in range(begin, len(self.dataset), BATCH_ROWS):
            with foreign_errors(f"cannot read {self.label}"):  # Arrow does not check that a JSON file is in UTF-8
                values_by_name = rows[block_begin : block_begin + BATCH_ROWS].to_pydict()
            cells_by_name = {name: list(map(cell_text, values)) for name, values in values_by_name.items()}
            block = []
            for joined_names in self.names:
                columns = [cells_by_name[name] for name in joined_names]
                joined = (" ".join(filter(None, map(str.strip, cells))) for cells in zip(*columns, strict=True))
                block.append(list(joined) if len(columns) > 1 else columns[0])
            yield block


def cell_text(value: Any) -> str:
    """The text of a table's cell; empty for a missing value: None, or NaN, as pandas writes it."""
    return "" if value is None or value != value else str(value)  # NaN != NaN


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specs."""
    return [spec for spec in map(str.strip, text.split(",")) if spec]


def source_files(spec: str) -> list[Path]:
    """The files of a source, sorted by path; an `hf:` source has none. Raises `InputError` if files are named but not found."""
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
        # Sorted as paths, folder by folder, not as strings: the order of a text's rows must not change.
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
    """Splits the specs of an option into one spec per file, with the same prefix, such as `raw:`. Errors name the option."""
    with errors_of(option):
        return [f"{prefix(spec)}{path}" for spec in specs for path in source_files(spec)]


def file_of(option: str, spec: str) -> str:
    """The spec of the only file of an option's spec, with the same prefix. Raises `InputError` if there is not exactly one."""
    files = files_of(option, [spec])
    if len(files) != 1:
        names = ", ".join(map(os.path.basename, files))
        raise InputError(f"{option}={spec} is {len(files)} files ({names:.100}); name one on a disk or in a bucket.")
    return files[0]


def is_hub_text(spec: str) -> bool:
    """Whether a spec names a hub's data set."""
    return spec.startswith(("hf:", "tfds:"))


def is_in_bucket(spec: str) -> bool:
    """Whether a spec names files of a bucket."""
    return is_remote(spec.removeprefix(prefix(spec)))


def prefix(spec: str) -> str:
    """The prefix of a spec that says how its files are read; empty without one."""
    return next(filter(spec.startswith, (WHOLE, *QUOTED)), "")


def suffix(path: Path) -> str:
    """The suffix that tells a file's format, such as `.tsv` for `x.tsv.gz`; empty for an unknown format."""
    endings = [ending for ending in map(str.lower, path.suffixes) if ending not in COMPRESSED]
    return endings[-1] if endings and endings[-1] in BUILDERS else ""


def is_plain(spec: str) -> bool:
    """Whether a source's files have no column besides the text."""
    return prefix(spec) == WHOLE or {*map(suffix, source_files(spec))} == {".txt"}


def content_digest(specs: Sequence[str]) -> str:
    """SHA-256 of what the specs' sources currently hold, and of how they are read. File names do not matter."""
    parts = []
    for spec in specs:
        for path in source_files(spec):
            file_format = "" if prefix(spec) == WHOLE else suffix(path)  # whole files are text, whatever their names
            parts.append([prefix(spec), file_format, digest_of_file(path)])
        if spec.startswith("hf:"):
            parts.append([spec, hub_table(spec)._fingerprint])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read again only if the file has changed."""
    with foreign_errors(f"cannot read {path}"):
        status = path.stat()
        return _digest_of_state(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=1 << 16)
def _digest_of_state(path: Path, *state: int) -> str:
    """The digest of a file, cached as long as its `state` stays the same. Raises `InputError` for a placeholder of Git's large files."""
    with open(path, "rb") as file:
        if file.read(40).startswith((b"version https://git-lfs.github.com/spec/", b"/annex/objects/")):
            raise InputError(f"{path} only points to a file elsewhere; fetch it with git lfs pull or git annex get.")
    return file_digest(path)


def check_unchanged(specs: Sequence[str], digest: str) -> None:
    """Raises `InputError` if the specs no longer have this `content_digest`. Call it before a result is cached by the digest."""
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
    """Yields the rows of all specs, empty sentences included; the files of a glob are sorted by path. Errors name the unusable file.

    Args:
      columns: `"sentence1|premise"` reads the first of these columns that a file has, `"subject+body"` both, joined with a space.
        If `text` is not mapped to another name, a table's only column serves as `text`.
      numbers: also read columns of numbers, as text.
      headerless: a `.csv` or `.tsv` file may lack a header, if it has just these columns in this order.
      cache: as `data.cache_folder`.
    """
    for spec in specs:
        for table in tables(spec, columns, numbers=numbers, headerless=headerless, cache=cache):
            for block in table.blocks():
                yield from zip(*block, strict=True)


def tables(
    spec: str, columns: ColumnNames, *, numbers: bool = False, headerless: bool = False, cache: str = ""
) -> Iterator[Table]:
    """Yields the tables of a source, in the order of its rows; see `read`, which has the same arguments."""
    named, files = columns_of(columns), source_files(spec)  # `named` maps our names to the file's
    if is_hub_text(spec) and TEXT in named:
        named[TEXT] = COLON.split(spec)[-1]  # the spec itself names the column
    files_of_tables = [[path] for path in files] or [[]]  # an `hf:` source is one table without a file
    if prefix(spec) == WHOLE or {*map(suffix, files)} == {".txt"}:
        # Files without columns are one table; its only column is `text`, whatever `text` is mapped to.
        files_of_tables = [files]
        named = {name: TEXT if name == TEXT else source for name, source in named.items()}
    for table_files in files_of_tables:
        dataset = _loaded(table_files, named, spec, cache, headerless=headerless) if table_files else hub_table(spec)
        if any(isinstance(feature, dict) for feature in dataset.features.values()):
            dataset = dataset.flatten()  # the fields of structs become columns
        label = spec if is_hub_text(spec) or len(table_files) > 1 else str(table_files[0])
        if label.startswith(str(paths.cache_folder() / TEXTS)):  # a file of `cached_table`
            label = "the text in memory"
        selected = _chosen_columns(named, dataset.column_names, spec, label)
        dataset = dataset.select_columns(list(dict.fromkeys(chain.from_iterable(selected))))  # each once
        _check_kinds(dataset, label, numbers=numbers)
        yield Table(dataset, selected, label)


def _check_kinds(dataset: "Dataset", label: str, *, numbers: bool) -> None:
    """Raises `InputError` if a column does not hold text, or numbers if these are allowed."""
    for name, feature in dataset.features.items():
        # Without a `dtype`: lists, and in newer versions of `datasets`, the mixed values of JSON. A column of missing values is "null".
        kind = getattr(feature, "dtype", "mixed values" if type(feature).__name__ == "Json" else "list")
        is_readable = kind in ("string", "large_string", "null") or (numbers and re.match(r"u?int|float", kind))
        if not is_readable:
            raise InputError(f"{label}: column {name!r} holds {kind}, not text.")


def _chosen_columns(named: Mapping[str, str], available: Sequence[str], spec: str, label: str) -> list[tuple[str, ...]]:
    """For each of our names, the columns to join. Its value in `named` lists choices, such as `title+text|text`; the first whose columns
    are all `available` is taken. Raises `MissingColumn` if the table has the columns of no choice."""
    selected = []
    for name, source in named.items():
        choices = _choices(source)
        if name == source == TEXT and len(available) == 1:  # whatever a table's only column is called
            choices.append((available[0],))
        chosen = next((choice for choice in choices if {*choice} <= {*available}), None)
        if chosen is None:
            remedy = f"in a training --config.data.columns=\"(({name!r},'COLUMN'),)\", elsewhere the program's option for a column, if it has one"
            if is_hub_text(spec) and name == TEXT:
                remedy = "the last part of the spec"
            names = ", ".join(map(repr, available)) or "none"
            raise MissingColumn(f"{label} has no column {source!r}; it has {names}. Name one of these: {remedy}.")
        selected.append(chosen)
    return selected


def _loaded(files: Sequence[Path], columns: Mapping[str, str], spec: str, cache: str, *, headerless: bool) -> "Dataset":
    """Loads a file, or several of plain text, as a table of `datasets`, which keeps a copy in `cache` under the digest of their content."""
    import datasets

    builder = "text" if prefix(spec) == WHOLE else BUILDERS.get(suffix(files[0]))
    if builder is None:
        raise InputError(f"{files[0]} has an unknown format; use {', '.join(BUILDERS)}, or files: before it.")
    options = _options(builder, files[0], columns, spec, headerless=headerless)
    digest = hashlib.sha256("".join(map(digest_of_file, files)).encode()).hexdigest()[:16]
    folder = paths.cache_folder(cache) / "arrow" / digest
    is_cached = folder.is_dir()
    escaped = [glob.escape(os.path.abspath(path)) for path in files]
    try:
        with quiet_datasets(), warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names")  # pandas would drop cells
            # Not `load_dataset`, which tells the hub of every file that it loads.
            dataset = getattr(datasets.Dataset, f"from_{builder}")(escaped, cache_dir=str(folder), **options)
        if builder == "json":
            names = _requested(dataset.column_names, columns) or dataset.column_names
            _check_json_lines(files[0], dataset.select_columns(names).features.arrow_schema)
        return dataset
    except Exception as error:
        if len(files) > 1:
            for path in files:  # one of these calls raises, and names its file
                _loaded([path], columns, spec, cache, headerless=headerless)
        cause = error.__cause__ or error  # `datasets` itself says only that it failed
        if EMPTY.search(repr(cause)):
            raise InputError(f"{files[0]} is empty: it has no rows of text.") from None
        is_unquoted = options.get("quoting") == csv.QUOTE_NONE
        advice = f"; if its cells are quoted, write quoted:{files[0]}" if is_unquoted else ""
        advice += f"; if the file is right, remove its cached copy {folder}" if is_cached else ""
        if builder == "json" and "Couldn't cast" in str(cause):
            advice = "; a field that is not in the first 10 MB, or has another type there, must be removed"
        raise InputError(f"cannot read {files[0]} ({error_line(cause):.200}){advice}.") from None


def _check_json_lines(path: Path, schema: "pyarrow.Schema") -> None:
    """Raises `InputError` if a value of JSON lines does not fit the `schema`, which `datasets` infers from the first 10 MB. It encodes the
    column as JSON from there on, so that texts get quotes. Other JSON is not checked: `datasets` infers its types from the whole file."""
    from pyarrow import json as arrow_json

    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        with _opened(path) as file:  # Arrow reads the bytes below the text
            deque(arrow_json.open_json(file.buffer, arrow_json.ReadOptions(block_size=10 << 20), options), maxlen=0)
    except Exception as error:
        if re.search(r"Column\(/.* changed from", str(error)):  # all other errors: not JSON lines
            raise InputError(str(error).partition(" in row ")[0]) from None  # a row of some block


def _options(builder: str, path: Path, columns: Mapping[str, str], spec: str, *, headerless: bool) -> dict[str, Any]:
    """The options with which a builder of `datasets` reads a file, or several of plain text of which `path` is the first."""
    import datasets
    from pyarrow import parquet  # which `datasets` has imported

    if builder == "json":
        return {}
    if builder == "parquet":
        with foreign_errors(f"cannot read {path}"):
            available = parquet.read_schema(path).names
        return {"columns": _requested(available, columns) or None}  # None: all; one may serve as `text`
    if builder == "text":
        options: dict[str, Any] = {"sample_by": "document" if prefix(spec) == WHOLE else "line"}
    else:
        options = _csv_options(path, columns, spec, headerless=headerless)
    features = datasets.Features({name: datasets.Value("string") for name in options.get("names", [TEXT])})
    return options | {"features": features, "encoding": "utf-8-sig"}


def _csv_options(path: Path, columns: Mapping[str, str], spec: str, *, headerless: bool) -> dict[str, Any]:
    """The options with which pandas, called by `datasets`, reads a `.csv` or `.tsv` file."""
    separator = "," if suffix(path) == ".csv" else "\t"
    with foreign_errors(f"cannot read {path}"):
        is_quoted = QUOTED.get(prefix(spec))
        if is_quoted is None:
            is_quoted = _is_quoted(path, separator, path.stat().st_mtime_ns)
        quoting: Any = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
        with _opened(path) as file:
            lines = enumerate(csv.reader(file, delimiter=separator, quoting=quoting))  # blank ones have no cells
            blank_lines, header = next(((number, cells) for number, cells in lines if cells), (0, []))
    if len(header) == 1 and not _requested(header, columns) and not re.fullmatch(r"[\w.:/-]{1,64}", header[0]):
        raise InputError(
            f"{path}:1 is the header of the table, but {header[0]!r:.60} does not look like the name of a column; check the "
            "separator, add a first line such as text, or use .txt for one sentence per line."
        )
    # What pandas takes instead of the header: columns without a name, or with another's, are numbered.
    names = [name if name and header.count(name) == 1 else f"column {index}" for index, name in enumerate(header)]
    lacks_header = headerless and len(header) == len(columns) and not {*header} & {*columns.values()}
    if lacks_header:
        names = list(columns.values())
    options = {"sep": separator, "quoting": quoting, "header": None if lacks_header else 0, "names": names}
    # `NA` is text, a blank line is a row, and the first of too many cells is no index.
    return options | {"keep_default_na": False, "skip_blank_lines": False, "index_col": False, "skiprows": blank_lines}


def _opened(path: Path) -> Any:
    """Opens a file as text and decompresses it if its name says so; line ends stay as they are."""
    import fsspec

    return fsspec.open(str(path), "rt", compression="infer", encoding="utf-8-sig", newline="")


@lru_cache
def _is_quoted(path: Path, separator: str, changed_ns: int) -> bool:
    """Whether quotes around the cells of a table are syntax. In a `.csv` they always are; in a `.tsv` the first quotes decide, and a warning
    is logged if they are. Cached until the file's modification time, `changed_ns`, changes. Raises `InputError` for a malformed quote."""
    if separator == "\t" and not _looks_quoted(path):
        return False
    problem = f"{path}: cells are quoted, but some quotes are neither closed nor doubled; write raw:{path} if quotes are text, or quoted:{path}"
    csv.field_size_limit(2**31 - 1)  # characters; Python's default, 131,072, is less than a long document has
    try:
        with _opened(path) as file:  # at a wrong quote, pandas would join rows in silence
            deque(csv.reader(file, delimiter=separator, strict=True), maxlen=0)
    except csv.Error as error:
        raise InputError(f"{problem} ({error}).") from None
    if separator == "\t":
        log.warning("%s: its cells are quoted; to keep quotes as they are, write raw:%s", path, path)
    return True


def _looks_quoted(path: Path) -> bool:
    """Whether the cells of a `.tsv` look quoted by a program, judged from 201 lines, of which the first has the file's first quote. All
    quotes must surround cells or be doubled inside, and the program must have had a reason to quote these cells: pandas quotes cells with
    a quote, a tab or a line end, Excel also those with a comma, others all cells and the header."""
    with _opened(path) as file:
        header = next(file, "")
        from_first_quote = dropwhile(lambda line: '"' not in line, chain([header], file))
        sample = "".join(islice(from_first_quote, 201))
    quoted_cells = QUOTED_CELL.findall(sample)  # what is between the quotes
    unquoted = QUOTED_CELL.sub("", sample)
    if not quoted_cells or '"' in unquoted:
        return False
    is_for_commas = all("," in cell for cell in quoted_cells) and "," not in unquoted
    has_reason = '"' in header or is_for_commas or any(re.search(r'["\t\r\n]', cell) for cell in quoted_cells)
    # Direct speech over several cells looks like one quoted cell with tabs or line ends, but its lines have as many tabs as the header.
    tabs_of_lines = {line.count("\t") for line in re.split(r"[\r\n]+", sample.rstrip("\r\n"))}
    lines_are_rows = tabs_of_lines == {header.count("\t")} and "\t" in header
    is_speech = lines_are_rows and any(re.search(r"[\t\r\n]", cell) for cell in quoted_cells)
    return has_reason and not is_speech


@lru_cache  # a program calls it several times, and each call would ask the hub
def hub_table(spec: str) -> "Dataset":
    """A data set of the Hugging Face hub; raises `InputError` if it cannot be loaded."""
    import datasets

    remedy = "without network use a local file, or HF_HUB_OFFLINE=1 with HF_HOME set to a folder that holds a copy"
    with foreign_errors(f"{spec} cannot be loaded as hf:NAME[:CONFIG]:SPLIT:COLUMN; {remedy}"), quiet_datasets():
        _, name, *config, split, _ = COLON.split(spec)
        return datasets.load_dataset(name, *config, split=split)


def _tfds_file(spec: str) -> Path:
    """A cached Parquet file with the texts and numbers of a TFDS data set, read from array_record, without TensorFlow."""
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
        batches = iter(lambda: list(islice(rows, BATCH_ROWS)), [])  # until a batch is empty
        key = [builder.info.full_name, split, Path(builder.data_dir).stat().st_mtime_ns]
        return cached_table(map(pyarrow.Table.from_pylist, batches), key)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Keeps `datasets` from logging, and from showing progress bars and starting a thread for them."""
    import datasets
    from tqdm import tqdm

    with contextlib.ExitStack() as undo:
        undo.callback(setattr, tqdm, "monitor_interval", tqdm.monitor_interval)
        undo.callback(datasets.logging.set_verbosity, datasets.logging.get_verbosity())
        if not datasets.are_progress_bars_disabled():
            undo.callback(datasets.enable_progress_bars)
        tqdm.monitor_interval = 0  # starts no thread
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(logging.CRITICAL)
        yield


def cached_table(tables: Iterable["pyarrow.Table"], key: Sequence[Any]) -> Path:
    """Path of a cached Parquet file with the rows of all tables, which need not fit in memory together. `key` is everything that
    determines the content, as JSON values. If the file exists, no table is read. Raises `InputError` if there is no row."""
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
    """Parses a column's name into choices, best first, each a tuple of columns to join. `|` separates choices, and `+` columns to
    join. A column whose own name has these signs comes first. Choices may repeat."""
    choices = [(source,)]
    for name in source.split("|"):
        choices += [(name,), tuple(name.split("+"))]
    return choices


def _requested(available: Sequence[str], columns: Mapping[str, str]) -> list[str]:
    """The available columns that `columns` name. `translation.en`, the field of a struct, requests the column `translation`."""
    names = {name for source in columns.values() for choice in _choices(source) for name in choice}
    return [column for column in available if any(f"{name}.".startswith(f"{column}.") for name in names)]


def columns_of(columns: str | ColumnNames | Sequence[tuple[str, str]] | None) -> dict[str, str]:
    """Maps our names to columns. Takes a mapping, pairs, names that serve as both, or only the name of the sentences' column."""
    if isinstance(columns, str):
        return {TEXT: columns} if columns else {}
    if isinstance(columns, Mapping):
        return dict(columns)
    return dict((column, column) if isinstance(column, str) else column for column in columns or ())


def sources_of(
    text: Text, columns: Mapping[str, str], *, argument: str = "text", numbers: Sequence[str] = ()
) -> list[str]:
    """The specs of a text; a text in memory becomes a cached file, named by its content.

    A string lists specs as on the command line. `None`, NaN and similar values in memory become empty sentences, as in a file.

    Args:
      columns: maps our names to columns; rows that are tuples have the columns in this order. Empty: the text has only sentences.
      argument: the argument's name, for the `InputError` if there is no row or the text cannot be made a table.
      numbers: further columns, which may hold numbers.
    """
    if isinstance(text, str):
        return split_specs(text)
    if isinstance(text, Path):
        return [str(text)]
    if isinstance(text, Sequence) and text:
        if all(isinstance(item, Path) for item in text):
            return list(map(str, text))
        if isinstance(text[0], str) and os.path.isfile(text[0]):
            raise InputError(
                f"{argument} is a list of file names, which would be read as sentences; give [pathlib.Path({text[0]!r}), ...]."
            )
    named = dict(columns) or {TEXT: TEXT}
    with errors_of(argument), foreign_errors("cannot read the text"):
        table = _arrow_table(text, [*named.values(), *numbers])
        names = _requested(table.column_names, named | {name: name for name in numbers})
        table = table.select(names or table.column_names)  # all, if a single column serves as `text`
        return [str(cached_table([table], table.to_pydict()))]


def _arrow_table(text: Any, names: Sequence[str]) -> "pyarrow.Table":
    """Converts text in memory to an Arrow table; `names` are for rows whose columns have no names, such as strings and tuples."""
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
    is_columnar = hasattr(text, "dtype") or hasattr(text, "columns") or isinstance(text, Mapping)
    frame = pandas.DataFrame(text if is_columnar else list(text))
    if len(frame.columns) and not isinstance(frame.columns[0], str):  # pandas numbers columns without names
        frame.columns = list(names)
    # `object`, because categories are no text. Without metadata, by which `datasets` would read other types.
    return pyarrow.Table.from_pandas(frame.astype(object), preserve_index=False).replace_schema_metadata(None)


def parse_roles(option: str, *, columns: Sequence[str], sources: int) -> Roles:
    """Parses `data.roles`, which says which sentences are queries and which documents. `option` is a role for the whole text, one role
    for each source (`query,document`), or roles for some of `columns` (`text=query,second=document`); empty: no role."""
    entries = [entry.rpartition("=") for entry in (option.strip() or NO_ROLE).split(",")]
    roles = ["" if role.strip() == NO_ROLE else role.strip() for _, _, role in entries]
    named = {column.strip(): role for (column, equals, _), role in zip(entries, roles, strict=True) if equals}
    roles_of_sources = []  # stays empty if the option does not fit
    if not named and len(roles) in (1, sources):
        by_source = roles if len(roles) == sources else roles * sources
        roles_of_sources = [dict.fromkeys(columns, role) for role in by_source]
    elif named.keys() <= {*columns} and len(named) == len(roles):  # every role has a column, and no two the same
        roles_of_sources = [{column: named.get(column, "") for column in columns}] * sources
    if not roles_of_sources or not {*roles} <= {*ROLES, ""}:
        raise InputError(
            f"data.roles={option!r} does not fit {sources} source{'s' * (sources != 1)} with the columns {', '.join(columns)}; give one of "
            f"{', '.join((*ROLES, NO_ROLE))} for all, for each source, or for columns: --config.data.roles=text=query,second=document."
        )
    return tuple(roles_of_sources)


def used_roles(roles: Roles) -> tuple[str, ...]:
    """The roles that occur, in the order of `ROLES`."""
    return tuple(role for role in ROLES if any(role in source.values() for source in roles))


def portions(
    specs: Sequence[str], columns: Mapping[str, str], roles: Roles, *, separate: bool, unread: Collection[str] = ()
) -> list[Portion]:
    """Divides a text into its sources or, if `separate`, into the single columns of its sources. A source may then lack any column but
    `text`, which is not checked here. Raises `InputError` for a column that all sources lack; those `unread` count as having it."""
    if not separate:
        return [Portion(source, columns, [roles[source][name] for name in columns]) for source in range(len(specs))]
    found = []
    for name, file_name in columns.items():
        column, errors = {name: file_name}, []
        for source, spec in enumerate(specs):
            try:
                if name != TEXT and spec not in unread:
                    next(tables(spec, column), None)
                found.append(Portion(source, column, [roles[source][name]]))
            except MissingColumn as error:
                errors.append(error)
        if errors and len(errors) == len(specs):
            raise errors[-1]
    return sorted(found, key=lambda portion: portion.source)


def text_key(text: str) -> int:
    """64-bit hash of a text. Of 100 million different texts, two share one with a probability of 0.03 %."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_key(cells: Sequence[str], ordered: Sequence[str] = ()) -> int:
    """Hash of a row of text. It ignores case, surrounding white space, and the order of `cells`, but not that of `ordered`."""
    folded = sorted(cell.strip().casefold() for cell in cells)
    folded += [cell.strip().casefold() for cell in ordered]
    return text_key("\0".join(folded))


def identifying(columns: Collection[str], *, chunked: bool) -> list[str]:
    """The columns that identify a row: `text` and, if there is one, `second`; only `text` if rows are split into chunks."""
    return [name for name in ([TEXT] if chunked else [TEXT, SECOND]) if name in columns]


def excluded_keys(specs: Sequence[str], identity: Mapping[str, str], cache: str = "") -> set[int]:
    """The `row_key`s of the rows of `data.exclude`. `identity` maps our names of the `identifying` columns to the file's."""
    with errors_of("data.exclude"):
        return {row_key(row) for row in read(specs, identity, cache=cache)}
