"""Measures how well similarities correlate with the scores of graded sentence pairs.

A file of graded pairs is a table with the columns `score`, `sentence1`, `sentence2`. With a header line the columns may have any
order, and other columns are ignored; without one the file has exactly these three. The scale of the scores does not matter: only
their order is used.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Result, Sources, TestSet
from jaxdistill.evals.read_table import read_table
from jaxdistill.evals.similarity import area_under_roc, similarities, spearman

COLUMNS = ("score", "sentence1", "sentence2")
METRIC = "pairs/spearman"
AUC_METRIC = "pairs/auc"
"""Metric of pairs with the scores 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class GradedPairs:
    """Sentence pairs with similarity scores by humans (or another model); higher is more similar."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Float[np.ndarray, " n"]
    subsets: tuple[str, ...] = ()
    """The subset of each pair, if the file has a column `subset`."""


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Pairs with their gold scores and a model's similarities, for a scatter plot."""

    name: str
    gold: Sequence[float]
    similarities: Sequence[float]
    pairs: Sequence[Sequence[str]]


def is_binary(pairs: GradedPairs) -> bool:
    """Whether the scores are binary labels: only 0 and 1, both present."""
    return set(pairs.scores.tolist()) == {0.0, 1.0}


def pairs_spearman(embed: Embed | Scorer, pairs: GradedPairs) -> float:
    """Spearman's correlation of the model's similarities and the scores, in [-1, 1]."""
    return spearman(pairs.scores, similarities(embed, pairs.first, pairs.second), what=pairs.name)


def correlation(pairs: GradedPairs, metric: str, embed: Embed | Scorer) -> Mapping[str, float]:
    """`pairs_spearman`, named `metric`."""
    return {metric: pairs_spearman(embed, pairs)}


def rounded(similarities: Float[np.ndarray, " n"]) -> list[float]:
    """The similarities with four decimals, for files."""
    return np.round(similarities.astype(np.float64), 4).tolist()


def scored_pairs(pairs: GradedPairs, similarities: Float[np.ndarray, " n"]) -> ScoredPairs:
    """The pairs with a model's similarities, rounded to four decimals."""
    texts = list(zip(pairs.first, pairs.second, strict=True))
    return ScoredPairs(name=pairs.name, gold=pairs.scores.tolist(), similarities=rounded(similarities), pairs=texts)


def read_pairs(path: str | Path) -> GradedPairs:
    """Reads a file of graded pairs; raises `InputError` for a bad row."""
    table = read_table(path, COLUMNS, needs_header=False)
    if len(table["score"]) < 2:
        raise InputError(f"{path}: one graded pair; a correlation needs at least 2.")
    try:
        scores = np.array(list(map(float, table["score"])))
    except ValueError as error:
        raise InputError(
            f"{path}: {error}; each line needs a score and two sentences ({', '.join(COLUMNS)})."
        ) from error
    if not np.isfinite(scores).all():
        raise InputError(f"{path}: row {np.isfinite(scores).argmin() + 1} has no finite score.")
    return GradedPairs(
        name=Path(path).name,
        first=table["sentence1"],
        second=table["sentence2"],
        scores=scores,
        subsets=table.get("subset", ()),
    )


def _sets(sources: Sources) -> Iterable[TestSet]:
    if sources.pairs:
        protocol = "Spearman of cosine similarity and score; AUC where all scores are 0 or 1"
        yield TestSet(name="pairs", protocol=protocol, files=(Path(sources.pairs),))
    elif not sources.data:
        raise MissingSet(
            "task pairs needs pairs=FILE with score, sentence1, sentence2, or data=FOLDER with QQP, QNLI and MRPC."
        )


def _run(model: Model, test_set: TestSet) -> Result:
    pairs = read_pairs(test_set.file)
    predicted = similarities(model.embed, pairs.first, pairs.second)
    scores = {"pairs": spearman(pairs.scores, predicted, what=pairs.name)}
    if is_binary(pairs):
        scores[AUC_METRIC] = area_under_roc(pairs.scores, predicted)
    drawn = asdict(scored_pairs(pairs, predicted))
    return Result(scores, drawn, details={"pairs": drawn["similarities"]})


EVALUATION = Evaluation(
    task="pairs",
    scores=("pairs",),
    sets=_sets,
    run=_run,
    headings={"pairs": "graded pairs", AUC_METRIC: "graded pairs, AUC", METRIC: "graded pairs"},
)
