"""Finds the sentences of a text that are nearest to a query, by exact search in bounded memory.

  python -m jaxdistill.search --model=runs/l3/export --corpus=sentences.txt --query="A cat sleeps." --query="Rain."
  python -m jaxdistill.search --model=runs/l3/export --corpus=text.parquet --vectors=text.parquet --queries=queries.txt
  python -m jaxdistill.search --model=runs/l3/export --corpus_model=TEACHER --corpus=sentences.txt --query="Rain."

Prints a table per query: rank, cosine similarity, row of the corpus counted from 1 (the line of a .txt file), sentence.

The corpus's vectors are read from a file that `jaxdistill.encode` wrote (`--vectors`), or computed and cached for the
next search. With `--corpus_model`, another model encodes the corpus than the queries, so that a small student can
search its teacher's index, as in LEAF (arXiv 2509.12539).
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.cli import Parser, add_reading_options, any_path, reading_options, run
from jaxdistill.core import InputError
from jaxdistill.data.sources import TEXT, Watched, refuse_unread
from jaxdistill.data.vectors import blocks, shape
from jaxdistill.encode import origin_of, sentences, vectors_of_text
from jaxdistill.evals.similarity import unit_vectors
from jaxdistill.inference import Embedder, load
from jaxdistill.ops.nearest import cosines_of_pairs, nearest
from jaxdistill.paths import cache_folder, fetched
from jaxdistill.reporting.hits import LINE_WIDTH, Hit, hits_table
from jaxdistill.reporting.tables import as_text

TOP = 10
"""Default number of sentences shown per query."""
COMPARED = 8
"""Stored vectors that are compared with those of the model."""
ALIKE = 0.99
"""Lowest cosine of two vectors that one model gives a sentence, in any precision."""


def search(
    queries: Float[np.ndarray, "q e"], vectors: Path, specs: Sequence[str], *, column: str = TEXT, top: int
) -> list[list[Hit]]:
    """The `top` nearest sentences of each query, best first; of equally near ones the first.

    Args:
      queries: their vectors, of any length above 0.
      vectors: a `.npy` or `.parquet` file with one vector for each row of the corpus.
      specs: the corpus, as text for training is given.
      column: of a table, that holds the sentences.
    """
    cosines, rows = nearest(queries, blocks(vectors), count=top)
    wanted = set(rows.flat)
    found = {row: text for row, text in enumerate(sentences(specs, column)) if row in wanted}
    if wanted - found.keys():
        raise InputError(f"{', '.join(specs)} has fewer rows than it has vectors; give the vectors of this very text.")
    return [
        [Hit(float(cosine), int(row), found[row]) for cosine, row in zip(*ranked, strict=True)]
        for ranked in zip(cosines, rows, strict=True)
    ]


def corpus_vectors(embedder: Embedder, specs: Sequence[str], *, column: str, prefix: str, progress: bool) -> Path:
    """The file with the corpus's vectors in the cache folder, made where it is not there or not complete."""
    text = Watched(specs, {TEXT: column})
    origin = origin_of(embedder, text, column=column, prefix=prefix)
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:32]
    return vectors_of_text(embedder, text, cache_folder() / "vectors" / f"{digest}.npy", origin, progress=progress).path


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.search`."""
    given = _parser().parse_args(arguments)
    queries = [*given.query, *(sentences([given.queries], TEXT) if given.queries else [])]
    if not queries or not all(query.strip() for query in queries):
        raise InputError("a query is empty or missing; give --query=TEXT or --queries=FILE, a query a line.")
    if given.vectors and (given.corpus_model or given.corpus_prompt):
        raise InputError(
            "--vectors excludes --corpus_model and --corpus_prompt, because the corpus is encoded already; drop either side."
        )
    if given.top is not None and given.top < 1:
        raise InputError(f"--top={given.top} must be at least 1.")
    refuse_unread(given.column, given.corpus, "--column")
    embedder = load(given.model, **reading_options(given))
    asked = unit_vectors(partial(embedder.encode, **_reads_as(given.prompt, "query")), queries)
    vectors = fetched(given.vectors) if given.vectors else _computed(embedder, given)
    rows, width = shape(vectors)
    if given.vectors:
        _check_corpus(vectors, rows, given.corpus, given.column)
    _check_width(width, embedder, given)
    if given.vectors:
        _note_other_reading(embedder, vectors, given)
    if given.top is not None and given.top > rows:
        raise InputError(f"--top={given.top} is more than the corpus has: {rows:,} rows; give {rows:,} or fewer.")
    top = min(TOP, rows) if given.top is None else given.top
    found = search(asked, vectors, given.corpus, column=given.column, top=top)
    for query, hits in zip(queries, found, strict=True):
        print(as_text(hits_table(query, hits), width=LINE_WIDTH) + "\n")


def _computed(embedder: Embedder, given) -> Path:
    own = {"batch_size": given.batch_size, "precision": given.precision}
    reader = load(given.corpus_model, **own) if given.corpus_model else embedder
    _check_width(reader.width, embedder, given)  # before hours of work
    return corpus_vectors(
        reader,
        given.corpus,
        column=given.column,
        prefix=reader.prefix(**_reads_as(given.corpus_prompt, "document")),
        progress=not given.quiet,
    )


def _reads_as(prompt: str, role: str) -> dict[str, str]:
    """How a model reads sentences: behind a prompt by its name, or behind the prompt of a role."""
    return {"prompt": prompt} if prompt else {"role": role}


def _check_corpus(vectors: Path, rows: int, specs: Sequence[str], column: str) -> None:
    """Refuses vectors of another text: of another number of rows or, where their file has its sentences, with
    others."""
    count = sum(1 for _ in sentences(specs, column))
    if rows != count:
        raise InputError(f"{vectors} has {rows:,} rows, the corpus {count:,}; give the vectors of this very text.")
    pairs = zip(_kept_sentences(vectors), sentences(specs, column), strict=False)
    for row, (kept, text) in enumerate(pairs, start=1):
        if kept != text:
            raise InputError(
                f"{vectors} row {row:,} is of {kept!r:.40}, that of the corpus is {text!r:.40}; "
                "give the vectors of this very text."
            )


def _note_other_reading(embedder: Embedder, vectors: Path, given) -> None:
    """Prints a note if `--model` gives the first sentences other vectors than the file has; a student may search the
    index of its teacher."""
    stored = next(blocks(vectors))[:COMPARED]
    own = embedder.encode(list(islice(sentences(given.corpus, given.column), len(stored))), role="document")
    rows = np.flatnonzero(own.any(axis=1) | stored.any(axis=1))
    cosines = cosines_of_pairs(own, stored, rows, rows)
    if len(rows) and cosines.min() < ALIKE:
        print(
            f"note: of the first {len(rows)} vectors of {given.vectors}, one has cosine {cosines.min():.2f} with that of "
            f"{given.model} behind its prompt for documents; give the model and --max_length of encode, with --role=document.",
            file=sys.stderr,
        )


def _kept_sentences(vectors: Path) -> Iterator[str]:
    """Yields the sentences that a table holds beside its vectors, if it has any."""
    from pyarrow import parquet  # imported here: only tables need it

    if vectors.suffix == ".parquet" and TEXT in parquet.read_schema(vectors).names:
        yield from sentences([str(vectors)], TEXT)


def _check_width(width: int, embedder: Embedder, given) -> None:
    if width != embedder.width:
        raise InputError(
            f"{given.vectors or given.corpus_model} gives vectors of {width} numbers, {given.model} of {embedder.width}; "
            f"both must be in one space, such as a student that keeps its head and its teacher."
        )


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.search", description=__doc__)
    parser.add_argument(
        "--model", required=True, help="model that encodes the queries: folder, package:NAME/PATH or hub name"
    )
    parser.add_argument(
        "--corpus",
        required=True,
        action="append",
        help="text as for training: file, glob, hf:..., tfds:...; repeatable",
    )
    parser.add_argument("--query", action="append", default=[], help="a query; repeatable")
    parser.add_argument("--queries", default="", help="file of queries: one per line, or a table with the column text")
    parser.add_argument("--top", type=int, help=f"sentences shown per query; default: {TOP}, or all if there are fewer")
    parser.add_argument(
        "--vectors",
        type=any_path,
        default="",
        help="file of the corpus's vectors that jaxdistill.encode wrote, .npy or .parquet",
    )
    parser.add_argument(
        "--corpus_model",
        default="",
        help="model that encodes the corpus, with its own pooling and length; default: --model",
    )
    parser.add_argument("--column", default=TEXT, help="column of the corpus's sentences in a table; default: text")
    parser.add_argument(
        "--prompt", default="", help="name of a prompt of --model for the queries, or none; default: query"
    )
    parser.add_argument("--corpus_prompt", default="", help="the same for the corpus; default: document")
    add_reading_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


if __name__ == "__main__":
    run(main, outlives_reader=False)
