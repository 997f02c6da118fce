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

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import InputError, Precision
from jaxdistill.core import plugins as plugins
from jaxdistill.core.bars import Advance
from jaxdistill.core.cli import BATCH_SIZE, BY_NAME, Listed, listed, make_callable, parse, printed, run
from jaxdistill.core.files import drafted, local, refuse_overwriting, try_writing, writing
from jaxdistill.core.ops.nearest import nearest, scores_of_pairs
from jaxdistill.core.paths import cache_folder
from jaxdistill.data.targets import cached_vectors, finished, write_note
from jaxdistill.data.text import TEXT, Text, local_files, read, sources_of, split_specs
from jaxdistill.models.inference import Embedder, load

log = logging.getLogger(__name__)

Scores = Callable[[Integer[np.ndarray, " pairs"], Integer[np.ndarray, " pairs"]], Float[np.ndarray, " pairs"]]
"""Scores pairs of a query and a document, given by indices."""
SPARE = 10
"""Candidates to consider per negative if limits may leave some out."""
BLOCK_ROWS = 8192
"""Number of documents compared at a time."""


class Questions(NamedTuple):
    """Distinct queries and documents, and the documents that answer each query."""

    queries: list[str]
    documents: list[str]
    positives: list[list[int]]
    """For each query, the indices of its documents."""
    excluded: list[list[int]]
    """For each query, the documents that cannot be its negatives: its positives, and those whose text equals the query or a
    positive, ignoring case and white space."""


def questions(pairs: Iterable[tuple[str, str]], corpus: Iterable[str] = ()) -> Questions:
    """Collects distinct, non-empty queries and documents; raises `InputError` if no pair remains."""
    queries: dict[str, dict[int, None]] = {}
    documents: dict[str, int] = {}
    for text in filter(None, map(str.strip, corpus)):
        documents.setdefault(text, len(documents))
    for text, answer in ((text.strip(), answer.strip()) for text, answer in pairs):
        if text and answer:
            queries.setdefault(text, {})[documents.setdefault(answer, len(documents))] = None
    if not queries:
        raise InputError("no pair has both a query and a positive; check pairs, column and positive_column.")

    def key(text: str) -> bytes:  # of 8 bytes, because a corpus has millions of texts
        return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=8).digest()

    texts, positives = list(documents), [list(rows) for rows in queries.values()]
    equal: dict[bytes, set[bytes]] = {}
    for query, rows in zip(queries, positives, strict=True):
        equal.setdefault(key(query), set()).update(map(key, (query, *(texts[row] for row in rows))))
    rows_of: dict[bytes, list[int]] = {one: [] for keys in equal.values() for one in keys}
    for row, text in enumerate(texts):
        if (one := key(text)) in rows_of:
            rows_of[one].append(row)
    excluded = [sorted({row for one in equal[key(query)] for row in rows_of[one]}) for query in queries]
    return Questions(list(queries), texts, positives, excluded)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Which candidates may be negatives, and how many of them are chosen; `mine` documents the fields."""

    num_negatives: int = 3
    range_min: int = 0
    range_max: int = 0
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    relative_margin: float | None = None
    sampling_strategy: str = "top"
    seed: int = 0

    def candidates(self, positives: int) -> int:
        """`range_max`, or as many as the other limits need for at most `positives` positives of a query."""
        is_bound = any(limit is not None for limit in (self.max_score, self.absolute_margin, self.relative_margin))
        range_max = self.range_max or self.range_min + (SPARE if is_bound else 1) * self.num_negatives + positives
        if self.num_negatives < 1 or not 0 <= self.range_min <= range_max - self.num_negatives:
            raise InputError(
                f"num_negatives={self.num_negatives} must be at least 1, and range_min={self.range_min} must be at least 0 and "
                f"leave them of range_max={range_max}."
            )
        return range_max


class Mined(NamedTuple):
    """The negatives of each query, best first."""

    documents: Integer[np.ndarray, "q negatives"]
    scores: Float[np.ndarray, "q negatives"]
    """Minus infinity where a query has no further negative."""
    positive_scores: list[list[float]]
    """Scores of each query's positives."""


def mined(
    pairs: Questions,
    queries: Float[np.ndarray, "q e"],
    documents: Float[np.ndarray, "n e"],
    *,
    limits: Limits,
    rescore: Scores | None = None,
    dot: bool = False,
) -> Mined:
    """Chooses the negatives of each query among its nearest documents.

    Args:
      rescore: scores the nearest documents and the positives, instead of the vectors.
      dot: compare vectors by dot product instead of cosine.
    """
    counts = [len(of_query) for of_query in pairs.positives]
    every = np.arange(len(pairs.queries))
    positives = np.repeat(every, counts), np.concatenate([np.asarray(one, np.int64) for one in pairs.positives])
    scores = rescore(*positives) if rescore else scores_of_pairs(queries, documents, *positives, dot=dot)
    positive_scores = [part.tolist() for part in np.split(scores, np.cumsum(counts)[:-1])]
    # The nearest documents may all be excluded (positives, the query itself), so these come on top.
    range_max = limits.candidates(max(counts))
    depth = min(range_max + max(map(len, pairs.excluded)), len(documents))
    blocks = (documents[start : start + BLOCK_ROWS] for start in range(0, len(documents), BLOCK_ROWS))
    scores, rows = nearest(queries[:], blocks, count=depth, dot=dot)
    if rescore:
        scores = rescore(np.repeat(every, depth), rows.ravel()).reshape(rows.shape)
    return Mined(*hard_negatives(scores, rows, pairs.excluded, positive_scores, limits, range_max), positive_scores)


def hard_negatives(
    scores: Float[np.ndarray, "q candidates"],
    rows: Integer[np.ndarray, "q candidates"],
    excluded: Sequence[Sequence[int]],
    positive_scores: Sequence[Sequence[float]],
    limits: Limits,
    range_max: int,
) -> tuple[Integer[np.ndarray, "q negatives"], Float[np.ndarray, "q negatives"]]:
    """The rows and scores of the chosen candidates of each query, best first."""
    lowest = np.array([min(of_query) for of_query in positive_scores], np.float32)[:, None]
    is_excluded = np.stack([np.isin(found, of_query) for found, of_query in zip(rows, excluded, strict=True)])
    scores = np.where(is_excluded, -np.inf, np.asarray(scores, np.float32))
    beyond = np.zeros(scores.shape, bool)
    if limits.absolute_margin is not None:
        beyond |= scores + np.float32(limits.absolute_margin) > lowest
    if limits.relative_margin is not None:
        beyond |= scores > lowest - np.abs(lowest) * np.float32(limits.relative_margin)
    if limits.max_score is not None:
        beyond |= scores > np.float32(limits.max_score)
    if limits.min_score is not None:
        beyond |= scores < np.float32(limits.min_score)
    scores = np.where(beyond, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, limits.range_min : range_max]
    if limits.sampling_strategy == "random":
        ranked = np.take_along_axis(scores, order, axis=1)
        draws = np.where(np.isfinite(ranked), np.random.default_rng(limits.seed).random(ranked.shape), 2.0)
        drawn = np.sort(np.argsort(draws, axis=1, kind="stable")[:, : limits.num_negatives], axis=1)
        order = np.take_along_axis(order, drawn, axis=1)
    order = order[:, : limits.num_negatives]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


def mine(
    model: str | Path,
    pairs: Annotated[Text, BY_NAME],
    *,
    column: str = TEXT,
    positive_column: str = "positive",
    corpus: Annotated[Text, BY_NAME] = "",
    corpus_column: str = TEXT,
    output: str | Path = "",
    output_format: Literal["triplet", "n-tuple"] = "triplet",
    num_negatives: int = 3,
    range_min: int = 0,
    range_max: int = 0,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: Literal["top", "random"] = "top",
    seed: int = 0,
    cross_encoder: str | Path = "",
    logits: bool = False,
    prompt_name: str = "",
    corpus_prompt_name: str = "",
    pooling: str = "",
    max_length: int = 0,
    batch_size: int = BATCH_SIZE,
    precision: Precision = "auto",
    parts: Listed = "",
    show_progress_bar: bool = False,
) -> list[dict[str, Any]] | Path:
    """Hard negatives, as the rows of the program's table; with `output`, the path of the table.

    >>> pairs = [("Does it rain?", "It rains."), ("Who sleeps?", "A cat sleeps.")]
    >>> rows = jaxdistill.mine(TEACHER, pairs, num_negatives=1)
    >>> rows[0]["positive"], rows[0]["negative"]
    ('It rains.', 'A cat sleeps.')

    Args:
      model: Teacher that encodes all texts: folder, package:NAME/PATH or hub name.
      pairs: Queries and positives: tables as for training, separated by commas. From Python also tuples or a table.
      column: Column of the queries.
      positive_column: Column of the positives.
      corpus: More documents, given like pairs.
      corpus_column: Column of the corpus.
      output: The .tsv file to write. Tabs and line ends in texts become spaces.
      output_format: One negative in each row, or all of a query.
      num_negatives: Negatives of each query.
      range_min: Nearest candidates to skip, counted after all other limits.
      range_max: Candidates to consider for each query, besides its positives; 0: as many as the other options need.
      max_score: Highest score of a negative.
      min_score: Lowest score of a negative.
      absolute_margin: Least difference between a negative's score and the lowest of the query's positives.
      relative_margin: The same as a share of that positive's score, such as 0.05.
      sampling_strategy: Take the nearest of the candidates, or random ones.
      seed: Of random sampling.
      cross_encoder: Cross-encoder that scores candidates and positives instead of the model.
      logits: Use the cross-encoder's logits, also for the limits; for MarginMSE.
      prompt_name: Name of the model's prompt for queries, or none; empty: the prompt of their role.
      corpus_prompt_name: The same for documents.
      pooling: Needed if the model's folder does not state its pooling.
      max_length: Most tokens of a text; 0: the model's.
      batch_size: Sentences of 32 tokens that are computed together.
      precision: Of matrix products; auto: bfloat16 where the hardware supports it.
      parts: Modules or files with your own readers and families.
      show_progress_bar: Show a bar.
    """
    if not output:
        options = {name: value for name, value in locals().items() if name != "output"}
        with tempfile.TemporaryDirectory() as folder:
            table = cast(Path, mine(**options, output=f"{folder}/negatives.tsv")).read_text("utf-8")
        names, *rows = (line.split("\t") for line in table.split("\n")[:-1])
        cells = (zip(names, row, strict=True) for row in rows)
        return [{name: float(cell) if name.startswith("score_") else cell for name, cell in row} for row in cells]
    path = local(output, "output")
    if path.suffix != ".tsv":
        raise InputError(f"output={path} must end in .tsv.")
    plugins.use(",".join(listed(parts)))
    columns = {TEXT: column, "positive": positive_column}
    pair_specs, corpus_specs = (
        split_specs(text) if isinstance(text, str) else sources_of(text, named, argument=argument)
        for text, named, argument in ((pairs, columns, "pairs"), (corpus, {TEXT: corpus_column}, "corpus"))
    )
    if logits and not cross_encoder:
        raise InputError("logits are those of a cross_encoder; cosines have none.")
    refuse_overwriting(path, local_files([*pair_specs, *corpus_specs]))
    documents = (text for (text,) in read(corpus_specs, {TEXT: corpus_column}))
    texts = questions(((text, answer) for text, answer in read(pair_specs, columns)), documents)
    limits = Limits(
        num_negatives=num_negatives, range_min=range_min, range_max=range_max, max_score=max_score, min_score=min_score,
        absolute_margin=absolute_margin, relative_margin=relative_margin, sampling_strategy=sampling_strategy, seed=seed,
    )  # fmt: skip
    range_max = limits.candidates(max(map(len, texts.positives)))
    embedder = load(model, pooling=pooling, max_length=max_length, batch_size=batch_size, precision=precision)
    scorer = load(cross_encoder, batch_size=batch_size, precision=precision) if cross_encoder else None
    prompts = {
        role: embedder.prefix(**({"prompt_name": name} if name else {"role": role}))
        for role, name in (("query", prompt_name), ("document", corpus_prompt_name))
    }
    origin = {
        **asdict(limits), "range_max": range_max, "output_format": output_format, "logits": logits,
        **{f"prompt of a {role}": prompt for role, prompt in prompts.items()},
        "model": embedder.model.digest(), "max_length": embedder.model.max_length, "precision": embedder.compute_dtype.name,
        "cross_encoder": scorer.model.digest() if scorer else "", "text": _digest(json.dumps(texts)),
    }  # fmt: skip
    counts = finished(path, origin)
    if counts is None:
        try_writing(path)
        found = mined(
            texts,
            _vectors(embedder, texts.queries, prompts["query"], "queries", progress=show_progress_bar),
            _vectors(embedder, texts.documents, prompts["document"], "documents", progress=show_progress_bar),
            limits=limits,
            rescore=_rescorer(scorer, texts, logits=logits, progress=show_progress_bar) if scorer else None,
            dot=embedder.model.definition.similarity == "dot",
        )
        have = np.isfinite(found.scores)
        names, *rows = _rows(texts, found, output_format)
        if not rows:
            raise InputError(
                f"no query has enough negatives: the most that are within the limits and no positives are "
                f"{have.sum(axis=1).max()}, num_negatives={num_negatives}; relax the limits, raise range_max, or add documents "
                "with corpus."
            )
        counts = {"rows": len(rows)}
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with drafted(path) as draft:
                with open(draft, "w", encoding="utf-8", newline="\n") as file:
                    for row in (names, *rows):
                        file.write("\t".join(re.sub(r"[\t\r\n]+", " ", cell) for cell in row) + "\n")
                write_note(path, origin, counts)
        mean = np.mean([score for scores in found.positive_scores for score in scores])
        log.info(f"mean score of positives {mean:.4f}, of negatives {found.scores[have].mean():.4f}")
        if lacking := (~have.all(axis=1)).sum():
            log.info(
                f"{lacking:,} of {len(have):,} queries have fewer than {num_negatives} negatives; range_max={range_max}"
            )
    log.info(f"{path}: {counts['rows']:,} rows; {len(texts.queries):,} queries, {len(texts.documents):,} documents")
    return path


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.mine`."""
    options = parse(mine, arguments, show_progress_bar=True)
    if not options["output"]:
        raise InputError("output is missing; give the .tsv file to write.")
    with printed(log):
        mine(**options)


def _vectors(
    embedder: Embedder, texts: Sequence[str], prompt: str, what: str, *, progress: bool
) -> Float[np.ndarray, "n e"]:
    """The texts' vectors; cached."""

    def embed(block: Sequence[str], advance: Advance) -> np.ndarray:
        return embedder.encode([prompt + text for text in block], prompt="", show_progress_bar=advance)

    of = _digest(embedder.model.digest(), embedder.compute_dtype.name, prompt, embedder.model.max_length, *texts)
    return cached_vectors(
        cache_folder() / "mined", of, embed, texts, width=embedder.width, what=what, progress=progress
    )


def _rescorer(scorer: Embedder, pairs: Questions, *, logits: bool, progress: bool) -> Scores:
    """A cross-encoder's scores; cached."""

    def score(block: Any, advance: Advance) -> np.ndarray:
        texts = [pairs.queries[query] for query in block[:, 0]], [pairs.documents[row] for row in block[:, 1]]
        return scorer.score(*texts, logits=logits, show_progress_bar=advance)[:, None]

    def scores(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        indices: Any = np.stack([queries, documents], axis=1)
        chosen = hashlib.sha256(indices.tobytes()).hexdigest()
        of = _digest(scorer.model.digest(), scorer.compute_dtype.name, logits, json.dumps(pairs), chosen)
        return cached_vectors(
            cache_folder() / "mined", of, score, indices, width=1, what="scoring pairs", progress=progress
        )[:][:, 0]

    return scores


def _digest(*facts: object) -> str:
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


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
        for row, positive_score in zip(pairs.positives[query], mined.positive_scores[query], strict=True):
            begin, score = [text, pairs.documents[row]], f"{positive_score:.7g}"
            if output_format == "triplet":
                yield from ([*begin, negative, score, other] for negative, other in zip(negatives, scores, strict=True))
            elif have == len(numbers):
                yield [*begin, *negatives, score, *scores]


make_callable(__name__, mine)

if __name__ == "__main__":
    run(main)
