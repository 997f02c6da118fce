"""Encodes a text into a file of vectors: one row for each sentence or passage, in bounded memory, resumable."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdistill import processes
from jaxdistill.bars import progress_bar
from jaxdistill.cli import Interrupted, Interrupts
from jaxdistill.core import InputError
from jaxdistill.data import spread
from jaxdistill.data.chunks import Chunking, tokens_around
from jaxdistill.data.passages import Corpus
from jaxdistill.data.sources import TEXT, Watched, local_files, read
from jaxdistill.data.vectors import VectorFile, note_of, write_parquet
from jaxdistill.files import is_special, local, refuse_overwriting, unwritable, without_links
from jaxdistill.inference import Embedder
from jaxdistill.ops.unknown import unknown_id

CHUNK = 8192
"""Sentences in memory at a time; enough of them that grouping by length leaves little padding."""
FORMATS = (".npy", ".parquet")


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
    prompt_name: str | None = None,
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
      prompt_name: of one of the model's prompts; None: its default one.
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
    prefix = embedder.prefix(prompt_name, role)  # refuses an unknown prompt or a cross-encoder before the text is read
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
            f"{model.max_length}, what {model.source} reads; --max_length lets a model read more, up to its positions."
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
