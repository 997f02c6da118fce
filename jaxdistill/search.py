"""Finds the sentences or passages of a text that are nearest to a query, by exact search in bounded memory.

  python -m jaxdistill.search --model=runs/l3/export --corpus=sentences.txt --query="A cat sleeps." --query="Rain."
  python -m jaxdistill.search --model=runs/l3/export --corpus=text.parquet --vectors=text.parquet --queries=queries.txt
  python -m jaxdistill.search --model=runs/l3/export --corpus_model=TEACHER --corpus=sentences.txt --query="Rain."
  python -m jaxdistill.search --model=runs/l3/export --vectors=index.parquet --queries=queries.jsonl --output=run.trec

Prints a table per query: rank, cosine similarity, id or row of the corpus counted from 1 (the line of a .txt file),
sentence. `--output` writes a file instead: an object for each hit (.jsonl), or a run file for trec_eval (.trec).
An id is the column `_id` or `id`, or a file's path in `files:FOLDER`.

`--chunk_tokens`, or vectors that `jaxdistill.encode` wrote with it, search in passages: a text is as near as its nearest
passage, which is shown.

The corpus's vectors come from a file by `jaxdistill.encode` (`--vectors`), or are computed and cached for the next search. If
encode cut them with `--dims`, give the same `--dims` here. Binary vectors give four candidates per hit by Hamming distance,
which the float query re-ranks (`--rescore=N`). `--full_vectors=FILE`, another output of encode, re-ranks the candidates of any
small form.

`--corpus_model` names another model that encodes the corpus, so that a small student can search its teacher's index, as in
LEAF (arXiv 2509.12539).
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, any_path, positive, reading_options, run
from jaxdistill.core import InputError, Precision, refuse
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.passages import Passage, holds_passages, kept_passages, passages, texts_of_passages
from jaxdistill.data.sources import TEXT, local_files, refuse_unread
from jaxdistill.data.vectors import columns_beside, shape, source
from jaxdistill.encode import CHUNK_HELP
from jaxdistill.evals.similarity import unit_vectors
from jaxdistill.files import buckets, is_remote, refuse_overwriting
from jaxdistill.inference import Embedder, load
from jaxdistill.inference.index import RESCORE, check_full, corpus_vectors, likeness, nearest_stored
from jaxdistill.inference.sentences import checked_sentences
from jaxdistill.inference.to_file import sentences
from jaxdistill.paths import delivered, fetched, fetched_folder
from jaxdistill.reporting.hits import LINE_WIDTH, Hit, checked_format, hits_table, write_hits
from jaxdistill.reporting.tables import as_text

TOP = 10
"""Default number of sentences shown per query."""


def search(
    queries: Float[np.ndarray, "q e"],
    vectors: Path,
    specs: Sequence[str],
    *,
    column: str = TEXT,
    top: int,
    rescore: int = RESCORE,
    full: Path | None = None,
    dot: bool = False,
) -> list[list[Hit]]:
    """The `top` nearest texts to each query, best first, ties by row. A text in passages counts by its nearest passage.

    Args:
      queries: the queries' vectors, of any length above 0.
      vectors: a `.npy` or `.parquet` file, or a folder of parts, with one vector per row of the corpus, or per passage.
      specs: the corpus, as text for training is given; a table of passages has its own text.
      column: column of the sentences in a table.
      rescore, full, dot: as in `nearest_stored`.
    """
    split = holds_passages(vectors)
    groups = texts_of_passages(vectors) if split else None
    cosines, rows = nearest_stored(queries, vectors, count=top, rescore=rescore, full=full, groups=groups, dot=dot)
    wanted, texts = set(rows.flat), kept_passages(vectors) if split else passages(specs, column)
    of_rows = {row: passage for row, passage in enumerate(texts) if row in wanted}
    if wanted - of_rows.keys():
        raise InputError(f"{', '.join(specs)} has fewer rows than vectors; give the vectors of exactly this text.")
    return [
        [_hit(float(cosine), int(row), of_rows[row], split=split) for cosine, row in zip(*ranked, strict=True)]
        for ranked in zip(cosines, rows, strict=True)
    ]


def _hit(cosine: float, row: int, passage: Passage, *, split: bool) -> Hit:
    return Hit(cosine, row, passage.text, passage.id, span=(passage.start, passage.end) if split else None)


def _note(line: str) -> None:
    if line:
        print(f"note: {line}", file=sys.stderr)


@in_python_words()
def search_text(
    model: str | Path,
    corpus: Text,
    query: str | Iterable[str],
    *,
    top: int | None = None,
    vectors: str | Path = "",
    dims: int = 0,
    rescore: int = RESCORE,
    full_vectors: str | Path = "",
    corpus_model: str | Path = "",
    chunk_tokens: int = 0,
    column: str = TEXT,
    prompt_name: str = "",
    corpus_prompt_name: str = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    parts: str | Path | Sequence[str | Path] = "",
    show_progress_bar: bool = False,
) -> list[list[Hit]]:
    """The nearest sentences to each query, best first: `cosine`, `row` from 0 and `sentence`. `jaxdistill.search` is this function.

    >>> [hits] = jaxdistill.search(TEACHER, ["It rains.", "A cat sleeps.", "The sun is out."], "A cat sleeps.", top=2)
    >>> hits[0].row, hits[0].sentence
    (1, 'A cat sleeps.')

    Args:
      model: the model that encodes the queries: folder, `package:NAME/PATH` or hub name.
      corpus: strings, a column or a table, or a source of text as for training; its vectors are kept in the cache folder.
      query: one query, or several.
      top: sentences per query; None: 10, or all if there are fewer.
      vectors: the corpus's vectors, written by `jaxdistill.encode`, instead of computing them.
      dims: dimensions of these vectors, if `encode` cut them; 0: all of the model's.
      rescore: candidates per hit to re-rank, for binary vectors or with `full_vectors`; 0: none.
      full_vectors: the corpus's vectors at full width, which re-rank the candidates.
      corpus_model: the model that encodes the corpus; empty: `model`.
      chunk_tokens: above 0: search passages of at most this many tokens; a hit then has the `id` of its text and its `span`.
      column: column of the corpus's sentences in a table.
      prompt_name, corpus_prompt_name: prompt of a query and of a sentence, or `none`; empty: their roles' prompts.
      pooling, max_length, batch_size, precision, parts: as for `jaxdistill.load`.
      show_progress_bar: show a bar while the corpus is encoded.
    """
    arguments = locals()
    queries = checked_sentences([query] if isinstance(query, str) else query, "query")
    if not queries or not all(one.strip() for one in queries):
        raise InputError(f"query is empty or missing; give a string, or several: {query!r:.60}.")
    arguments |= {"corpus": sources_of(corpus, {TEXT: column}, argument="corpus"), "query": queries}
    given = options_of_call(_parser(), arguments, repeated=("corpus", "query"))
    return _found(given, _queries(given.query, ""))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.search`."""
    given = _parser().parse_args(arguments)
    queries = _queries(given.query, given.queries)
    answers = _found(given, queries)
    if given.output:
        with delivered(given.output) as output:
            write_hits(Path(output), queries, answers)
        print(f"{given.output}: {sum(map(len, answers)):,} hits of {len(queries):,} queries")
        return
    for query, hits in zip(queries.values(), answers, strict=True):
        print(as_text(hits_table(query, hits), width=LINE_WIDTH) + "\n")


def _found(given: argparse.Namespace, queries: Mapping[str, str]) -> list[list[Hit]]:
    """The nearest sentences to each query."""
    _check_options(given)
    embedder = load(given.model, **reading_options(given))
    asked = unit_vectors(partial(embedder.encode, **_reads_as(given.prompt, "query")), list(queries.values()))
    vectors, loss = (_stored(given.vectors), "") if given.vectors else _computed(embedder, given)
    rows, width = shape(vectors)
    specs, column = _corpus(vectors, rows, given) if given.vectors else (given.corpus, given.column)
    _check_width(width, embedder, given)
    full = _stored(given.full_vectors) if given.full_vectors else None
    if full:
        check_full(full, rows, embedder.width)
    if given.vectors:
        _note_other_reading(embedder, vectors, given, specs, column=column)
    if given.top is not None and given.top > rows:
        raise InputError(f"--top={given.top} is more than the corpus has: {rows:,} rows; give {rows:,} or fewer.")
    top = min(TOP, rows) if given.top is None else given.top
    for line in (_loss_of_queries(embedder, given.prompt, list(queries.values())), loss):
        _note(line)
    dot = embedder.model.definition.similarity == "dot"
    return search(asked, vectors, specs, column=column, top=top, rescore=given.rescore, full=full, dot=dot)


def _stored(vectors: str) -> Path:
    """The local file or folder of stored vectors."""
    if is_remote(vectors) and vectors.endswith("/"):
        return buckets.fetched_folder(vectors, fetched_folder(), ("*",))
    return fetched(vectors)


def _queries(given: Sequence[str], file: str) -> dict[str, str]:
    """Maps ids to texts. Ids come from the file if it holds all queries and has ids; otherwise they count from 1."""
    read = list(passages([file])) if file else []
    if empty := [row for row, query in enumerate(read, start=1) if not query.text.strip()]:
        raise InputError(
            f"{file}: row {empty[0]:,} has no query; remove it ({len(empty):,} of {len(read):,} are empty)."
        )
    texts = [*given, *(query.text for query in read)]
    if not texts or not all(text.strip() for text in texts):
        raise InputError("a query is empty or missing; give --query=TEXT or --queries=FILE, one query per line.")
    names = list(map(str, range(1, len(texts) + 1))) if given else [query.id for query in read]
    named = dict(zip(names, texts, strict=True))
    if len(named) < len(names):
        raise InputError(
            f"{file} gives {len(names):,} queries only {len(named):,} different ids; each query needs its own."
        )
    return named


def _check_options(given) -> None:
    """Raises `InputError` for options that exclude or need each other, before a model is loaded."""
    refuse([
        (given.vectors and (given.corpus_model or given.corpus_prompt or given.chunk_tokens),
         "--vectors excludes --corpus_model, --corpus_prompt and --chunk_tokens, because the corpus is already encoded; leave out "
         "either side."),
        (not given.vectors and not given.corpus,
         "no text to search in; give --corpus=TEXT, or --vectors=FILE written by encode --keep_text."),
        (not given.vectors and (given.dims or given.full_vectors),
         "--dims and --full_vectors are for stored vectors; give --vectors=FILE too, or leave them out."),
        (given.rescore < 0, f"--rescore={given.rescore} must be at least 0, which re-ranks no candidate."),
        (given.full_vectors and not given.rescore,
         "--rescore=0 re-ranks no candidate, so --full_vectors has no effect; leave out one of them."),
        (given.top is not None and given.top < 1, f"--top={given.top} must be at least 1."),
    ])  # fmt: skip
    if given.corpus:
        refuse_unread(given.column, given.corpus, "--column")
    if given.output:
        checked_format(Path(given.output))
        refuse_overwriting(Path(given.output), local_files([*given.corpus, *filter(None, [given.queries])]))


def _loss_of_queries(embedder: Embedder, prompt: str, queries: Sequence[str]) -> str:
    prefix = embedder.prefix(**_reads_as(prompt, "query"))
    longer = sum(
        bool(encoding.overflowing) for encoding in embedder.model.encodings([prefix + query for query in queries])
    )
    longest = embedder.model.max_length
    return f"{longer:,} of {len(queries):,} queries are longer than {longest:,} tokens and cut" if longer else ""


def _corpus(vectors: Path, rows: int, given) -> tuple[Sequence[str], str]:
    """Sources and column of the text that belongs to stored vectors: the corpus, or the table of the vectors."""
    if not given.corpus:
        if TEXT not in columns_beside(vectors):
            raise InputError(f"{given.vectors} has no text; give its --corpus, or write it with encode --keep_text.")
        return [source(vectors)], TEXT
    if holds_passages(vectors):
        raise InputError(f"{given.vectors} has passages with their text; leave out --corpus.")
    _check_corpus(vectors, rows, given.corpus, given.column)
    return given.corpus, given.column


def _computed(embedder: Embedder, given) -> tuple[Path, str]:
    own = {"batch_size": given.batch_size, "precision": given.precision}
    reader = load(given.corpus_model, **own) if given.corpus_model else embedder
    _check_width(reader.width, embedder, given)  # before hours of work
    return corpus_vectors(
        reader,
        given.corpus,
        column=given.column,
        reads_as=_reads_as(given.corpus_prompt, "document"),
        chunk_tokens=given.chunk_tokens,
        progress=not given.quiet,
    )


def _reads_as(prompt: str, role: str) -> dict[str, str]:
    """The argument that selects the prompt of a model's sentences, by name or by role."""
    return {"prompt_name": prompt} if prompt else {"role": role}


def _check_corpus(vectors: Path, rows: int, specs: Sequence[str], column: str) -> None:
    """Raises `InputError` for vectors of another text: with another number of rows, or with other sentences in their file."""
    count = sum(1 for _ in sentences(specs, column))
    if rows != count:
        raise InputError(f"{vectors} has {rows:,} rows, the corpus {count:,}; give the vectors of exactly this text.")
    beside = sentences([source(vectors)], TEXT) if TEXT in columns_beside(vectors) else ()
    for row, (kept, text) in enumerate(zip(beside, sentences(specs, column), strict=False), start=1):
        if kept != text:
            raise InputError(
                f"{vectors} row {row:,} is {kept!r:.40}, but the corpus has {text!r:.40}; "
                "give the vectors of exactly this text."
            )


def _note_other_reading(embedder: Embedder, vectors: Path, given, specs: Sequence[str], column: str) -> None:
    """Prints a note if `--model` gives other vectors for the first sentences than the file has; not an error, because a student
    may search its teacher's index."""
    compared, cosine = likeness(embedder, vectors, sentences(specs, column), is_cut=bool(given.dims))
    if cosine is not None:
        _note(
            f"of the first {compared} vectors of {given.vectors}, one has cosine {cosine:.2f} with the vector of "
            f"{given.model} with its prompt for documents; give the model and --max_length of encode, with --role=document."
        )


def _check_width(width: int, embedder: Embedder, given) -> None:
    if width != (given.dims or embedder.width):
        raise InputError(
            f"{given.vectors or given.corpus_model} gives vectors of {width} numbers, {given.model} of {embedder.width}; "
            f"both must share a space, such as a student that keeps its head and its teacher; for vectors that encode cut, give "
            f"the same --dims."
        )


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.search", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="model that encodes the queries: folder, package:NAME/PATH or hub name")
    corpus = "text as for training: file, glob, files:FOLDER, hf:...; repeatable; default: the text in --vectors"
    add("--corpus", action="append", default=[], help=corpus)
    add("--query", action="append", default=[], help="a query; repeatable")
    add("--queries", default="", help="file of queries: one per line, or a table with the column text")
    add("--chunk_tokens", type=positive, default=0, help=CHUNK_HELP)
    add("--output", type=any_path, default="", help="write .jsonl, or .trec for trec_eval, instead of printing tables")
    add("--top", type=int, help=f"sentences shown per query; default: {TOP}, or all if there are fewer")
    vectors = "the corpus's vectors that jaxdistill.encode wrote: .npy, .parquet, or a folder of parts, DIR/"
    add("--vectors", type=any_path, default="", help=vectors)
    add("--dims", type=positive, default=0, help="dimensions of the --vectors, if encode cut them")
    rescore = f"candidates per hit to re-rank, for binary --vectors; 0: none; default: {RESCORE}"
    add("--rescore", type=int, default=RESCORE, help=rescore)
    add("--full_vectors", type=any_path, default="", help="vectors of the same text that re-rank the candidates")
    corpus_model = "model that encodes the corpus, with its own pooling and length; default: --model"
    add("--corpus_model", default="", help=corpus_model)
    add("--column", default=TEXT, help="column of the corpus's sentences in a table; default: text")
    add("--prompt", default="", help="name of a prompt of --model for the queries, or none; default: query")
    add("--corpus_prompt", default="", help="the same for the corpus; default: document")
    add_reading_options(parser)
    add("--quiet", action="store_true", help="no progress bar")
    return parser


make_callable(__name__, search_text)

if __name__ == "__main__":
    run(main, outlives_reader=False)
