"""Encodes the sentences of a text, or passages of long texts, to one vector each, in bounded memory.

  python -m jaxdistill.encode --model=runs/l3/export --input=sentences.txt --output=vectors.npy
  python -m jaxdistill.encode --model=runs/l3/export --input='texts/*.gz' --output=vectors/ --keep_text
  python -m jaxdistill.encode --model=runs/l3/export --input=files:docs --chunk_tokens=256 --output=index.parquet

OUTPUT is a folder of parts, with a `/` at its end, or one `.npy` or `.parquet` file. Text, model and output may be in a
bucket (`s3://...`, `gs://...`).

A folder holds `.parquet` files of 8,192 rows, which DuckDB, Polars, pyarrow, `datasets` and Ray Data read as one table. The
vectors are in the column `embedding`. `np.load(FILE, mmap_mode="r")` opens a `.npy` file of any size. If the program is
killed, the same command computes the missing parts and gives the same bytes as an uninterrupted run (on other devices, up to
rounding), and a finished output stays as it is. One of another model, text or option is never replaced: move it first. The parts of
a single file are in a hidden folder beside it until all are done; then its note, FILE.json, says what it was made from.

Several processes, started as for training, share the parts of a folder, which must be in a bucket or on a file system that
all of them see.

An empty line keeps its row and is encoded as an empty sentence. Texts that are too long for the model are truncated, and the
program prints how much is cut off. `--chunk_tokens=N` splits them instead, as training does: a row is then a passage of whole
sentences and at most N tokens, with the columns `id` of its text, `start` and `end` in characters, and `text`.

`--dims=N` keeps the first N dimensions, normalised to unit length, of a model trained with nested widths. `--dtype=float16`,
`int8` or `binary` stores fewer bits per number, as sentence-transformers' `quantize_embeddings` does (`int8`, `ubinary`).
`centred` subtracts each dimension's mean before it keeps the sign, which binary vectors of models such as GTE and E5 need.
int8 and centred take the range of each dimension from the first 8,192 sentences of the text, or of `--calibrate`, and store the
ranges in the table's metadata, or in NAME.ranges.npy beside NAME.npy. `jaxdistill.search` reads all forms.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import (
    BATCH_SIZE,
    Parser,
    add_reading_options,
    any_path,
    positive,
    reading_options,
    run,
)
from jaxdistill.cluster import processes
from jaxdistill.core import ROLES, InputError, Precision
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.sources import TEXT, refuse_unread
from jaxdistill.data.vectors import stored_blocks
from jaxdistill.files import is_remote, local
from jaxdistill.inference import Embedder, load
from jaxdistill.inference.to_file import Written, encode_file, is_folder
from jaxdistill.ops.small_vectors import STEPS, STORED_AS, row_bytes
from jaxdistill.paths import delivered
from jaxdistill.versions import source_digest

CHUNK_HELP = "split texts at sentence ends into passages of at most this many tokens, special ones and prompt included"


@in_python_words()
def encode_text(
    model: str | Path,
    text: Text,
    *,
    output: str | Path = "",
    keep_text: bool = False,
    chunk_tokens: int = 0,
    dims: int = 0,
    dtype: str = "float32",
    calibrate: str | Path | Sequence[str | Path] = (),
    column: str = TEXT,
    prompt_name: str = "",
    role: str = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    parts: str | Path | Sequence[str | Path] = "",
    show_progress_bar: bool = False,
) -> Shaped[np.ndarray, "n e"]:
    """The vectors of a text, one row per sentence, empty ones included. `jaxdistill.encode` is this function.

    >>> jaxdistill.encode(TEACHER, ["A cat sleeps.", "It rains."]).shape
    (2, 16)

    Args:
      model: folder, `package:NAME/PATH` or hub name.
      text: strings, a column or a table, or a source of text as for training.
      output: a folder of `.parquet` parts to write, whose name ends in `/`, or a `.npy` or `.parquet` file; written in bounded
        memory and resumable. Empty: none. The vectors of a `.npy` file are returned memory-mapped, others are read.
      keep_text: write the sentences beside their vectors; not for `.npy`.
      chunk_tokens: above 0: encode passages of at most this many tokens, with the id of their text and their start and end in
        it; not for `.npy`.
      dims: number of leading dimensions to keep, normalised to unit length; 0: all.
      dtype: `float32`, `float16`, `int8`, or `binary` or `centred` (eight numbers in a uint8).
      calibrate: sources of a text whose first 8,192 sentences determine the ranges of int8 and centred; empty: `text`.
      column: column of the sentences in a table.
      prompt_name, role: name of a prompt, or `query` or `document`; empty: the model's default prompt.
      pooling, max_length, batch_size, precision, parts: as for `jaxdistill.load`.
      show_progress_bar: show a bar.
    """
    arguments = locals()
    if dtype in STEPS and not output:
        raise InputError(
            f"{dtype} vectors are useless without their ranges, which only a file stores; give output=FILE."
        )
    specs = sources_of(text, {TEXT: column})
    with tempfile.TemporaryDirectory() as folder:
        path = local(output, "output") if output else Path(folder, "vectors.npy")
        given = options_of_call(
            _parser(), arguments | {"text": specs, "output": output or path}, repeated=["input", "calibrate"]
        )
        _written(load(given.model, **reading_options(given)), given, given.output)
        if path.suffix == ".npy" and path.is_file():
            return np.load(path, mmap_mode="r" if output else None)
        return np.concatenate(list(stored_blocks(path)))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.encode`."""
    given = _parser().parse_args(arguments)
    with processes.connected(lambda: _facts(given)):
        _encode(given)


def _facts(given: argparse.Namespace) -> Mapping[str, object]:
    """Facts that must be the same in all processes at the start."""
    asked = {name: value for name, value in vars(given).items() if name != "quiet"}
    output = given.output if is_remote(given.output) else os.path.abspath(given.output)
    return {"jaxdistill": source_digest()[:12]} | asked | {"output": output}


def _encode(given: argparse.Namespace) -> None:
    """Writes the vectors, and prints a summary."""
    refuse_unread(given.column, given.input, "--column")
    if given.dtype in STEPS and is_remote(given.output) and given.output.endswith(".npy"):
        raise InputError(
            f"--output={given.output} cannot store the ranges of {given.dtype}; give a .parquet file or DIR/."
        )
    embedder = load(given.model, **reading_options(given))
    if is_folder(given.output):
        counts = _written(embedder, given, given.output)
    else:
        with delivered(given.output) as output:
            counts = _written(embedder, given, output)
    if not processes.is_first():
        return
    dims = given.dims or embedder.width
    print(
        f"{given.output}: {counts.sentences:,} vectors of {dims} numbers, {given.dtype}, {row_bytes(dims, given.dtype):,} bytes "
        f"each, multiplied in {embedder.compute_dtype.name}"
    )
    print(f"{counts.unknown / max(counts.tokens, 1):.2%} of {counts.tokens:,} tokens are unknown to the tokenizer")
    if advice := counts.advice(dims):
        print(advice)
    if loss := counts.loss(embedder.model.max_length, chunk_tokens=given.chunk_tokens):
        print(loss)


def _written(embedder: Embedder, given: argparse.Namespace, output: str) -> Written:
    return encode_file(
        embedder,
        given.input,
        output,
        column=given.column,
        prompt_name=given.prompt or None,
        role=given.role,
        keep_text=given.keep_text,
        chunk_tokens=given.chunk_tokens,
        dims=given.dims,
        dtype=given.dtype,
        calibrate=given.calibrate,
        progress=not given.quiet,
    )


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.encode", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="folder, package:NAME/PATH or hub name")
    text = "text as for training: file, glob, files:FOLDER, hf:...; repeatable"
    add("--input", required=True, action="append", help=text)
    add("--output", type=any_path, required=True, help="folder of .parquet parts, DIR/, or .npy or .parquet file")
    add("--keep_text", action="store_true", help="also write the sentences, as the column text; not for .npy")
    add("--chunk_tokens", type=positive, default=0, help=CHUNK_HELP + "; not for .npy")
    add("--dims", type=positive, default=0, help="dimensions to keep, normalised; default: all")
    add("--dtype", choices=list(STORED_AS), default="float32", help="dtype of the stored vectors; default: float32")
    add(
        "--calibrate",
        action="append",
        default=[],
        help="text for the ranges of int8 and centred; repeatable; default: --input",
    )
    add("--column", default=TEXT, help="column of the sentences in a table; default: text")
    add("--prompt", default="", help="name of a prompt of the checkpoint, or none; default: the checkpoint's default")
    add("--role", default="", choices=list(ROLES), help="prepend the checkpoint's prompt for this role")
    add_reading_options(parser)
    add("--quiet", action="store_true", help="no progress bar")
    return parser


make_callable(__name__, encode_text)

if __name__ == "__main__":
    run(main)
