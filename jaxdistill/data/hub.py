"""Reads text from data set hubs: `hf:NAME[:CONFIG]:SPLIT:COLUMN` and `tfds:NAME:SPLIT:COLUMN`, without TensorFlow."""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxdistill.core import InputError, error_line
from jaxdistill.data.cached import cached_table, quiet_datasets
from jaxdistill.data.columns import top_columns
from jaxdistill.paths import cache_folder

if TYPE_CHECKING:
    import pyarrow

HF, TFDS = "hf:", "tfds:"
BATCH_ROWS = 1024
"""Rows of a set that are in memory at a time."""
COLON = re.compile(r":(?![^\[\]]*\])")
"""Separates the parts of a spec; does not match inside a slice of a split, such as `train[:10000]`."""


def is_hub(spec: str) -> bool:
    """Whether a spec names a hub's data set."""
    return spec.startswith((HF, TFDS))


def column_of(spec: str) -> str:
    """The column that a hub's spec names."""
    return _options(spec)[-1]


def cached_file(spec: str, names: Collection[str]) -> Path:
    """A file in the cache with the columns of a hub's data set that are among `names`; no other column is kept.

    Raises:
      InputError: the set cannot be loaded, or has none of these columns.
    """
    return _cached_file(spec, frozenset(names), cache_folder())


@lru_cache  # a program asks several times, and each time would ask the hub
def _cached_file(spec: str, names: frozenset[str], folder: Path) -> Path:
    name, *options, _ = _options(spec)
    return (_hf if spec.startswith(HF) else _tfds)(spec, names, name, *options)


def _options(spec: str) -> list[str]:
    """The name, perhaps the config, the split and the column."""
    options = COLON.split(spec)[1:]
    if not all(options) or not 3 <= len(options) <= (4 if spec.startswith(HF) else 3):
        raise InputError(f"{spec} is malformed; write hf:NAME[:CONFIG]:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN.")
    return options


def _read(spec: str, available: list[str], names: Collection[str]) -> list[str]:
    """The columns to read: those among `names`, or of which `names` has a field."""
    if read := top_columns(available, names):
        return read
    columns = ", ".join(map(repr, available))
    raise InputError(
        f"{spec} has no column {column_of(spec)!r}; it has {columns}. End the spec with one of these names."
    )


def _hf(spec: str, names: Collection[str], name: str, *options: str) -> Path:
    *config, split = options
    import datasets
    from huggingface_hub import constants

    try:
        with quiet_datasets():
            builder = datasets.load_dataset_builder(name, next(iter(config), None))
            # A slice cannot be streamed, and without a network only a set that was downloaded before is there.
            if split.isidentifier() and not constants.HF_HUB_OFFLINE:
                table: Any = builder.as_streaming_dataset(split=split)
            else:
                table = datasets.load_dataset(name, next(iter(config), None), split=split)
            read = _read(spec, table.column_names or list(next(iter(table))), names)
            rows = table.select_columns(read).with_format("arrow").iter(BATCH_ROWS)
            return cached_table(rows, key=[spec, sorted(names), builder.hash, builder.config_id])
    except InputError:
        raise
    except Exception as error:  # the library raises its own, the hub's and the HTTP client's errors
        raise InputError(
            f"{spec} cannot be loaded ({error_line(error):.300}); without network use a local file, "
            f"or HF_HUB_OFFLINE=1 with HF_HOME set to a folder that holds a copy."
        ) from None


def _tfds(spec: str, names: Collection[str], name: str, split: str) -> Path:
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise InputError(f"{spec} needs tensorflow-datasets; run: pip install 'jaxdistill[tfds]'") from None
    try:
        builder: Any = tfds.builder_from_directory(name) if Path(name).is_dir() else tfds.builder(name)
    except Exception as error:  # the library raises many kinds
        raise InputError(
            f"{spec} cannot be loaded ({error_line(error):.300}); prepare it first, or give its folder."
        ) from None
    _check_form(spec, builder)
    if split not in builder.info.splits:
        raise InputError(f"{spec} has no split {split!r}; it has {', '.join(builder.info.splits)}.")
    read = _read(spec, list(builder.info.features or {}), names)

    def pieces() -> Iterator["pyarrow.Table"]:
        import pyarrow

        rows = iter(builder.as_data_source(split))
        while piece := list(islice(rows, BATCH_ROWS)):
            yield pyarrow.Table.from_pylist(
                [{name: _decoded(row[name], f"{spec}: {name}") for name in read} for row in piece]
            )

    made = Path(builder.data_dir).stat().st_mtime_ns
    return cached_table(pieces(), key=[spec, sorted(names), builder.info.full_name, made])


def _decoded(value: Any, column: str) -> Any:
    """Decodes bytes; returns other values unchanged."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise InputError(f"{column} has bytes that are not UTF-8; name a text column.") from None


def _check_form(spec: str, builder) -> None:
    """Raises `InputError` unless the data set is prepared as array_record, which needs no TensorFlow."""
    form = builder.info.file_format
    if not builder.is_prepared():
        raise InputError(
            f"{spec} is not prepared here ({builder.data_dir}); where TensorFlow is installed run "
            f"tfds build {builder.name} --file_format=array_record, or set TFDS_DATA_DIR."
        )
    if form is not None and form.value != "array_record":
        raise InputError(
            f"{spec} is stored as {form.value}, which needs TensorFlow; convert it where TensorFlow is installed: "
            f"tfds convert_format --root_data_dir=FOLDER --out_file_format=array_record."
        )
