"""Encodes the sentences of a text to one vector each, in bounded memory.

  python -m jaxdistill.encode --model=runs/l3/export --input=sentences.txt --output=vectors.npy
  python -m jaxdistill.encode --model=runs/l3/export --input='texts/*.gz' --output=vectors.parquet --keep_text

OUTPUT is a `.npy` or `.parquet` file. Text, model and output may be in a bucket (`s3://...`, `gs://...`). A table has the vectors in
the column `embedding`. `np.load(FILE, mmap_mode="r")` opens a `.npy` file of any size.

Until all vectors are there, they are in a hidden folder beside the output. If the program is killed, the same command computes
the missing blocks of 8,192 rows and gives the same bytes as an uninterrupted run (on other devices, up to rounding). A
finished output stays as it is; its note, FILE.json, says what it was made from. One of another model, text or option is never
replaced: move it first.

Several processes, started as for training, share the blocks if all of them see the output's folder; the first writes the file.

An empty line keeps its row and is encoded as an empty sentence. Texts that are too long for the model are truncated, and the
program prints how many.

`--dims=N` keeps the first N dimensions, normalised to unit length, of a model trained with nested widths.
"""

import argparse
import glob
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.bars import Advance
from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, any_path, positive, reading_options, run
from jaxdistill.cluster import processes
from jaxdistill.core import ROLES, InputError, Precision
from jaxdistill.data.columns import TEXT
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.sources import local_files, refuse_unread
from jaxdistill.data.tables import finished, write_note
from jaxdistill.data.targets import BLOCK_ROWS, VECTORS, stored_vectors
from jaxdistill.data.text import Row, Watched
from jaxdistill.data.vectors import checked_block
from jaxdistill.evals.similarity import unit_rows
from jaxdistill.files import drafted, local, refuse_overwriting, try_writing, without_links, writing
from jaxdistill.inference import Embedder, load
from jaxdistill.paths import delivered
from jaxdistill.versions import source_digest

EMBEDDING = "embedding"
"""Column of the vectors in a Parquet table."""
FORMATS = (".npy", ".parquet")


@in_python_words()
def encode_text(
    model: str | Path,
    text: Text,
    *,
    output: str | Path = "",
    keep_text: bool = False,
    dims: int = 0,
    column: str = TEXT,
    prompt_name: str = "",
    role: str = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    parts: str | Path | Sequence[str | Path] = "",
    show_progress_bar: bool = False,
) -> Float[np.ndarray, "n e"]:
    """The vectors of a text, one row per sentence, empty ones included. `jaxdistill.encode` is this function.

    >>> jaxdistill.encode(TEACHER, ["A cat sleeps.", "It rains."]).shape
    (2, 16)

    Args:
      model: folder, `package:NAME/PATH` or hub name.
      text: strings, a column or a table, or a source of text as for training.
      output: a `.npy` or `.parquet` file to write, in bounded memory and resumable. Empty: none. The vectors of a `.npy` file
        are returned memory-mapped.
      keep_text: write the sentences beside their vectors, as the column `text`; only for `.parquet`.
      dims: number of leading dimensions to keep, normalised to unit length; 0: all.
      column: column of the sentences in a table.
      prompt_name, role: name of a prompt, or `query` or `document`; empty: the model's default prompt.
      pooling, max_length, batch_size, precision, parts: as for `jaxdistill.load`.
      show_progress_bar: show a bar.
    """
    arguments = locals()
    specs = sources_of(text, {TEXT: column})
    with tempfile.TemporaryDirectory() as folder:
        path = local(output, "output") if output else Path(folder, "vectors.npy")
        options = options_of_call(_parser(), arguments | {"text": specs, "output": path}, repeated=["input"])
        _encode(load(options.model, **reading_options(options)), options, path)
        return _vectors_of(path, mapped=bool(output))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.encode`."""
    options = _parser().parse_args(arguments)
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12], **vars(options)}):
        refuse_unread(options.column, options.input, "--column")
        embedder = load(options.model, **reading_options(options))
        with delivered(options.output, upload=processes.is_first()) as output:
            counts = _encode(embedder, options, Path(output))
        if not processes.is_first():
            return
        rows, longer, longest = counts["rows"], counts["truncated"], embedder.model.max_length
        width = options.dims or embedder.width
        print(f"{options.output}: {rows:,} vectors of {width} numbers, multiplied in {embedder.compute_dtype.name}")
        if longer:
            print(
                f"{longer:,} of {rows:,} texts ({longer / rows:.1%}) are longer than {longest:,} tokens; their ends are cut"
            )


def _encode(embedder: Embedder, options: argparse.Namespace, output: Path) -> Mapping[str, int]:
    """Writes the vectors unless they are there; returns the numbers of rows and of truncated texts."""
    output = without_links(output)
    if output.suffix not in FORMATS:
        raise InputError(f"--output={output} must end in .npy or .parquet.")
    if options.keep_text and output.suffix != ".parquet":
        raise InputError(f"--keep_text needs a table: --output={output.with_suffix('.parquet')}.")
    prompt = embedder.prefix(options.prompt or None, options.role)
    width = options.dims or embedder.width
    if width > embedder.width:
        raise InputError(f"--dims={width} must be from 1 to {embedder.width}, the width of the model's vectors.")
    text = Watched(options.input, {TEXT: options.column})
    origin = {
        "model": embedder.model.digest(),
        "max_length": embedder.model.max_length,
        "prompt": prompt,
        "input": text.digest,
        "precision": embedder.compute_dtype.name,
        **{name: getattr(options, name) for name in ("column", "batch_size", "dims", "keep_text")},
    }
    with processes.agreed() as facts:
        facts |= origin
    refuse_overwriting(output, local_files(options.input))
    if counts := finished(output, origin):
        return counts
    with writing(output):
        try_writing(output)
    made = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:12]
    folder, rows = output.with_name(f".{output.name[:200]}.{made}.part"), sum(1 for _ in text.rows())
    compute = partial(_block, embedder, _reader(text), prompt, width)
    done = stored_vectors(folder, rows, width, compute, unit="sentences", shown=not options.quiet)
    text.check()
    counts = {"rows": rows, "truncated": done.count}
    if processes.is_first():
        with writing(output), drafted(output) as draft:
            if output.suffix == ".npy":
                shutil.copyfile(folder / VECTORS, draft)
            else:
                _write_table(draft, done.vectors, text if options.keep_text else None)
            write_note(output, origin, counts)
        for leftover in output.parent.glob(f".{glob.escape(output.name[:200])}.*.part"):
            shutil.rmtree(leftover)
    processes.wait("the file is written")
    return counts


def _reader(text: Watched) -> Callable[[range], list[Row]]:
    """Returns a function that takes ranges of rows, in rising order, from one pass over the text."""
    rest, position = text.rows(), 0

    def take(rows: range) -> list[Row]:
        nonlocal position
        taken, position = list(islice(rest, rows.start - position, rows.stop - position)), rows.stop
        return taken

    return take


def _block(
    embedder: Embedder, take: Callable[[range], list[Row]], prompt: str, width: int, rows: range, advance: Advance
) -> tuple[Float[np.ndarray, "n e"], int]:
    """Encodes some rows; returns their vectors and the number of truncated texts."""
    encodings = embedder.model.encodings([prompt + sentence for (sentence,) in take(rows)])
    vectors = embedder.encode_ids([np.asarray(encoding.ids, np.int32) for encoding in encodings], advance=advance)
    if width < embedder.width:
        vectors = unit_rows(vectors[:, :width])
    return checked_block(vectors, rows.start, width), sum(bool(encoding.overflowing) for encoding in encodings)


def _write_table(path: Path, vectors: Float[np.ndarray, "n e"], text: Watched | None) -> None:
    """Writes a table of the vectors, and of the sentences of `text` beside them if it is given."""
    import pyarrow
    from pyarrow import parquet

    width = vectors.shape[1]
    fields = [(EMBEDDING, pyarrow.list_(pyarrow.float32(), width))]
    schema = pyarrow.schema([(TEXT, pyarrow.string()), *fields] if text else fields)
    take = _reader(text) if text else None
    # Neither numbers nor sentences repeat much, so dictionary encoding would only cost time.
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for begin in range(0, len(vectors), BLOCK_ROWS):
            block = vectors[begin : begin + BLOCK_ROWS]
            columns: list[Any] = [pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.ravel()), width)]
            if take:
                sentences = [sentence for (sentence,) in take(range(begin, begin + len(block)))]
                columns.insert(0, pyarrow.array(sentences, pyarrow.string()))
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def _vectors_of(path: Path, *, mapped: bool) -> Float[np.ndarray, "n e"]:
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r" if mapped else None)
    from pyarrow import parquet

    lists = parquet.read_table(path, columns=[EMBEDDING])[EMBEDDING].combine_chunks()
    return lists.flatten().to_numpy().reshape(len(lists), -1)


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.encode", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="folder, package:NAME/PATH or hub name")
    text = "text as for training: file, glob, files:FOLDER, hf:...; repeatable"
    add("--input", required=True, action="append", help=text)
    add("--output", type=any_path, required=True, help=".npy or .parquet file")
    add("--keep_text", action="store_true", help="also write the sentences, as the column text; only for .parquet")
    add("--dims", type=positive, default=0, help="dimensions to keep, normalised; default: all")
    add("--column", default=TEXT, help="column of the sentences in a table; default: text")
    add("--prompt", default="", help="name of a prompt of the checkpoint, or none; default: the checkpoint's default")
    add("--role", default="", choices=list(ROLES), help="prepend the checkpoint's prompt for this role")
    add_reading_options(parser)
    add("--quiet", action="store_true", help="no progress bar")
    return parser


make_callable(__name__, encode_text)

if __name__ == "__main__":
    run(main)
