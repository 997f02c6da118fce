"""Finds hard negatives: for each query, the nearest documents that are not among its positives.

  python -m jaxdistill.mine --model=TEACHER --pairs=pairs.tsv --output=negatives.tsv --relative_margin=0.05
  python -m jaxdistill.mine --model=TEACHER --pairs='passages/*.tsv.gz' --column=title --positive_column=text \\
      --output=negatives.tsv --relative_margin=0.05 --num_negatives=5
  python -m jaxdistill.mine --model=TEACHER --retrieval=sets/nfcorpus --split=train --output=negatives.tsv \\
      --max_score=0.9 --range_min=10 --sampling_strategy=random

Writes a table with one row per query, positive and negative: `text`, `positive`, `negative`, `score_positive`,
`score_negative`. `--output_format=n-tuple` writes one row per query and positive, with all negatives (`negative_1`,
`score_negative_1` and so on), and leaves out queries with too few. Scores are cosines of --model, its dot products if
its checkpoint compares by these (`similarity_fn_name`), or scores in (0, 1) of `--cross_encoder`. With `--logits`
they are the cross-encoder's logits, which still differ where sigmoids round to 1; MarginMSE learns from such differences.

Documents are all distinct positives, or all documents of `--retrieval`, together with the texts of `--corpus`. A query may
have several positives. A document with the text of the query or of one of its positives, ignoring case and white space, is
never a negative. The search is exact and runs on the devices. Vectors are cached by model, prompt and text. If the program is
killed, the same command resumes it. The limits have the names and meaning of sentence-transformers' `mine_hard_negatives`.
"""

import argparse
import json
import logging
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxdistill.calls import in_python_words, make_callable, options_of_call
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, local_path, positive, reading_options, run
from jaxdistill.core import InputError, Precision, Split
from jaxdistill.data import sources
from jaxdistill.data.in_memory import Text, sources_of
from jaxdistill.data.negatives import Limits, Negatives, Sampling, hard_negatives, header, mined_rows, read_rows
from jaxdistill.data.questions import Questions, questions
from jaxdistill.data.tables import finished, write_table
from jaxdistill.evals.beir import questions_of
from jaxdistill.evals.beir_files import SPLITS
from jaxdistill.files import local, refuse_overwriting, try_writing
from jaxdistill.inference import Embedder, load
from jaxdistill.inference.stored import digest_of, pair_scores, stored_vectors
from jaxdistill.ops.nearest import VectorRows, nearest, scores_of_pairs

log = logging.getLogger(__name__)

FORMATS = ("triplet", "n-tuple")
COLUMNS = {"column": "text", "positive_column": "positive", "corpus_column": "text"}
"""Options that name columns, and their defaults."""
SPLIT: Split = "train"
"""Default split of judgements for which negatives are mined: they are for training."""
RANGE_MAX = (
    "candidates per query; default: as many as needed; with random sampling or --cross_encoder, ten per negative if "
    "limits may exclude some, else one"
)
BLOCK_ROWS = 8192
"""Number of documents compared at a time."""
MOST_CANDIDATES = 1 << 27
"""Most scores in memory while queries with too few negatives consider more candidates: 1.6 GB with their rows."""


def mined(
    known: Questions,
    queries: VectorRows,
    documents: VectorRows,
    *,
    limits: Limits,
    count: int,
    sampling: Sampling,
    seed: int,
    scorer: Embedder | None = None,
    logits: bool = False,
    widens: bool = False,
    dot: bool = False,
    progress: bool = False,
) -> tuple[Negatives, list[list[float]]]:
    """The negatives of each query, and the scores of its positives.

    Args:
      limits: with `range_max` resolved, see `Limits.with_range`.
      widens: consider more candidates than `range_max` for queries with too few negatives among these.
      scorer: a cross-encoder that scores the nearest documents and the positives, instead of the vectors.
      logits: use the scorer's logits as scores.
      dot: compare vectors by dot product instead of cosine.
    """
    left_out = known.excluded()
    asked = np.repeat(np.arange(len(known.queries)), [len(of_query) for of_query in known.positives])
    answers = np.concatenate([np.asarray(of_query, np.int64) for of_query in known.positives])
    score = partial(pair_scores, scorer, known, logits=logits, progress=progress) if scorer else None
    pairs = asked, answers
    of_positives = score(*pairs) if score else scores_of_pairs(queries, documents, *pairs, dot=dot)
    # All pairs are scored in one flat list, which is then cut up again by query.
    ends = np.cumsum([len(of_query) for of_query in known.positives])[:-1]
    positive_scores = [part.tolist() for part in np.split(of_positives, ends)]

    def among_nearest(some: np.ndarray, depth: int, limits: Limits) -> Negatives:
        blocks = (documents[at : at + BLOCK_ROWS] for at in range(0, len(documents), BLOCK_ROWS))
        scores, rows = nearest(queries[some], blocks, count=depth, dot=dot)
        if score:
            scores = score(np.repeat(some, depth), rows.ravel()).reshape(rows.shape)
        known_of = [left_out[query] for query in some], [positive_scores[query] for query in some]
        return hard_negatives(scores, rows, *known_of, limits=limits, count=count, sampling=sampling, seed=seed)

    # The nearest documents may all be left out (positives, the query itself), so these come on top.
    depth = min(limits.range_max + max(map(len, left_out)), len(documents))
    negatives = among_nearest(np.arange(len(known.queries)), depth, limits)
    while widens and len(short := negatives.lacking()) and depth < len(documents):
        # Four times as deep each time: few rounds, and only for the queries that still lack negatives.
        depth = min(4 * depth, len(documents))
        if len(short) * depth > MOST_CANDIDATES:
            break
        negatives.put(short, among_nearest(short, depth, replace(limits, range_max=depth)))
    return negatives, positive_scores


@in_python_words()
def mine_negatives(
    model: str | Path,
    pairs: Text = "",
    *,
    column: str = COLUMNS["column"],
    positive_column: str = COLUMNS["positive_column"],
    corpus: Text = "",
    corpus_column: str = COLUMNS["corpus_column"],
    retrieval: str | Path = "",
    split: Split | Literal[""] = "",
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
      retrieval, split: a set in BEIR's format instead of `pairs`, and the split of its judgements; empty: `train`.
      output: the `.tsv` file to write, resumable; empty: none. Tabs and line ends in texts become spaces, as in the file.
      output_format to logits: as in sentence-transformers' `mine_hard_negatives`; docs/guide/retrieval.md explains them.
      prompt_name, corpus_prompt_name: prompt of queries and of documents, or `none`; empty: their roles' prompts.
      pooling to parts: as for `jaxdistill.load`.
    """
    return _rows_of_call(locals())


def _rows_of_call(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    pairs = {sources.TEXT: arguments["column"], "positive": arguments["positive_column"]}
    columns = {"pairs": pairs, "corpus": {sources.TEXT: arguments["corpus_column"]}}
    texts = {name: sources_of(arguments[name], of, argument=name) for name, of in columns.items()}
    with tempfile.TemporaryDirectory() as folder:
        texts |= {"output": arguments["output"] or f"{folder}/negatives.tsv"}
        given = options_of_call(_parser(), {**arguments, **texts}, repeated=("pairs", "corpus"))
        return read_rows(_mined(given, log.info))


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.mine`."""
    _mined(_parser().parse_args(arguments), print)


def _mined(given: argparse.Namespace, say: Callable[[str], object]) -> Path:
    """Writes the table unless it exists; returns its path."""
    output = _output(given)
    limits = Limits(**{name: getattr(given, name) for name in asdict(Limits())})
    known = _questions(given)
    limits = limits.with_range(given.num_negatives, max(map(len, known.positives)))
    embedder, scorer = load(given.model, **reading_options(given)), _scorer(given)
    prompts = {
        side: embedder.prefix(**({"prompt_name": prompt} if prompt else {"role": side}))
        for side, prompt in (("query", given.prompt), ("document", given.corpus_prompt))
    }
    origin = _origin(given, limits, known, embedder, scorer=scorer, prompts=prompts)
    counts = finished(output, origin)
    if counts is None:
        try_writing(output)
        queries = stored_vectors(embedder, known.queries, prompts["query"], "queries", progress=not given.quiet)
        documents = stored_vectors(
            embedder, known.documents, prompts["document"], "documents", progress=not given.quiet
        )
        options = {"limits": limits, "count": given.num_negatives, "sampling": given.sampling_strategy}
        options |= {"seed": given.seed, "scorer": scorer, "logits": given.logits, "widens": _widens(given)}
        options["dot"] = embedder.model.definition.similarity == "dot"
        negatives, scores = mined(known, queries, documents, **options, progress=not given.quiet)
        rows = list(mined_rows(known, negatives, scores, output_format=given.output_format))
        _refuse_none(rows, negatives)
        counts = {"rows": len(rows)}
        write_table(output, header(given.output_format, given.num_negatives), rows, origin, counts=counts)
        _report(known, negatives, scores, given.num_negatives, say=say, is_bounded=not _widens(given))
    queries, documents = len(known.queries), len(known.documents)
    say(f"{output}: {counts['rows']:,} rows; {queries:,} queries, {documents:,} documents")
    return output


def _origin(
    given: argparse.Namespace,
    limits: Limits,
    known: Questions,
    embedder: Embedder,
    scorer: Embedder | None,
    prompts: Mapping[str, str],
) -> dict[str, object]:
    """Everything that determines the output."""
    return {
        **asdict(limits),
        **{name: getattr(given, name) for name in ("num_negatives", "sampling_strategy", "seed", "output_format")},
        **{f"prompt of a {side}": prompt for side, prompt in prompts.items()},
        "model": embedder.model.digest(),
        "max_length": embedder.model.max_length,
        "precision": embedder.compute_dtype.name,
        "cross_encoder": scorer.model.digest() if scorer else "",
        **({"logits": True} if given.logits else {}),
        "text": digest_of([json.dumps(known)]),
        **({"looks further": True} if _widens(given) else {}),
    }


def _widens(given: argparse.Namespace) -> bool:
    """Whether to consider more candidates for queries with too few negatives. Not with a cross-encoder, which would have to
    score them, nor with random sampling, which would draw from more candidates for some queries than for others."""
    return not given.range_max and not given.cross_encoder and given.sampling_strategy == "top"


def _output(given: argparse.Namespace) -> Path:
    output = local(given.output, "--output")
    if output.suffix != ".tsv":
        raise InputError(f"--output={output} must end in .tsv.")
    if bool(given.pairs) == bool(given.retrieval):
        raise InputError("give either --pairs=FILE or --retrieval=FOLDER.")
    if given.split and not given.retrieval:
        raise InputError(f"--split={given.split} is for --retrieval; --pairs has its positives in a column.")
    for option, read_from in (("column", "pairs"), ("positive_column", "pairs"), ("corpus_column", "corpus")):
        named = getattr(given, option)
        if named != COLUMNS[option] and not getattr(given, read_from):
            raise InputError(f"--{option}={named} is for --{read_from}, which is not given; leave it out.")
    if given.corpus:
        sources.refuse_unread(given.corpus_column, given.corpus, "--corpus_column")
    refuse_overwriting(output, sources.local_files([*given.pairs, *given.corpus]))
    return output


def _questions(given: argparse.Namespace) -> Questions:
    corpus = (text for (text,) in sources.read(given.corpus, {sources.TEXT: given.corpus_column}))
    known = questions_of(given.retrieval, given.split or SPLIT, corpus) if given.retrieval else _of_pairs(given, corpus)
    most = len(known.documents) - min(map(len, known.excluded()))
    if not most:
        raise InputError(
            f"no query has a document that may be a negative: all {len(known.documents):,} documents are its positives "
            "or its own text; add others with --corpus=FILE."
        )
    needed = given.range_min + (given.num_negatives if given.output_format == "n-tuple" else 1)
    if most < needed:
        raise InputError(
            f"the corpus has too few documents: --num_negatives={given.num_negatives}, --range_min={given.range_min} and "
            f"--output_format={given.output_format} need {needed:,} that may be negatives of a query, and none has more than "
            f"{most:,}; lower them, or add documents with --corpus=FILE."
        )
    return known


def _of_pairs(given: argparse.Namespace, corpus: Iterable[str]) -> Questions:
    columns = {sources.TEXT: given.column, "positive": given.positive_column}
    pairs = sources.read(given.pairs, columns)
    return questions(((row[0], row[1]) for row in pairs), corpus)


def _scorer(given: argparse.Namespace) -> Embedder | None:
    if given.logits and (not given.cross_encoder or given.relative_margin is not None):
        raise InputError(
            "--logits is for --cross_encoder without --relative_margin, because a share of a logit says nothing; use "
            "--absolute_margin."
        )
    if not given.cross_encoder:
        return None
    scorer = load(given.cross_encoder, batch_size=given.batch_size, precision=given.precision)
    if not scorer.model.definition.reads_pairs:
        raise InputError(f"--cross_encoder={given.cross_encoder} is not a cross-encoder; give it as --model.")
    return scorer


def _refuse_none(rows: list[list[str]], negatives: Negatives) -> None:
    """Raises `InputError` if no row is within the limits."""
    if rows:
        return
    most, wanted = int(np.isfinite(negatives.scores).sum(axis=1).max()), negatives.scores.shape[1]
    if not most:
        raise InputError("no document is within the limits of any query; relax them, or raise --range_max.")
    raise InputError(
        f"no query has {wanted} negatives within the limits, the most is {most}; relax the limits, give "
        f"--num_negatives={most}, or --output_format=triplet, which has a row for each negative."
    )


def _report(
    known: Questions,
    negatives: Negatives,
    positive_scores: Sequence[Sequence[float]],
    count: int,
    say: Callable[[str], object],
    *,
    is_bounded: bool,
) -> None:
    more = "; more with a larger --range_max, or wider limits" if is_bounded else ""
    have = np.isfinite(negatives.scores)
    means = np.mean([score for scores in positive_scores for score in scores]), np.mean(negatives.scores[have])
    say(f"mean score of positives {means[0]:.4f}, of negatives {means[1]:.4f}")
    for name, counts in negatives.left_out.items():
        say(f"--{name} left out {counts.sum():,} candidates")
    if lacking := len(negatives.lacking()):
        say(f"{lacking:,} of {len(known.queries):,} queries have fewer than {count} negatives{more}")


def _finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} must be a finite number")
    return number


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 0")
    return int(text)


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.mine", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="teacher that encodes all texts: folder, package:NAME/PATH or hub name")
    add("--pairs", action="append", default=[], help="table of queries and positives, as for training; repeatable")
    add("--column", default=COLUMNS["column"], help="column of the queries; default: text")
    add("--positive_column", default=COLUMNS["positive_column"], help="column of the positives; default: positive")
    add("--corpus", action="append", default=[], help="more documents, as text for training; repeatable")
    add("--corpus_column", default=COLUMNS["corpus_column"], help="column of --corpus; default: text")
    add("--retrieval", type=local_path, default="", help="set in BEIR's format, instead of --pairs: folder or hub name")
    add("--split", choices=SPLITS, default="", help=f"its judgements, FOLDER/qrels/SPLIT.tsv; default: {SPLIT}")
    add("--output", type=local_path, required=True, help="the .tsv file to write")
    add("--output_format", choices=FORMATS, default=FORMATS[0], help="one negative per row, or all; default: triplet")
    add("--num_negatives", type=positive, default=3, help="negatives per query; default: 3")
    add("--range_min", type=_count, default=0, help="nearest remaining candidates to skip; default: 0")
    add("--range_max", type=_count, default=0, help=RANGE_MAX)
    add("--max_score", type=_finite, help="highest score of a negative")
    add("--min_score", type=_finite, help="lowest score of a negative")
    add("--absolute_margin", type=_finite, help="minimum difference to the query's lowest positive")
    add("--relative_margin", type=_finite, help="the same, as a share of that positive's score, such as 0.05")
    add("--sampling_strategy", choices=get_args(Sampling), default="top", help="nearest or random; default: top")
    add("--seed", type=_count, default=0, help="seed of random sampling; default: 0")
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
