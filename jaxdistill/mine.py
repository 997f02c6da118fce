"""Finds hard negatives: for each query, the nearest documents that are not among its positives.

  python -m jaxdistill.mine --model=TEACHER --pairs=pairs.tsv --output=negatives.tsv --relative_margin=0.05
  python -m jaxdistill.mine --model=TEACHER --pairs='passages/*.tsv.gz' --column=title --positive_column=text \\
      --corpus='passages/*.tsv.gz' --corpus_column=text --output=negatives.tsv --max_score=0.9 --num_negatives=5

Writes a table with the columns text, positive, negative, score_positive and score_negative. The format n-tuple has negative_1,
score_negative_1 and so on, and leaves out queries that have too few negatives. Scores are cosines of the model, dot products if its
checkpoint names them (`similarity_fn_name`), or a cross-encoder's scores in (0, 1). With `--logits` they are its logits, which still
differ where the scores round to 1; MarginMSE learns from these differences.

Documents are all distinct positives and the texts of the corpus. A document with the text of the query or of one of its
positives, ignoring case and white space, is never a negative. The search is exact and runs on the devices. Vectors are cached by
model, prompt and text. If the program is killed, the same command resumes it.

The limits have the names, meaning and order of sentence-transformers' `mine_hard_negatives`; the negatives are equal if no scores
tie and both see the same candidates. `relative_margin=0.05` is NV-Retriever's TopK-PercPos of 95 % (arXiv 2407.15831).
"""

import csv
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pandas
import tyro
from jaxtyping import Float, Integer

from jaxdistill.core import InputError, Precision
from jaxdistill.core.cli import BATCH_SIZE, BY_NAME, Listed, listed, make_callable, parse, run
from jaxdistill.core.files import drafted, output_file, try_writing, writing
from jaxdistill.core.ops.nearest import nearest, scores_of_pairs
from jaxdistill.core.paths import cache_folder
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.core.runtime import Advance, log_to_stdout
from jaxdistill.data.targets import BLOCK_ROWS, cached_vectors, finished, write_note
from jaxdistill.data.text import TEXT, Text, read, sources_of
from jaxdistill.models.inference import Embedder, load
from jaxdistill.models.outside import PREFIX, Reranker

log = logging.getLogger("jaxdistill.mine")  # `__name__` is `__main__` in the program


class Questions(NamedTuple):
    """Distinct queries and documents, and the documents that answer each query."""

    queries: list[str]
    documents: list[str]
    positives: list[list[int]]
    """For each query, the indices in `documents` of its positives."""
    excluded: list[list[int]]
    """For each query, the indices of documents that cannot be its negatives; see `questions`."""


def questions(pairs: Iterable[Sequence[str]], corpus: Iterable[Sequence[str]]) -> Questions:
    """Collects distinct, non-empty queries and documents; raises `InputError` if no pair remains. A query excludes documents whose text
    equals its own or that of one of its positives, ignoring case and white space."""
    positive_rows: dict[str, dict[int, None]] = {}  # by query; a dict, because it keeps order and has no duplicates
    document_rows: dict[str, int] = {}
    for text in filter(None, (text.strip() for (text,) in corpus)):
        document_rows.setdefault(text, len(document_rows))
    for query, positive in (map(str.strip, pair) for pair in pairs):
        if query and positive:
            row = document_rows.setdefault(positive, len(document_rows))
            positive_rows.setdefault(query, {})[row] = None
    if not positive_rows:
        raise InputError("no pair has both a query and a positive; check pairs, column and positive_column.")

    def folded(text: str) -> str:
        return " ".join(text.casefold().split())

    documents = list(document_rows)
    # Folded texts that a folded query excludes: queries that differ only in case and white space also exclude each other's positives.
    barred_texts = defaultdict[str, set[str]](set)
    for query, rows in positive_rows.items():
        barred_texts[folded(query)].update(map(folded, (query, *(documents[row] for row in rows))))
    # Rows of the documents with a barred text; without all other texts, of which a corpus may have millions.
    rows_by_text: dict[str, list[int]] = {text: [] for texts in barred_texts.values() for text in texts}
    for row, document in enumerate(documents):
        if (text := folded(document)) in rows_by_text:
            rows_by_text[text].append(row)
    excluded = [sorted(chain(*(rows_by_text[text] for text in barred_texts[folded(query)]))) for query in positive_rows]
    return Questions(list(positive_rows), documents, list(map(list, positive_rows.values())), excluded)


def hard_negatives(
    scores: Float[np.ndarray, "q candidates"],
    rows: Integer[np.ndarray, "q candidates"],
    excluded: Sequence[Sequence[int]],
    positive_scores: Sequence[Sequence[float] | Float[np.ndarray, " positives"]],
    *,
    num_negatives: int,
    range_min: int,
    range_max: int,
    max_score: float | None = None,
    min_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    sampling_strategy: str = "top",
    seed: int = 0,
) -> tuple[Integer[np.ndarray, "q negatives"], Float[np.ndarray, "q negatives"]]:
    """The rows and scores of each query's negatives, best first; where a query has too few, the scores are minus infinity. `scores`
    are those of each query with its candidates, and `rows` the candidates' rows among the documents. `excluded` are the rows that
    cannot be a query's negatives, `positive_scores` the scores of its positives. All further arguments are those of `mine`."""
    lowest_positive = np.array([min(query_scores) for query_scores in positive_scores], np.float32)[:, None]
    is_barred = np.stack([np.isin(candidates, barred) for candidates, barred in zip(rows, excluded, strict=True)])
    if absolute_margin is not None:
        is_barred |= scores + np.float32(absolute_margin) > lowest_positive
    if relative_margin is not None:
        is_barred |= scores > lowest_positive - np.abs(lowest_positive) * np.float32(relative_margin)
    if max_score is not None:
        is_barred |= scores > np.float32(max_score)
    if min_score is not None:
        is_barred |= scores < np.float32(min_score)
    scores = np.where(is_barred, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, range_min:range_max]  # columns of `scores`, best first
    if sampling_strategy == "random":
        ranked_scores = np.take_along_axis(scores, order, axis=1)
        # Takes the candidates with the lowest random numbers. 2 is above all of them, so barred candidates come last.
        draws = np.where(np.isfinite(ranked_scores), np.random.default_rng(seed).random(ranked_scores.shape), 2.0)
        ranks = np.sort(np.argsort(draws, axis=1, kind="stable")[:, :num_negatives], axis=1)  # sorted: best first again
        order = np.take_along_axis(order, ranks, axis=1)
    order = order[:, :num_negatives]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


class Models(NamedTuple):
    """The models that find and score candidates, and how they read texts."""

    embedder: Embedder
    cross_encoder: Embedder | Reranker | None
    """Scores the candidates that the embedder finds, in the same precision; None: the embedder's scores count."""
    query_prompt: str
    document_prompt: str
    logits: bool
    """Whether the cross-encoder scores by logits."""
    progress: bool

    def scorer_digest(self) -> str:
        """Digest of the cross-encoder; empty without one."""
        if self.cross_encoder is None:
            return ""
        return (self.cross_encoder.model if isinstance(self.cross_encoder, Embedder) else self.cross_encoder).digest()


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
    plugins: Listed = "",
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
      cross_encoder: Cross-encoder that scores candidates and positives, or sentence_transformers:MODEL, which runs on torch.
      logits: Use the cross-encoder's logits, also for the limits; for MarginMSE.
      prompt_name: Name of the model's prompt for queries, or none; empty: the prompt of their role.
      corpus_prompt_name: The same for documents.
      pooling: Needed if the model's folder does not state its pooling.
      max_length: Maximum tokens per text; 0: the model's.
      batch_size: Sentences of 32 tokens that are computed together.
      precision: Of matrix products; auto: bfloat16 where the hardware supports it.
      plugins: Modules or files with your own families.
      show_progress_bar: Progress bar: on in the program, off from Python.
    """
    path = output_file(output, [".tsv"]) if output else None
    use_plugins(",".join(listed(plugins)))
    pair_columns = {TEXT: column, "positive": positive_column}
    corpus_columns = {TEXT: corpus_column}
    pair_rows = read(sources_of(pairs, pair_columns, argument="pairs"), pair_columns)
    texts = questions(pair_rows, read(sources_of(corpus, corpus_columns, argument="corpus"), corpus_columns))
    # All limits but `min_score` exclude the nearest candidates, so more are needed. Positives are added as in sentence-transformers.
    candidates_per_negative = 1 if (max_score, absolute_margin, relative_margin) == (None, None, None) else 10
    range_max = range_max or range_min + candidates_per_negative * num_negatives + max(map(len, texts.positives))
    if num_negatives < 1 or not 0 <= range_min <= range_max - num_negatives:
        raise InputError(f"{num_negatives=} must be at least 1, {range_min=} 0, and {range_max=} at least their sum.")
    limits: dict[str, Any] = dict(
        num_negatives=num_negatives, range_min=range_min, range_max=range_max, max_score=max_score, min_score=min_score,
        absolute_margin=absolute_margin, relative_margin=relative_margin, sampling_strategy=sampling_strategy, seed=seed,
    )  # fmt: skip
    embedder = load(model, pooling=pooling, max_length=max_length, batch_size=batch_size, precision=precision)
    query_prompt = embedder.prefix(prompt_name or None, "" if prompt_name else "query")
    document_prompt = embedder.prefix(corpus_prompt_name or None, "" if corpus_prompt_name else "document")
    scorer_name = str(cross_encoder)
    load_scorer = Reranker if scorer_name.startswith(PREFIX) else partial(load, precision=precision)
    scorer = load_scorer(scorer_name, batch_size=batch_size) if scorer_name else None
    models = Models(embedder, scorer, query_prompt, document_prompt, logits, show_progress_bar)
    return _write_or_return(path, texts, models, limits, output_format)


def _write_or_return(
    path: Path | None, texts: Questions, models: Models, limits: Mapping[str, Any], output_format: str
) -> list[dict[str, Any]] | Path:
    """Writes the rows of `_mined` to a `.tsv` file with a note of their origin; without a path, returns the rows.
    If the file exists with the same origin, nothing is computed."""
    if path is None:
        return _mined(texts, models, limits, output_format)
    embedder = models.embedder
    origin = {
        **limits, "output_format": output_format, "logits": models.logits, "prompt of a query": models.query_prompt,
        "prompt of a document": models.document_prompt, "model": embedder.model.digest(), "max_length": embedder.model.max_length,
        "precision": embedder.compute_dtype.name, "cross_encoder": models.scorer_digest(), "text": _digest(json.dumps(texts)),
    }  # fmt: skip
    counts = finished(path, origin)
    if counts is None:
        try_writing(path)
        table = pandas.DataFrame(_mined(texts, models, limits, output_format)).replace(r"[\t\r\n]+", " ", regex=True)
        counts = {"rows": len(table)}
        with writing(path), drafted(path) as draft:
            table.to_csv(draft, sep="\t", index=False, float_format="%.7g", quoting=csv.QUOTE_NONE)
            write_note(path, draft, origin, counts)
    log.info(f"{path}: {counts['rows']:,} rows; {len(texts.queries):,} queries, {len(texts.documents):,} documents")
    return path


def _mined(texts: Questions, models: Models, limits: Mapping[str, Any], output_format: str) -> list[dict[str, Any]]:
    """The rows of the output. Vectors and a cross-encoder's scores are cached on disk. Raises `InputError` if there are no rows."""
    embedder = models.embedder
    scorer = models.cross_encoder
    folder = cache_folder() / "mined"
    is_dot = embedder.model.definition.similarity == "dot"
    precision = embedder.compute_dtype.name

    def prompted_vectors(prompt: str, sentences: Sequence[str], title: str) -> Float[np.ndarray, "n e"]:
        def embed(block: Sequence[str], advance: Advance) -> np.ndarray:
            return embedder.encode([prompt + text for text in block], prompt="", show_progress_bar=advance)

        key = _digest(embedder.model.digest(), precision, prompt, embedder.model.max_length, *sentences)
        return cached_vectors(folder, key, embed, sentences, embedder.width, what=title, progress=models.progress)

    def pair_scores(query_rows: np.ndarray, document_rows: np.ndarray) -> Float[np.ndarray, " pairs"]:
        """The scores of pairs of a query and a document, by the cross-encoder if there is one."""
        if scorer is None:
            return scores_of_pairs(query_vectors, document_vectors, query_rows, document_rows, dot=is_dot)

        # `scorer` is a default argument because the type checker forgets in a nested function that it is not None.
        def score(block: Any, advance: Advance, scorer: Embedder | Reranker = scorer) -> np.ndarray:
            queries = [texts.queries[row] for row, _ in block]
            documents = [texts.documents[row] for _, row in block]
            return scorer.score(queries, documents, logits=models.logits, show_progress_bar=advance)[:, None]

        pairs: Any = np.stack([query_rows, document_rows], axis=1)
        pairs_digest = hashlib.sha256(pairs.tobytes()).hexdigest()
        key = _digest(models.scorer_digest(), precision, models.logits, json.dumps(texts), pairs_digest)
        return cached_vectors(folder, key, score, pairs, 1, what="scoring pairs", progress=models.progress)[:, 0]

    query_vectors = prompted_vectors(models.query_prompt, texts.queries, "queries")
    document_vectors = prompted_vectors(models.document_prompt, texts.documents, "documents")
    query_rows = np.arange(len(texts.queries))
    positive_counts = [len(positives) for positives in texts.positives]
    scores_of_positives = pair_scores(np.repeat(query_rows, positive_counts), np.concatenate(texts.positives))
    positive_scores = np.split(scores_of_positives, np.cumsum(positive_counts)[:-1])  # by query
    # The nearest documents may all be excluded (positives, the query itself), so as many more are searched: [queries, depth].
    depth = min(limits["range_max"] + max(map(len, texts.excluded)), len(texts.documents))
    blocks = (document_vectors[start : start + BLOCK_ROWS] for start in range(0, len(texts.documents), BLOCK_ROWS))
    scores, rows = nearest(query_vectors, blocks, count=depth, dot=is_dot)
    if scorer:
        scores = pair_scores(np.repeat(query_rows, depth), rows.ravel()).reshape(rows.shape)
    negatives, negative_scores = hard_negatives(scores, rows, texts.excluded, positive_scores, **limits)
    num_negatives = limits["num_negatives"]
    suffixes = [""] if output_format == "triplet" else [f"_{rank}" for rank in range(1, num_negatives + 1)]
    table = _table_rows(texts, positive_scores, negatives, negative_scores, suffixes)
    negative_counts = np.isfinite(negative_scores).sum(axis=1)
    if not table:
        raise InputError(
            f"no query has enough negatives: at most {negative_counts.max()} candidates of a query are within the limits, "
            f"{num_negatives=}; relax the limits, raise range_max, or add documents with corpus."
        )
    mean_of_negatives = negative_scores[np.isfinite(negative_scores)].mean()
    log.info("mean score of positives %.4f, of negatives %.4f", scores_of_positives.mean(), mean_of_negatives)
    if lacking := (negative_counts < num_negatives).sum():
        share = f"{lacking:,} of {len(negative_counts):,} queries"
        log.info(f"{share} have fewer than {num_negatives} negatives; range_max={limits['range_max']}")
    return table


def _table_rows(
    texts: Questions, positive_scores: Sequence[Any], negatives: np.ndarray, scores: np.ndarray, suffixes: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of the output, from the `negatives` and their `scores`, which `hard_negatives` returns. A row has a query, one of its
    positives, and as many of its negatives as there are `suffixes` of columns. Negatives that do not fill a row are left out."""
    names = ["text", "positive", *(f"negative{suffix}" for suffix in suffixes)]
    names += ["score_positive", *(f"score_negative{suffix}" for suffix in suffixes)]
    table = []
    for query, count in enumerate(np.isfinite(scores).sum(axis=1).tolist()):
        ranks_by_row = np.arange(count - count % len(suffixes)).reshape(-1, len(suffixes))  # whole rows only
        for positive, positive_score in zip(texts.positives[query], positive_scores[query], strict=True):
            for ranks in ranks_by_row:
                cells = [texts.documents[row] for row in (positive, *negatives[query, ranks])]
                numbers = [float(f"{score:.7g}") for score in (positive_score, *scores[query, ranks])]
                table.append(dict(zip(names, [texts.queries[query], *cells, *numbers], strict=True)))
    return table


def _digest(*facts: object) -> str:
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.mine`."""
    options, _ = parse(mine, arguments, show_progress_bar=True, output=tyro.MISSING)  # MISSING: required
    log_to_stdout()
    mine(**options)


make_callable(__name__, mine)

if __name__ == "__main__":
    run(main)
