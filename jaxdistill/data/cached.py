"""Writes text that is not in files, such as a table in memory, to a Parquet file in the cache; keeps `datasets` silent."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdistill.core import InputError
from jaxdistill.files import UNFINISHED_SUFFIX, file_digest, writing
from jaxdistill.paths import cache_folder, other_cache

if TYPE_CHECKING:
    import pyarrow


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


def cached_table(tables: Iterable["pyarrow.Table"], *, key: Any = None) -> Path:
    """The file of these tables, one below the other; written piece by piece, so that they need not fit in memory.

    Args:
      tables: have the same columns; not read if the file exists.
      key: everything that determines the content, as JSON values; None: the file is named by its content.

    Raises:
      InputError: there is no row, or the file cannot be written.
    """
    from pyarrow import parquet

    folder = cache_folder() / "texts"
    named = None if key is None else folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.parquet"
    if named and named.exists():
        return named
    unfinished, writer = folder / f".{os.getpid()}-{id(tables):x}{UNFINISHED_SUFFIX}", None
    with writing(folder, other_cache(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for table in tables:
                table = table.replace_schema_metadata(None)
                writer = writer or parquet.ParquetWriter(unfinished, table.schema)
                writer.write_table(table.cast(writer.schema))
            if writer is None:
                raise InputError("there is no row of text.")
            writer.close()
            return unfinished.replace(named or folder / f"{file_digest(unfinished)[:16]}.parquet")
        finally:
            unfinished.unlink(missing_ok=True)
