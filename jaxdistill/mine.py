"""Finds hard negatives: for each query, the nearest documents that are not among its positives.

  python -m jaxdistill.mine --model=TEACHER --pairs=pairs.tsv --output=negatives.tsv --relative_margin=0.05
  python -m jaxdistill.mine --model=TEACHER --pairs='passages/*.tsv.gz' --column=title --positive_column=text \\
      --corpus='passages/*.tsv.gz' --corpus_column=text --output=negatives.tsv --max_score=0.9 --num_negatives=5

Writes a table with one row per query, positive and negative: `text`, `positive`, `negative`, `score_positive`,
`score_negative`. `--output_format=n-tuple` writes one row per query and positive, with all negatives (`negative_1`,
`score_negative_1` and so on), and leaves out queries with too few. Scores are cosines of --model, its dot products if
its checkpoint compares by these (`similarity_fn_name`), or scores in (0, 1) of `--cross_encoder`. With `--logits`
they are the cross-encoder's logits, which still differ where sigmoids round to 1; MarginMSE learns from such differences.

Documents are all distinct positives and the texts of `--corpus`. A query may have several positives. A document with the text of
the query or of one of its positives, ignoring case and white space, is never a negative. The search is exact and runs on the
devices. Vectors are cached by model, prompt and text. If the program is killed, the same command resumes it.

The limits have the names, meaning and order of sentence-transformers' `mine_hard_negatives`; the negatives are equal if no scores
tie and both see the same candidates. `relative_margin=0.05` is NV-Retriever's TopK-PercPos of 95 % (arXiv 2407.15831).
"""

import argparse
import hashlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.bars import Advance
from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, local_path, positive, reading_options, run
from jaxdistill.core import InputError, Precision
from jaxdistill.data.columns import TEXT
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.questions import Questions, questions
from jaxdistill.data.sources import local_files, refuse_unread
from jaxdistill.data.tables import finished, write_table
from jaxdistill.data.targets import cached_vectors
from jaxdistill.data.text import read
from jaxdistill.files import local, refuse_overwriting, try_writing
from jaxdistill.inference import Embedder, load
from jaxdistill.ops.nearest import nearest, scores_of_pairs
from jaxdistill.paths import cache_folder

log = logging.getLogger(__name__)

Sampling = Literal["top", "random"]
Scores = Callable[[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]], Float[np.ndarray, " pairs"]]
"""Scores pairs of a query and a document, given by indices."""
FORMATS = ("triplet", "n-tuple")
SPARE = 10
"""Candidates to consider per negative if limits may leave some out."""
BLOCK_ROWS = 8192
"""Number of documents compared at a time."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which candidates may be negatives. None: no limit."""

    range_min: int = 0
    """Nearest candidates to skip, counted after all other limits."""
    range_max: int = 0
    """Candidates to consider for each query, besides its positives; 0: as many as the other options need."""
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    """A negative's score must be at least this much below the lowest score of the query's positives."""
    relative_margin: float | None = None
    """The same as a fraction of the positive's score: 0.05 keeps scores of at most 95 % of it."""

    def with_range(self, count: int, positives: int) -> "Limits":
        """The limits with `range_max` resolved, for at most `positives` positives of a query."""
        is_bound = any(limit is not None for limit in (self.max_score, self.absolute_margin, self.relative_margin))
        range_max = self.range_max or self.range_min + (SPARE if is_bound else 1) * count + positives
        if not 0 <= self.range_min <= range_max - count:
            raise InputError(
                f"--range_min={self.range_min} must be at least 0 and leave --num_negatives={count} of --range_max={range_max}."
            )
        return replace(self, range_max=range_max)

    def exclude(
        self, scores: Float[np.ndarray, "q candidates"], lowest: Float[np.ndarray, "q 1"]
    ) -> Float[np.ndarray, "q candidates"]:
        """The scores, with minus infinity in place of those beyond a limit.

        Args:
          lowest: the lowest score of each query's positives.
        """
        beyond = np.zeros(scores.shape, bool)
        if self.absolute_margin is not None:
            beyond |= scores + np.float32(self.absolute_margin) > lowest
        if self.relative_margin is not None:
            beyond |= scores > lowest - np.abs(lowest) * np.float32(self.relative_margin)
        if self.max_score is not None:
            beyond |= scores > np.float32(self.max_score)
        if self.min_score is not None:
            beyond |= scores < np.float32(self.min_score)
        return np.where(beyond, -np.inf, scores)


class Mined(NamedTuple):
    """The negatives of each query, best first."""

    documents: Integer[np.ndarray, "q negatives"]
    scores: Float[np.ndarray, "q negatives"]
    """Minus infinity where a query has no further negative."""
    positive_scores: list[list[float]]
    """Scores of each query's positives."""


def mine(
    pairs: Questions,
    queries: Float[np.ndarray, "q e"],
    documents: Float[np.ndarray, "n e"],
    *,
    limits: Limits,
    count: int,
    sampling: Sampling = "top",
    seed: int = 0,
    rescore: Scores | None = None,
    dot: bool = False,
) -> Mined:
    """Chooses at most `count` negatives of each query among its nearest documents.

    Args:
      limits: with `range_max` resolved, see `Limits.with_range`.
      sampling: `top` (highest scores) or `random`, seeded by `seed`.
      rescore: scores the nearest documents and the positives, instead of the vectors.
      dot: compare vectors by dot product instead of cosine.
    """
    counts = [len(of_query) for of_query in pairs.positives]
    every = np.arange(len(pairs.queries))
    positives = np.repeat(every, counts), np.concatenate([np.asarray(one, np.int64) for one in pairs.positives])
    scores = rescore(*positives) if rescore else scores_of_pairs(queries, documents, *positives, dot=dot)
    positive_scores = [part.tolist() for part in np.split(scores, np.cumsum(counts)[:-1])]
    # The nearest documents may all be excluded (positives, the query itself), so these come on top.
    depth = min(limits.range_max + max(map(len, pairs.excluded)), len(documents))
    blocks = (documents[start : start + BLOCK_ROWS] for start in range(0, len(documents), BLOCK_ROWS))
    scores, rows = nearest(queries[:], blocks, count=depth, dot=dot)
    if rescore:
        scores = rescore(np.repeat(every, depth), rows.ravel()).reshape(rows.shape)
    chosen = hard_negatives(scores, rows, pairs.excluded, positive_scores, limits, count, sampling, seed)
    return Mined(*chosen, positive_scores)


def hard_negatives(
    scores: Float[np.ndarray, "q candidates"],
    rows: Integer[np.ndarray, "q candidates"],
    excluded: Sequence[Sequence[int]],
    positive_scores: Sequence[Sequence[float]],
    limits: Limits,
    count: int,
    sampling: Sampling = "top",
    seed: int = 0,
) -> tuple[Integer[np.ndarray, "q negatives"], Float[np.ndarray, "q negatives"]]:
    """The rows and scores of at most `count` candidates of each query, best first."""
    lowest = np.array([min(of_query) for of_query in positive_scores], np.float32)[:, None]
    is_excluded = np.stack([np.isin(found, own) for found, own in zip(rows, excluded, strict=True)])
    scores = limits.exclude(np.where(is_excluded, -np.inf, np.asarray(scores, np.float32)), lowest)
    order = np.argsort(-scores, axis=1, kind="stable")[:, limits.range_min : limits.range_max]
    if sampling == "random":
        ranked = np.take_along_axis(scores, order, axis=1)
        draws = np.where(np.isfinite(ranked), np.random.default_rng(seed).random(ranked.shape), 2.0)
        drawn = np.sort(np.argsort(draws, axis=1, kind="stable")[:, :count], axis=1)
        order = np.take_along_axis(order, drawn, axis=1)
    order = order[:, :count]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


@in_python_words()
def mine_negatives(
    model: str | Path,
    pairs: Text,
    *,
    column: str = "text",
    positive_column: str = "positive",
    corpus: Text = "",
    corpus_column: str = "text",
    output: str | Path = "",
    output_format: str = FORMATS[0],
    num_negatives: int = 3,
    range_min: int = 0,
    range_max: int = 0,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: Sampling = "top",
    seed: int = 0,
    cross_encoder: str | Path = "",
    logits: bool = False,
    prompt_name: str = "",
    corpus_prompt_name: str = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    parts: str | Path | Sequence[str | Path] = "",
    show_progress_bar: bool = False,
) -> list[dict[str, Any]]:
    """Hard negatives, as the rows of the program's table. `jaxdistill.mine` is this function.

    >>> pairs = [("Does it rain?", "It rains."), ("Who sleeps?", "A cat sleeps.")]
    >>> rows = jaxdistill.mine(TEACHER, pairs, num_negatives=1)
    >>> rows[0]["positive"], rows[0]["negative"]
    ('It rains.', 'A cat sleeps.')

    Args:
      model: teacher that encodes all texts: folder, `package:NAME/PATH` or hub name.
      pairs: queries and positives: tuples, a table with `column` and `positive_column`, or a source of text as for training.
      corpus, corpus_column: more documents, given like `pairs`.
      output: the `.tsv` file to write, resumable; empty: none. Tabs and line ends in texts become spaces, as in the file.
      output_format to logits: as in sentence-transformers' `mine_hard_negatives`; docs/guide/retrieval.md explains them.
      prompt_name, corpus_prompt_name: prompt of queries and of documents, or `none`; empty: their roles' prompts.
      pooling to parts: as for `jaxdistill.load`.
    """
    arguments = locals()
    texts = {
        "pairs": sources_of(pairs, {TEXT: column, "positive": positive_column}, argument="pairs"),
        "corpus": sources_of(corpus, {TEXT: corpus_column}, argument="corpus"),
    }
    with tempfile.TemporaryDirectory() as folder:
        texts |= {"output": output or f"{folder}/negatives.tsv"}
        options = options_of_call(_parser(), {**arguments, **texts}, repeated=("pairs", "corpus"))
        _write(options, log.info)
        names, *rows = (line.split("\t") for line in Path(options.output).read_text("utf-8").split("\n")[:-1])
    cells = (zip(names, row, strict=True) for row in rows)
    return [{name: float(cell) if name.startswith("score_") else cell for name, cell in row} for row in cells]


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.mine`."""
    _write(_parser().parse_args(arguments), print)


def _write(options: argparse.Namespace, say: Callable[[str], object]) -> None:
    """Writes the table unless it exists."""
    output = local(options.output, "--output")
    if output.suffix != ".tsv":
        raise InputError(f"--output={output} must end in .tsv.")
    if options.logits and not options.cross_encoder:
        raise InputError("--logits is for --cross_encoder; cosines have none.")
    if options.corpus:
        refuse_unread(options.corpus_column, options.corpus, "--corpus_column")
    refuse_overwriting(output, local_files([*options.pairs, *options.corpus]))
    corpus = (text for (text,) in read(options.corpus, {TEXT: options.corpus_column}))
    columns = {TEXT: options.column, "positive": options.positive_column}
    pairs = questions(((text, answer) for text, answer in read(options.pairs, columns)), corpus)
    count = options.num_negatives
    limits = Limits(**{name: getattr(options, name) for name in asdict(Limits())})
    limits = limits.with_range(count, max(map(len, pairs.positives)))
    embedder, scorer = load(options.model, **reading_options(options)), None
    if options.cross_encoder:
        scorer = load(options.cross_encoder, batch_size=options.batch_size, precision=options.precision)
    prompts = {
        role: embedder.prefix(**({"prompt_name": prompt} if prompt else {"role": role}))
        for role, prompt in (("query", options.prompt), ("document", options.corpus_prompt))
    }
    origin = {
        **asdict(limits),
        **{
            name: getattr(options, name)
            for name in ("num_negatives", "sampling_strategy", "seed", "output_format", "logits")
        },
        **{f"prompt of a {role}": prompt for role, prompt in prompts.items()},
        "model": embedder.model.digest(),
        "max_length": embedder.model.max_length,
        "precision": embedder.compute_dtype.name,
        "cross_encoder": scorer.model.digest() if scorer else "",
        "text": _digest(json.dumps(pairs)),
    }
    counts = finished(output, origin)
    if counts is None:
        try_writing(output)
        progress = not options.quiet
        queries = _vectors(embedder, pairs.queries, prompts["query"], "queries", progress=progress)
        documents = _vectors(embedder, pairs.documents, prompts["document"], "documents", progress=progress)
        mined = mine(
            pairs, queries, documents, limits=limits, count=count, sampling=options.sampling_strategy, seed=options.seed,
            rescore=_rescorer(scorer, pairs, options) if scorer else None, dot=embedder.model.definition.similarity == "dot",
        )  # fmt: skip
        names, *rows = _rows(pairs, mined, options.output_format)
        have = np.isfinite(mined.scores)
        if not rows:
            raise InputError(
                f"no query has enough negatives: the most that are within the limits and no positives are {have.sum(axis=1).max()}, "
                f"--num_negatives={count}; relax the limits, raise --range_max, or add documents with --corpus=FILE."
            )
        counts = {"rows": len(rows)}
        write_table(output, names, rows, origin, counts=counts)
        mean = np.mean([score for scores in mined.positive_scores for score in scores])
        say(f"mean score of positives {mean:.4f}, of negatives {mined.scores[have].mean():.4f}")
        if lacking := (~have.all(axis=1)).sum():
            say(
                f"{lacking:,} of {len(have):,} queries have fewer than {count} negatives; --range_max={limits.range_max}"
            )
    say(f"{output}: {counts['rows']:,} rows; {len(pairs.queries):,} queries, {len(pairs.documents):,} documents")


def _vectors(
    embedder: Embedder, texts: Sequence[str], prompt: str, what: str, *, progress: bool
) -> Float[np.ndarray, "n e"]:
    """The texts' vectors; cached."""

    def embed(block: Sequence[str], advance: Advance) -> np.ndarray:
        return embedder.encode([prompt + text for text in block], prompt="", show_progress_bar=advance)

    of = _digest(embedder.model.digest(), embedder.compute_dtype.name, prompt, embedder.model.max_length, *texts)
    return cached_vectors(_folder(), of, embed, texts, width=embedder.width, what=what, progress=progress)


def _rescorer(scorer: Embedder, pairs: Questions, options: argparse.Namespace) -> Scores:
    """A cross-encoder's scores; cached."""

    def score(block: Any, advance: Advance) -> np.ndarray:
        texts = [pairs.queries[query] for query in block[:, 0]], [pairs.documents[row] for row in block[:, 1]]
        return scorer.score(*texts, logits=options.logits, show_progress_bar=advance)[:, None]

    def scores(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        indices: Any = np.stack([queries, documents], axis=1)
        chosen = hashlib.sha256(indices.tobytes()).hexdigest()
        of = _digest(scorer.model.digest(), scorer.compute_dtype.name, options.logits, json.dumps(pairs), chosen)
        progress = not options.quiet
        return cached_vectors(_folder(), of, score, indices, width=1, what="scoring pairs", progress=progress)[:][:, 0]

    return scores


def _digest(*facts: object) -> str:
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def _folder() -> Path:
    return cache_folder() / "mined"


def _rows(pairs: Questions, mined: Mined, output_format: str) -> Iterator[list[str]]:
    """Yields the rows of the table; its header first."""
    numbers = range(1, mined.documents.shape[1] + 1)
    if output_format == "triplet":
        yield ["text", "positive", "negative", "score_positive", "score_negative"]
    else:
        names = [f"negative_{number}" for number in numbers], [f"score_negative_{number}" for number in numbers]
        yield ["text", "positive", *names[0], "score_positive", *names[1]]
    for query, text in enumerate(pairs.queries):
        have = int(np.isfinite(mined.scores[query]).sum())
        negatives = [pairs.documents[row] for row in mined.documents[query, :have]]
        scores = [f"{score:.7g}" for score in mined.scores[query, :have]]
        for row, own in zip(pairs.positives[query], mined.positive_scores[query], strict=True):
            begin, score = [text, pairs.documents[row]], f"{own:.7g}"
            if output_format == "triplet":
                yield from ([*begin, negative, score, other] for negative, other in zip(negatives, scores, strict=True))
            elif have == len(numbers):
                yield [*begin, *negatives, score, *scores]


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.mine", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="teacher that encodes all texts: folder, package:NAME/PATH or hub name")
    add("--pairs", action="append", required=True, help="table of queries and positives, as for training; repeatable")
    add("--column", default="text", help="column of the queries; default: text")
    add("--positive_column", default="positive", help="column of the positives; default: positive")
    add("--corpus", action="append", default=[], help="more documents, as text for training; repeatable")
    add("--corpus_column", default="text", help="column of --corpus; default: text")
    add("--output", type=local_path, required=True, help="the .tsv file to write")
    add("--output_format", choices=FORMATS, default=FORMATS[0], help="one negative per row, or all; default: triplet")
    add("--num_negatives", type=positive, default=3, help="negatives per query; default: 3")
    add("--range_min", type=int, default=0, help="nearest remaining candidates to skip; default: 0")
    candidates = (
        f"candidates per query; default: {SPARE} per negative if limits may exclude some, else as many as needed"
    )
    add("--range_max", type=int, default=0, help=candidates)
    add("--max_score", type=float, help="highest score of a negative")
    add("--min_score", type=float, help="lowest score of a negative")
    add("--absolute_margin", type=float, help="minimum difference to the query's lowest positive")
    add("--relative_margin", type=float, help="the same, as a share of that positive's score, such as 0.05")
    add("--sampling_strategy", choices=get_args(Sampling), default="top", help="nearest or random; default: top")
    add("--seed", type=int, default=0, help="seed of random sampling; default: 0")
    add("--cross_encoder", default="", help="cross-encoder that scores instead of --model")
    add("--logits", action="store_true", help="use logits of --cross_encoder, also for limits; for MarginMSE")
    add("--prompt", default="", help="name of a prompt of --model for the queries, or none; default: query")
    add("--corpus_prompt", default="", help="the same for the documents; default: document")
    add_reading_options(parser)
    add("--quiet", action="store_true", help="no progress bar")
    return parser


make_callable(__name__, mine_negatives)

if __name__ == "__main__":
    run(main)
