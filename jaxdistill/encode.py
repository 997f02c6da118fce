"""Encodes the sentences of a text to one vector each, in bounded memory.

  python -m jaxdistill.encode --model=runs/l3/export --text=sentences.txt --output=vectors.npy
  python -m jaxdistill.encode --model=runs/l3/export --text='texts/*.gz' --output=vectors.parquet --keep_text

OUTPUT is a `.npy` file, or a `.parquet` file with the vectors in the column `embedding`. Text and model may be in a bucket
(`s3://...`, `gs://...`). `np.load(FILE, mmap_mode="r")` opens a `.npy` file of any size.

Until all vectors are computed, they are in a hidden folder beside the output. If the program is killed, the same command computes
the missing blocks of 8,192 rows and gives the same bytes as an uninterrupted run (on other devices, up to rounding). A
finished output stays as it is; its note, FILE.json, says what it was made from. An output of another model, text or option is never
replaced: move it first. Several processes, started as for training, share the blocks if all of them see the output's folder.

An empty line keeps its row and is encoded as an empty sentence. Texts that are too long for the model are truncated, and the
program prints how many.
"""

import glob
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import pyarrow
import tyro
from jaxtyping import Float
from pyarrow import parquet

from jaxdistill.core import InputError, Precision
from jaxdistill.core.cli import BATCH_SIZE, BY_NAME, Listed, listed, make_callable, parse, run
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import drafted, output_file, try_writing, writing
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.core.runtime import Advance, log_to_stdout, source_digest
from jaxdistill.data.targets import BLOCK_ROWS, VECTORS, finished, stored_vectors, write_note
from jaxdistill.data.text import TEXT, Row, Text, check_unchanged, content_digest, read, sources_of, split_specs
from jaxdistill.models.inference import Embedder, load
from jaxdistill.models.vectors import unit_rows

log = logging.getLogger("jaxdistill.encode")  # `__name__` is `__main__` in the program


def encode(
    model: str | Path,
    text: Annotated[Text, BY_NAME],
    *,
    output: str | Path = "",
    keep_text: bool = False,
    dims: int = 0,
    column: str = TEXT,
    prompt_name: str = "",
    role: Literal["", "query", "document"] = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    plugins: Listed = "",
    show_progress_bar: bool = False,
) -> Float[np.ndarray, "n e"] | Path:
    """The vectors of a text, one row per sentence, also of empty ones; with `output`, the path of the file that holds the vectors.

    >>> jaxdistill.encode(TEACHER, ["A cat sleeps.", "It rains."]).shape
    (2, 16)

    Args:
      model: Folder, package:NAME/PATH or hub name.
      text: Texts as for training, separated by commas: files, globs, files:FOLDER, hf:NAME. From Python also strings, a
        column or a table.
      output: The .npy or .parquet file to write, in bounded memory and resumable.
      keep_text: Also write the sentences, as the column text of a .parquet file.
      dims: Leading dimensions to keep, normalised to unit length, of a model trained with nested widths; 0: all.
      column: Column of the sentences in a table.
      prompt_name: Name of a prompt of the model, or none; empty: its default prompt.
      role: Role of all sentences, whose prompt, if the model has one, is prepended instead of prompt_name's.
      pooling: Needed if the model's folder does not state its pooling.
      max_length: Maximum tokens per sentence; longer ones are truncated. 0: the model's.
      batch_size: Sentences of 32 tokens that are computed together.
      precision: Of matrix products; auto: bfloat16 where the hardware supports it.
      plugins: Modules or files with your own families.
      show_progress_bar: Progress bar: on in the program, off from Python.
    """
    if not output:
        # Calls itself with a temporary file. So far, the local variables are the arguments.
        options = {name: value for name, value in locals().items() if name != "output"}
        with tempfile.TemporaryDirectory() as folder:
            return np.load(cast(Path, encode(**options, output=f"{folder}/vectors.npy")))
    path = output_file(output, [".parquet"] if keep_text else [".npy", ".parquet"])
    use_plugins(",".join(listed(plugins)))
    specs = split_specs(text) if isinstance(text, str) else sources_of(text, {TEXT: column})
    if not specs:
        raise InputError("no text is given; set text to at least one file, glob or data set.")
    embedder = load(model, pooling=pooling, max_length=max_length, batch_size=batch_size, precision=precision)
    prompt = embedder.prefix(prompt_name or None, role)
    if not 0 <= dims <= embedder.width:
        raise InputError(f"dims={dims} must be from 1 to {embedder.width}, the width of the model's vectors; 0: all.")
    width = dims or embedder.width
    text_digest = content_digest(specs)
    read_rows = partial(read, specs, {TEXT: column})
    origin = {
        "model": embedder.model.digest(), "max_length": embedder.model.max_length, "prompt": prompt, "text": text_digest,
        "precision": embedder.compute_dtype.name, "column": column, "batch_size": batch_size, "dims": dims, "keep_text": keep_text,
    }  # fmt: skip
    with processes.agreed() as facts:
        facts |= origin
    # All look for a finished output before one of them writes it; what the first one finds counts for all.
    counts, *_ = processes.gathered(finished(path, origin))
    if counts is None:
        if processes.is_first():  # in only one process: two would see each other's file
            try_writing(path)
        compute = partial(_encoded, embedder, enumerate(read_rows()), prompt, width)
        digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:12]
        folder = path.with_name(f".{path.name[:200]}.{digest}.part")
        rows = sum(1 for _ in read_rows())
        _, truncated = stored_vectors(folder, rows, width, compute, shown=show_progress_bar)
        check_unchanged(specs, text_digest)
        counts = {"rows": rows, "truncated": truncated}
        processes.wait("all have read the folder")  # the first process then removes it
        if processes.is_first():
            with writing(path), drafted(path) as draft:
                _write_output(draft, path.suffix, folder / VECTORS, read_rows() if keep_text else None)
                write_note(path, draft, origin, counts)
            for leftover in path.parent.glob(f".{glob.escape(path.name[:200])}.*.part"):  # also of killed commands
                shutil.rmtree(leftover)
        processes.wait("the file is written")
    if processes.is_first():
        rows = counts["rows"]
        log.info(f"{path}: {rows:,} vectors of {width} numbers, multiplied in {origin['precision']}")
        if truncated := counts["truncated"]:
            share = f"{truncated:,} of {rows:,} texts ({truncated / rows:.1%})"
            log.info(f"{share} are longer than {origin['max_length']:,} tokens; their ends are cut")
    return path


def _encoded(
    embedder: Embedder, unread: Iterator[tuple[int, Row]], prompt: str, width: int, rows: range, advance: Advance
) -> tuple[np.ndarray, int]:
    """The vectors `[n, width]` of a range of rows, and the number of truncated sentences. `unread` yields the rows of the text that
    no earlier call has read, with their numbers, so calls must pass ascending ranges."""
    sentences = []
    for row, (sentence,) in unread:
        if row in rows:  # not of a block that is computed already, or by another process
            sentences.append(prompt + sentence)
        if row == rows[-1]:
            break
    encodings = list(embedder.model.encodings(sentences))
    vectors = embedder.encode_ids([np.asarray(encoding.ids, np.int32) for encoding in encodings], advance=advance)
    if width < embedder.width:
        vectors = unit_rows(vectors[:, :width])
    return vectors, sum(bool(encoding.overflowing) for encoding in encodings)


def _write_output(path: Path, suffix: str, vectors_file: Path, sentences: Iterator[Row] | None) -> None:
    """Writes the vectors of a `.npy` file: for the suffix `.npy` as a copy, otherwise as Parquet, with the `sentences` if given."""
    if suffix == ".npy":
        shutil.copyfile(vectors_file, path)
        return
    rows, width = np.load(vectors_file, mmap_mode="r").shape
    fields: list[Any] = [(TEXT, pyarrow.string())] if sentences else []
    schema = pyarrow.schema([*fields, ("embedding", pyarrow.list_(pyarrow.float32(), width))])
    # Neither vectors nor sentences repeat much, so dictionary encoding would only cost time.
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for begin in range(0, rows, BLOCK_ROWS):
            # Opened again for each block: the pages of an open map count as memory of the process.
            block = np.load(vectors_file, mmap_mode="r")[begin : begin + BLOCK_ROWS]
            columns: list[Any] = [[text for (text,) in islice(sentences, len(block))]] if sentences else []
            columns.append(pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(block.ravel()), width))
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.encode`."""
    options, _ = parse(encode, arguments, show_progress_bar=True, output=tyro.MISSING)  # MISSING: required
    log_to_stdout()
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12], **options}):  # the same in all processes
        encode(**options)


make_callable(__name__, encode)

if __name__ == "__main__":
    run(main)
