"""Sources of text: the files and data sets that the user's specs name, and the digest of their content.

A source is one of: a file or glob (`.txt`, `.tsv`, `.csv`, `.json`, `.jsonl`, `.parquet`; all but Parquet also compressed), also
in a bucket (`s3://...`, `gs://...`); `package:NAME/PATH` (a file inside an installed package); `data:PATH` (a file or glob in the
folder JAXDISTILL_DATA); `hf:NAME[:CONFIG]:SPLIT:COLUMN`; `tfds:NAME:SPLIT:COLUMN`. `files:` before a file, glob or folder makes
each file one text, whatever its extension. `raw:` or `quoted:` before a `.tsv` file or glob says how its quotes are read.
"""

import contextlib
import glob
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdistill.core import InputError, error_line, errors_of, paths, plugins
from jaxdistill.core.files import buckets, drafted, file_digest, is_remote, writing

if TYPE_CHECKING:
    import pyarrow
    from datasets import Dataset

HUBS = ("hf:", "tfds:")
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
COLON = re.compile(r":(?![^\[\]]*\])")
"""Separates the parts of a hub's spec; does not match inside a slice of a split, such as `train[:10000]`."""
POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/")
"""First bytes of files of Git LFS and git-annex whose content is elsewhere."""
BATCH_ROWS = 4096
"""Rows written to a table of the cache at a time."""


def split_specs(text: str) -> list[str]:
    """Splits a comma-separated list of specs."""
    return [spec for spec in map(str.strip, text.split(",")) if spec]


def source_files(spec: str) -> list[Path]:
    """The files of a source, sorted by path; raises `InputError` if there are none. A set of the Hugging Face hub has none."""
    if spec.startswith("hf:"):
        return []
    if spec.startswith("tfds:"):
        return [_tfds_file(spec)]
    location = os.path.expanduser(spec.removeprefix(prefix(spec)))
    if location.startswith("package:"):
        path = paths.in_package(location)
        if not path.is_file():
            raise InputError(f"{spec} does not exist in that package.")
        return [path]
    if is_remote(location):
        if files := buckets.fetched_files(location, paths.fetched_folder()):
            return files
        raise InputError(f"no object matches {spec}; check the address, and quote the glob.")
    if location.startswith("data:"):
        folder = paths.needed_data_folder(location, instead=", or use a file of your own")
        location = str(folder / location.removeprefix("data:"))
    if os.path.isdir(location):
        if prefix(spec) != WHOLE:
            raise InputError(
                f"{spec} is a folder; name a file, a glob such as {location}/*.txt.gz, or {WHOLE}{spec} for one text per file."
            )
        location = os.path.join(glob.escape(location), "**", "*")
    elif os.path.exists(location):
        return [Path(location)]
    # Sorted as paths, part by part: the order of a text's rows must not change.
    if files := sorted({Path(path) for path in glob.glob(location, recursive=True) if not os.path.isdir(path)}):
        return files
    if glob.has_magic(location):
        raise InputError(f"no file matches {spec}; check the folder, and quote the glob.")
    raise InputError(f"{spec} does not exist; name a file, a glob, hf:NAME:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN.")


def files_of(option: str, specs: Sequence[str]) -> list[Path]:
    """The files that the specs of an option name; its errors name the option."""
    with errors_of(option):
        return [path for spec in specs for path in source_files(spec)]


def file_of(option: str, spec: str) -> Path:
    """The one file that an option names."""
    files = files_of(option, [spec])
    if len(files) != 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{option}={spec} is {len(files)} files ({names:.100}); name one of them.")
    return files[0]


def local_files(specs: Sequence[str]) -> list[Path]:
    """All local files that the specs name."""
    return [path for spec in specs for path in source_files(spec)]


def is_hub(spec: str) -> bool:
    """Whether a spec names a hub's data set."""
    return spec.startswith(HUBS)


def prefix(spec: str) -> str:
    """The prefix of a spec that says how its files are read; empty without one."""
    return next(filter(spec.startswith, (WHOLE, *QUOTED)), "")


def known_suffix(path: Path) -> str:
    """The format's suffix in the file's name, without a compression's; empty for a format that is not text."""
    name = path.name.lower()
    name = next((name.removesuffix(packed) for packed in PACKED if name.endswith(packed)), name)
    return next(filter(name.endswith, (*BUILDERS, *plugins.readers)), "")


def suffix(path: Path) -> str:
    """Like `known_suffix`, but raises `InputError` for a format that is not text."""
    if ending := known_suffix(path):
        return ending
    raise InputError(
        f"{path} has an unknown format; use {', '.join((*BUILDERS, *plugins.readers))}, or files: before it."
    )


def is_plain(spec: str) -> bool:
    """Whether a source's files have no column besides the text."""
    if is_hub(spec):
        return False
    return prefix(spec) == WHOLE or all(suffix(path) == ".txt" for path in source_files(spec))


def refuse_unread(column: str, specs: Sequence[str], option: str) -> None:
    """Raises `InputError` for a column that no source reads: `.txt` files have no columns."""
    if column != "text" and all(map(is_plain, specs)):
        raise InputError(f"{option}={column} has no effect on {', '.join(specs)}, which is not a table; leave it out.")


def check_weights(weights: Sequence[float], *, sources: int) -> None:
    """Raises `InputError` unless weights are empty or one positive number per source."""
    if weights and (len(weights) != sources or not all(0 < weight < float("inf") for weight in weights)):
        got = f"weights {list(weights)} for {sources} source{'s' * (sources != 1)}"
        raise InputError(f"{got}; set --config.data.weights to one positive number per source, or leave it empty.")


def content_digest(specs: Sequence[str]) -> str:
    """SHA-256 of the specs' current content. File names do not matter. The source code of a user's own reader does, because a
    changed reader gives other rows for the same bytes."""
    facts = []
    for spec in specs:
        kind = prefix(spec)
        for path in source_files(spec):
            form = "" if kind == WHOLE else known_suffix(path)
            facts.append([kind, form, plugins.reader_sources.get(form, ""), digest_of_file(path)])
        if spec.startswith("hf:"):
            facts.append([spec, hub_table(spec)._fingerprint])
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, read again only if the file has changed; raises `InputError` for a pointer of Git LFS."""
    return _digest_of_state(path, file_state(path))


@lru_cache(maxsize=1 << 16)
def _digest_of_state(path: Path, state: tuple[int, ...] | None) -> str:
    with errors_of_reading(path):
        with open(path, "rb") as file:
            if file.read(40).startswith(POINTERS):
                raise InputError(
                    f"{path} only points to a file that is not here; fetch it with git lfs pull or git annex get."
                )
        return file_digest(path)


def file_state(path: Path) -> tuple[int, ...] | None:
    """What changes when a file is written; None if there is no file."""
    if not path.exists():
        return None
    status = path.stat()
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


def hub_column(spec: str) -> str:
    """The column that a hub's spec names."""
    return _hub_parts(spec)[-1]


def _hub_parts(spec: str) -> list[str]:
    """The name, perhaps the config, the split and the column."""
    named = COLON.split(spec)[1:]
    if not all(named) or not 3 <= len(named) <= (4 if spec.startswith("hf:") else 3):
        raise InputError(f"{spec} is malformed; write hf:NAME[:CONFIG]:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN.")
    return named


@contextlib.contextmanager
def _errors_of_loading(spec: str, remedy: str) -> Iterator[None]:
    try:
        with quiet_datasets():
            yield
    except ImportError:
        raise InputError(f"{spec} needs tensorflow-datasets; run: pip install 'jaxdistill[tfds]'") from None
    except Exception as error:  # the libraries raise their own, the hub's and the HTTP client's errors
        raise InputError(f"{spec} cannot be loaded ({error_line(error):.300}); {remedy}.") from None


@lru_cache  # a program asks several times, and each time would ask the hub
def hub_table(spec: str) -> "Dataset":
    """A data set of the Hugging Face hub; raises `InputError` if it cannot be loaded."""
    import datasets

    name, *config, split, _ = _hub_parts(spec)
    remedy = "without network use a local file, or HF_HUB_OFFLINE=1 with HF_HOME set to a folder that holds a copy"
    with _errors_of_loading(spec, remedy):
        return datasets.load_dataset(name, *config, split=split)


def _tfds_file(spec: str) -> Path:
    """The texts and numbers of a set in the cache; the set is prepared as array_record, which needs no TensorFlow."""
    import pyarrow

    name, split, _ = _hub_parts(spec)
    with _errors_of_loading(spec, "where TensorFlow is installed, run tfds build NAME --file_format=array_record"):
        import tensorflow_datasets as tfds

        builder: Any = tfds.builder_from_directory(name) if Path(name).is_dir() else tfds.builder(name)
        rows = iter(builder.as_data_source(split))

        def tables() -> Iterator["pyarrow.Table"]:
            while batch := list(islice(rows, BATCH_ROWS)):
                columns = {name: [row[name] for row in batch] for name in batch[0]}
                yield pyarrow.table(
                    {
                        name: [cell.decode() if isinstance(cell, bytes) else cell for cell in cells]
                        for name, cells in columns.items()
                        if not getattr(cells[0], "shape", ())
                    }
                )

        return cached_table(tables(), [builder.info.full_name, split, Path(builder.data_dir).stat().st_mtime_ns])


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Inside, `datasets` shows no bars, starts no thread for them, and logs nothing; its errors are raised as usual."""
    import datasets
    from tqdm import tqdm

    interval, tqdm.monitor_interval = tqdm.monitor_interval, 0
    had_bars, verbosity = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        tqdm.monitor_interval = interval
        datasets.logging.set_verbosity(verbosity)
        if had_bars:
            datasets.enable_progress_bars()


def cached_table(tables: Iterable["pyarrow.Table"], key: Sequence[Any]) -> Path:
    """A Parquet file in the cache of these tables, one below the other; they need not fit in memory.

    Args:
      tables: have the same columns; not read if the file exists.
      key: everything that determines the content, as JSON values.
    """
    from pyarrow import parquet

    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    path, writer = paths.cache_folder() / "texts" / f"{name}.parquet", None
    if path.exists():
        return path
    with writing(path, paths.other_cache(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            for table in tables:
                writer = writer or parquet.ParquetWriter(draft, table.schema)
                writer.write_table(table.cast(writer.schema))
            if writer is None:
                raise InputError("there is no row of text.")
            writer.close()
    return path
