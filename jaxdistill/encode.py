"""Encodes the sentences of a text, or passages of long texts, into a file of vectors: one row each, in bounded memory.

  python -m jaxdistill.encode --model=runs/l3/export --input=sentences.txt --output=vectors.npy
  python -m jaxdistill.encode --model=runs/l3/export --input='texts/*.gz' --output=vectors.parquet --keep_text
  python -m jaxdistill.encode --model=runs/l3/export --input=files:docs --chunk_tokens=256 --output=index.parquet

Text, model and output may be in a bucket (`s3://...`, `gs://...`).

`np.load(FILE, mmap_mode="r")` opens a `.npy` file of any size; a `.parquet` file has the vectors in the column
`embedding`. Rows are first written to OUTPUT.partial. If the program is killed, the same command resumes it and gives
the same bytes as an uninterrupted run (on other devices: up to rounding). Another model, text or option starts over.

Several processes, started as for training, each compute a part. OUTPUT must then be in a bucket, or on a file system
that all of them see.

An empty line keeps its row and is encoded as an empty sentence. Texts that are too long for the model are truncated, and
how much is cut is printed. `--chunk_tokens=N` splits them instead, as training does: a row is a passage of whole sentences
and at most N tokens, with the columns `id` of its text, `start` and `end` in characters, and `text`.
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill import processes
from jaxdistill.bars import progress_bar
from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import (
    BATCH_SIZE,
    Interrupted,
    Interrupts,
    Parser,
    add_reading_options,
    any_path,
    positive,
    reading_options,
    run,
)
from jaxdistill.core import ROLES, InputError, Precision
from jaxdistill.data import spread
from jaxdistill.data.chunks import Chunking, tokens_around
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.passages import Corpus
from jaxdistill.data.sources import TEXT, Watched, local_files, read, refuse_unread
from jaxdistill.data.vectors import VectorFile, blocks, note_of, write_parquet
from jaxdistill.files import is_remote, is_special, local, refuse_overwriting, unwritable, without_links
from jaxdistill.inference import Embedder, load
from jaxdistill.ops.unknown import unknown_id
from jaxdistill.paths import delivered
from jaxdistill.versions import source_digest

CHUNK = 8192
"""Sentences in memory at a time; enough of them that grouping by length leaves little padding."""
FORMATS = (".npy", ".parquet")
CHUNK_HELP = "split texts at sentence ends into passages of at most this many tokens, special ones and prompt included"


class Written(NamedTuple):
    """Counts of a finished file of vectors."""

    sentences: int
    """Or passages."""
    truncated: int
    """Sentences that were longer than the model reads."""
    cut: int
    """Tokens beyond that length, not among `tokens`."""
    unknown: int
    """Tokens that stand for text which the tokenizer does not know."""
    tokens: int

    def loss(self, longest: int, *, chunk_tokens: int = 0) -> str:
        """A line that says how much was cut, and which option avoids it; empty if nothing was.

        Args:
          longest: tokens that the model reads of a text.
          chunk_tokens: of the passages; 0: the texts were whole.
        """
        if not self.truncated:
            return ""
        share, whole = self.truncated / self.sentences, self.tokens + self.cut
        option = f"a --chunk_tokens below {chunk_tokens}" if chunk_tokens else f"--chunk_tokens={longest}"
        return (
            f"{self.truncated:,} of {self.sentences:,} texts ({share:.1%}) are longer than {longest:,} tokens; their ends are "
            f"cut, {self.cut:,} of {whole:,} tokens ({self.cut / whole:.1%}); {option} keeps them as passages"
        )


def encode_file(
    embedder: Embedder,
    specs: Sequence[str],
    output: str | Path,
    *,
    column: str = TEXT,
    prompt: str | None = None,
    role: str = "",
    keep_text: bool = False,
    chunk_tokens: int = 0,
    progress: bool = True,
    chunk: int = CHUNK,
    shared: bool = True,
) -> Written:
    """Writes float32 vectors of shape [sentences, width]; resumes an earlier call that was killed.

    Args:
      specs: the text, as for training.
      output: a `.npy` or `.parquet` file, which gets its name when it is complete.
      column: of a table, that holds the sentences.
      prompt: name of one of the model's prompts; None: its default one.
      role: `query` or `document`, whose prompt is used instead; empty: no role.
      keep_text: write the sentences beside their vectors; for `.parquet`.
      chunk_tokens: above 0, for `.parquet`: encode passages of at most so many tokens, special tokens and prompt included,
        and write their text, the id of their whole text and their place in it.
      chunk: sentences that are computed together; what a killed call repeats at most.
      shared: whether all processes of a run see the folder of `output`; otherwise the first one writes it alone.

    Raises:
      InputError: text that cannot be read, an output that cannot be written, or a vector that is not finite.
    """
    output = local(output, "--output")
    if output.suffix not in FORMATS:
        raise InputError(f"--output={output} must end in {' or '.join(FORMATS)}.")
    if (keep_text or chunk_tokens) and output.suffix != ".parquet":
        option = "--keep_text" if keep_text else f"--chunk_tokens={chunk_tokens}"
        raise InputError(f"{option} needs a table: --output={output.with_suffix('.parquet')}.")
    if output.is_dir() or is_special(output):
        raise InputError(f"--output={output} is a {'folder' if output.is_dir() else 'device or pipe'}; name a file.")
    prefix = embedder.prefix(prompt, role)  # refuses an unknown prompt or a cross-encoder before the text is read
    text = Corpus(specs, column, chunking_for(embedder, chunk_tokens, prefix) if chunk_tokens else None)
    with processes.agreed() as origin:
        origin |= origin_of(embedder, text, column=column, prefix=prefix, chunk=chunk)
    refuse_overwriting(output, local_files(specs))
    output = without_links(output)
    unfinished = output.with_name(f"{output.name}.partial")
    _refuse_others_file(unfinished)
    vectors = vectors_of_text(embedder, text, unfinished, origin, progress=progress, shared=shared)
    if vectors.file:
        _finish(vectors.file, output, text, keep_text=keep_text or chunk_tokens > 0)
    return written(processes.gathered(dict(vectors.file.counts) if vectors.file else {})[0])


def written(counts: Mapping[str, int]) -> Written:
    """The totals that the note of a file of vectors has."""
    return Written(*(counts.get(name, 0) for name in ("rows", *Written._fields[1:])))


def chunking_for(embedder: Embedder, chunk_tokens: int, prefix: str) -> Chunking:
    """How texts are split into passages for a model, as `data.chunk_tokens` splits them; InputError if it cannot read them.

    Args:
      chunk_tokens: of a passage, with special tokens and `prefix`, the prompt before each.
    """
    model = embedder.model
    around = tokens_around(model.tokenizer, [prefix])
    if not around < chunk_tokens <= model.max_length:
        raise InputError(
            f"--chunk_tokens={chunk_tokens} must be from {around + 1}, one token beside the special tokens and the prompt, to "
            f"{model.max_length}, what {model.source} reads."
        )
    return Chunking(tokenizer=model.tokenizer, most=chunk_tokens - around)


def _finish(vectors: VectorFile, output: Path, text: Corpus, *, keep_text: bool) -> None:
    """Gives the complete file its name and form."""
    try:
        if output.suffix == ".parquet":
            _as_table(vectors, output, text, (*text.kept, *(TEXT,) * keep_text))
        else:
            vectors.path.replace(output)
        vectors.file.note.unlink()
    except OSError as error:
        raise unwritable(output, error) from error


def _refuse_others_file(partial: Path) -> None:
    """Raises `InputError` if there is a file under the name for unfinished rows that this program did not write."""
    if partial.is_file() and partial.stat().st_size and note_of(partial) is None:
        raise InputError(f"{partial} exists without a valid note; move it, or choose another --output.")


def _as_table(vectors: VectorFile, output: Path, text: Corpus, columns: Sequence[str]) -> None:
    """Parquet cannot be continued after a kill, so that the table is written in one go, from the finished rows."""
    table = output.with_name(f".{output.name[:40]}.{os.getpid()}.unfinished")
    try:
        rows = ([getattr(passage, name) for name in columns] for passage in text.passages())
        write_parquet(table, vectors.path, columns, rows)
        text.check()
        table.replace(output)
    finally:
        table.unlink(missing_ok=True)
    vectors.path.unlink()


def origin_of(
    embedder: Embedder, text: Corpus, *, column: str = TEXT, prefix: str = "", chunk: int = CHUNK
) -> dict[str, object]:
    """Everything that determines the vectors, except the devices."""
    found: dict[str, object] = {
        "model": embedder.model.digest(),
        "max_length": embedder.model.max_length,
        "prompt": prefix,
        "input": text.digest,
        "column": column,
        "batch_size": embedder.batch_size,
        "precision": embedder.compute_dtype.name,
        "chunk": chunk,
    }
    return found | ({"passage_tokens": text.chunking.most} if text.chunking else {})


def vectors_of_text(
    embedder: Embedder,
    text: Watched,
    path: Path,
    origin: Mapping[str, Any],
    *,
    progress: bool = True,
    shared: bool = True,
) -> spread.Opened:
    """The vectors of all sentences, complete, in the `.npy` file `path`; what it already holds is kept.

    The processes of a run compute a part each.

    Args:
      shared: as in `encode_file`.
      origin: of `origin_of`. It holds the options too: what determines the vectors and what is computed are one.

    Raises:
      InputError: the text changed meanwhile, or the processes do not share the folder.
    """

    def open_file() -> VectorFile:
        return VectorFile(path, origin, rows=sum(1 for _ in text.rows()), width=embedder.width)

    found = spread.opened(open_file, path.parent if shared else None)
    if shared and not found.shared:
        raise InputError(f"{path.parent} must be on a file system that all processes share; choose another --output.")
    with Interrupts() as interrupts, progress_bar(found.rows, "sentences", shown=progress) as bar:

        def advance(rows: int) -> None:
            bar.update(rows)
            if interrupts.status:
                done = f"{found.written:,} of {found.rows:,} sentences are done"
                raise Interrupted(interrupts.status, f": {done}; give the same command again to go on")

        advance(found.done)
        # All but the last chunk are of one size, and a batch holds rows of one chunk: a resumed run computes the same.
        rest = islice(_texts(text), found.done, None)
        chunks = iter(lambda: list(islice(rest, origin["chunk"])), [])
        compute = partial(_block, embedder, text, origin["prompt"], unknown_id(embedder.model.tokenizer), advance)
        for number, block in enumerate(spread.in_turns(chunks, compute, found)):
            found.append(block)
            if number % processes.count():  # another process's
                advance(len(block.vectors))
    if found.file:
        _check_complete(found.file, text)
    return found


def _block(
    embedder: Embedder,
    text: Watched,
    prompt: str,
    unknown: int | None,
    advance: Callable[[int], None],
    sentences: Sequence[str],
) -> spread.Block:
    """The vectors of a chunk of sentences."""
    encodings = embedder.model.encodings([prompt + sentence for sentence in sentences])
    ids = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
    vectors = embedder.encode_ids(ids, advance=advance)
    text.check()
    counts = {
        "truncated": sum(bool(encoding.overflowing) for encoding in encodings),
        "cut": sum(
            len(part) - sum(part.special_tokens_mask) for encoding in encodings for part in encoding.overflowing
        ),
        "unknown": sum(int((row == unknown).sum()) for row in ids),
        "tokens": sum(map(len, ids)),
    }
    return spread.Block(vectors, counts)


def _check_complete(vectors: VectorFile, text: Watched) -> None:
    """Raises `InputError`, and removes the vectors, if the text changed meanwhile."""
    try:
        text.check_content()
        if not vectors.complete:
            raise InputError(
                f"the text has {vectors.done:,} rows now, and had {vectors.rows:,}; give the same command again."
            )
    except InputError:
        vectors.discard()
        raise


def _texts(text: Watched) -> Iterator[str]:
    return (sentence for (sentence,) in text.rows())


def sentences(specs: Sequence[str], column: str) -> Iterator[str]:
    """Yields the texts of all rows."""
    return (text for (text,) in read(specs, {TEXT: column}))


@in_python_words()
def encode_text(
    model: str | Path,
    text: Text,
    *,
    output: str | Path = "",
    keep_text: bool = False,
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
    """The vectors of a text, a row for each sentence, also for an empty one. `jaxdistill.encode` is this function.

    >>> jaxdistill.encode(TEACHER, ["A cat sleeps.", "It rains."]).shape
    (2, 16)

    Args:
      model: folder, `package:NAME/PATH` or hub name.
      text: strings, a column or a table, or a source of text as for training.
      output: a `.npy` or `.parquet` file to write, in bounded memory and resumable; empty: none. The vectors of a `.npy` file are
        mapped, those of a `.parquet` file read.
      keep_text: write the sentences beside their vectors, into a `.parquet` file.
      column: of the sentences in a table.
      prompt_name, role: name of a prompt, or `query` or `document`; empty: the model's default prompt.
      pooling, max_length, batch_size, precision, parts: as for `jaxdistill.load`.
      show_progress_bar: show a bar.
    """
    arguments = locals()
    specs = sources_of(text, {TEXT: column})
    with tempfile.TemporaryDirectory() as folder:
        path = local(output, "output") if output else Path(folder, "vectors.npy")
        given = options_of_call(_parser(), arguments | {"text": specs, "output": path}, repeated=["input"])
        _written(load(given.model, **reading_options(given)), given, path)
        if path.suffix == ".npy":
            return np.load(path, mmap_mode="r" if output else None)
        return np.concatenate(list(blocks(path)))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.encode`."""
    given = _parser().parse_args(arguments)
    with processes.joined(lambda: _facts(given)):
        _encode(given)


def _facts(given: argparse.Namespace) -> Mapping[str, object]:
    """What the processes of a run must have alike from the start."""
    asked = {name: value for name, value in vars(given).items() if name != "quiet"}
    output = given.output if is_remote(given.output) else os.path.abspath(given.output)
    return {"jaxdistill": source_digest()[:12]} | asked | {"output": output}


def _encode(given: argparse.Namespace) -> None:
    """Writes the file, and prints what it holds."""
    refuse_unread(given.column, given.input, "--column")
    embedder = load(given.model, **reading_options(given))
    shared = processes.count() == 1 or not is_remote(given.output)
    with delivered(given.output, upload=processes.is_first()) as output:
        counts = _written(embedder, given, output, shared=shared)
    if not processes.is_first():
        return
    print(
        f"{given.output}: {counts.sentences:,} vectors of {embedder.width} numbers, float32, "
        f"multiplied in {embedder.compute_dtype.name}"
    )
    print(f"{counts.unknown / max(counts.tokens, 1):.2%} of {counts.tokens:,} tokens are unknown to the tokenizer")
    if loss := counts.loss(embedder.model.max_length, chunk_tokens=given.chunk_tokens):
        print(loss)


def _written(embedder: Embedder, given: argparse.Namespace, output: str | Path, *, shared: bool = True) -> Written:
    return encode_file(
        embedder,
        given.input,
        output,
        column=given.column,
        prompt=given.prompt or None,
        role=given.role,
        keep_text=given.keep_text,
        chunk_tokens=given.chunk_tokens,
        progress=not given.quiet and processes.is_first(),
        shared=shared,
    )


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.encode", description=__doc__)
    parser.add_argument("--model", required=True, help="folder, package:NAME/PATH or hub name")
    parser.add_argument(
        "--input",
        required=True,
        action="append",
        help="text as for training: file, glob, files:FOLDER, hf:...; repeatable",
    )
    parser.add_argument("--output", type=any_path, required=True, help="the .npy or .parquet file to write")
    parser.add_argument(
        "--keep_text", action="store_true", help="also write the sentences, as the column text of a .parquet file"
    )
    parser.add_argument("--chunk_tokens", type=positive, default=0, help=CHUNK_HELP + "; for .parquet")
    parser.add_argument("--column", default=TEXT, help="column of the sentences in a table; default: text")
    parser.add_argument(
        "--prompt", default="", help="name of a prompt of the checkpoint, or none; default: the checkpoint's default"
    )
    parser.add_argument("--role", default="", choices=list(ROLES), help="prepend the checkpoint's prompt for this role")
    add_reading_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


make_callable(__name__, encode_text)

if __name__ == "__main__":
    run(main)
