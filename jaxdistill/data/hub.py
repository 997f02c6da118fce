"""Reads text from data set hubs: `hf:NAME[:CONFIG]:SPLIT:COLUMN` and `tfds:NAME:SPLIT:COLUMN`, without TensorFlow."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError, error_line
from jaxdistill.data import formats, structs

HF, TFDS = "hf:", "tfds:"
HF_ROWS = 256
"""Rows of a set of the Hugging Face hub that are decoded at a time; more would take memory and no less time."""
COLON = re.compile(r":(?![^\[\]]*\])")
"""Separates the parts of a spec; does not match inside a slice of a split, such as `train[:10000]`."""


def is_hub(spec: str) -> bool:
    """Whether a spec names a hub's data set."""
    return spec.startswith((HF, TFDS))


def rows(spec: str, columns: Mapping[str, str], line_bytes: int, *, cell: formats.Cell) -> Iterator[tuple[str, ...]]:
    """Yields the rows of a hub's data set; the spec's column serves as `text`, and cells have at most `line_bytes`."""
    name, *options = COLON.split(spec)[1:]
    if not name or not all(options) or not 2 <= len(options) <= (3 if spec.startswith(HF) else 2):
        raise InputError(f"{spec} is malformed; write hf:NAME[:CONFIG]:SPLIT:COLUMN or tfds:NAME:SPLIT:COLUMN.")
    *options, column = options
    wanted = {ours: column if ours == "text" else theirs for ours, theirs in columns.items()}
    table, available = (_hf if spec.startswith(HF) else _tfds)(spec, name, *options)
    if spec.startswith(HF):  # row by row, `datasets` would decode every column
        asked = formats.requested_names(wanted)
        read = [one for one in available if any(f"{name}.".startswith(f"{one}.") for name in asked)] or available
        batches = table.select_columns(read).iter(HF_ROWS)
        table = ({name: batch[name][row] for name in read} for batch in batches for row in range(len(batch[read[0]])))
    selected, count = None, 0
    for count, row in enumerate(map(structs.with_fields, table), start=1):
        place = f"{spec} row {count}"
        selected = selected or formats.chosen_columns(list(dict.fromkeys([*available, *row])), wanted, spec)
        yield selected.row(
            cell(_decoded(row.get(name), name, place), place, name, line_bytes) for name in selected.names
        )
    if not count:
        raise InputError(f"{spec} is empty: it has no rows of text.")


def _decoded(value: Any, column: str, place: str) -> Any:
    """Decodes bytes; returns other values unchanged."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        raise InputError(f"{place}: column {column!r} has bytes that are not UTF-8; name a text column.") from None


def _hf(spec: str, name: str, *options: str) -> tuple[Any, list[str]]:
    *config, split = options
    import datasets

    try:
        table: Any = datasets.load_dataset(name, *config, split=split)
    except Exception as error:  # the library raises its own, the hub's and the HTTP client's errors
        raise InputError(
            f"{spec} cannot be loaded ({error_line(error):.300}); without network use a local file, "
            f"or HF_HUB_OFFLINE=1 with HF_HOME set to a folder that holds a copy."
        ) from None
    return table, table.column_names


def _tfds(spec: str, name: str, split: str) -> tuple[Any, list[str]]:
    import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder_from_directory(name) if Path(name).is_dir() else tfds.builder(name)
    except Exception as error:  # the library raises many kinds
        raise InputError(
            f"{spec} cannot be loaded ({error_line(error):.300}); prepare it first, or give its folder."
        ) from None
    _check_form(spec, builder)
    if split not in builder.info.splits:
        raise InputError(f"{spec} has no split {split!r}; it has {', '.join(builder.info.splits)}.")
    return builder.as_data_source(split), list(builder.info.features or {})


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
