"""How do the sentences of a file become a file of vectors? One row each, in order, in bounded memory.

  python -m jaxdistill.encode --model=runs/l3/export --input=sentences.txt --output=vectors.npy

An empty line keeps its row: it is encoded as an empty sentence. Longer sentences than the model reads are truncated,
and counted.
"""

import errno
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import tqdm

from jaxdistill.cli import Parser, run
from jaxdistill.core import InputError
from jaxdistill.data.sources import TEXT, read
from jaxdistill.inference import Embedder, load, prompt_text

CHUNK = 8192
"""Sentences in memory at a time; enough of them that grouping by length leaves little padding."""


def encode_file(
    embedder: Embedder,
    specs: Sequence[str],
    output: str | Path,
    *,
    column: str = TEXT,
    prompt: str | None = None,
    progress: bool = True,
    chunk: int = CHUNK,
) -> tuple[int, int]:
    """Writes a float32 `.npy` of shape [sentences, width]; returns how many sentences there are and were truncated.

    The file gets its name when it is complete.
    """
    output = Path(output)
    prefix = prompt_text(embedder.model, prompt)
    count = sum(1 for _ in _sentences(specs, column))
    if not count:
        raise InputError(f"{', '.join(specs)}: no sentences; nothing was written.")
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        truncated = _fill(embedder, _sentences(specs, column), unfinished, count, prefix, progress, chunk)
        unfinished.replace(output)
    except OSError as error:
        reason = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise InputError(f"{output} could not be written: {reason}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return count, truncated


def _fill(embedder, sentences, path, count, prefix, progress, chunk) -> int:
    """Writes the vectors of all sentences to `path`; returns how many were truncated."""
    truncated = start = 0
    _reserve(path, count, embedder.width)
    with tqdm.tqdm(total=count, unit="sentence", disable=not progress, dynamic_ncols=True) as bar:
        while texts := list(islice(sentences, chunk)):
            encodings = embedder.model.tokenizer.encode_batch_fast([prefix + text for text in texts])
            truncated += sum(bool(encoding.overflowing) for encoding in encodings)
            vectors = embedder.encode_ids([np.asarray(encoding.ids, np.int32) for encoding in encodings])
            # Opened anew for each chunk: pages of a map that stays open count as memory of the process.
            rows = np.lib.format.open_memmap(path, mode="r+")
            rows[start : start + len(texts)] = vectors
            rows.flush()
            del rows
            start += len(texts)
            bar.update(len(texts))
    return truncated


def _reserve(path: Path, count: int, width: int) -> None:
    """Makes the file at its full size. NOTE a map onto a disk that runs full ends the process, without an error."""
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file,
            {
                "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
                "fortran_order": False,
                "shape": (count, width),
            },
        )
        zeros = bytes(min(1 << 20, 4 * count * width))
        left = 4 * count * width
        while left:
            left -= file.write(zeros[:left])


def _sentences(specs: Sequence[str], column: str) -> Iterator[str]:
    return (text for (text,) in read(specs, {TEXT: column}))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.encode`."""
    given = _parser().parse_args(arguments)
    if Path(given.output).suffix != ".npy":
        raise InputError(f"--output={given.output} must end in .npy: the vectors are a NumPy array.")
    embedder = load(given.model, pooling=given.pooling, max_length=given.max_length, batch_size=given.batch_size)
    count, truncated = encode_file(
        embedder, given.input, given.output, column=given.column, prompt=given.prompt or None, progress=not given.quiet
    )
    print(f"{given.output}: {count:,} vectors of {embedder.width} numbers, float32")
    if truncated:
        longest = embedder.model.max_length
        print(f"{truncated:,} sentences ({truncated / count:.1%}) were longer than {longest} tokens and truncated")


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.encode", description=__doc__)
    parser.add_argument("--model", required=True, help="folder, package:NAME/PATH or hub name")
    parser.add_argument(
        "--input", required=True, action="append", help="text as for training: file, glob, hf:..., tfds:...; repeatable"
    )
    parser.add_argument("--output", required=True, help="the .npy file to write")
    parser.add_argument("--column", default=TEXT, help="column of a table that holds the sentences")
    parser.add_argument(
        "--prompt", default="", help="name of a prompt of the checkpoint; default: the checkpoint's default"
    )
    parser.add_argument("--pooling", default="", help="needed where a checkpoint does not say its pooling")
    parser.add_argument("--max_length", type=int, default=0, help="tokens of a sentence; 0: as the checkpoint says")
    parser.add_argument("--batch_size", type=int, default=128, help="sentences computed together")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


if __name__ == "__main__":
    run(main)
