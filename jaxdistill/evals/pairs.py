"""Scores similarities of sentence pairs by their correlation with grades, or by how well they separate two classes.

Without a file of graded pairs, the sets are QQP, QNLI and MRPC by the protocol of Trans-Encoder (Liu et al., ICLR 2022,
https://arxiv.org/abs/2109.13059, section 3 and Table 2): the area under the ROC curve of cosine similarity against the binary
label; nothing is trained. Their test sets, and dev sets for choosing models, share no row:

    qqp    test: the data folder's sample of 1,000 pairs (paper: 10,000); no dev (paper: 1,000), for want of other pairs of both labels
    qnli   dev: the first 1,000 pairs of the official dev set; test: its other pairs (as in the paper; official test labels are not public)
    mrpc   test: the official one; dev: the first 408 of the 4,076 pairs of train, a tenth (paper: 408, the official dev set)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.core.files import foreign_errors
from jaxdistill.data.text import MissingColumn, file_of
from jaxdistill.evals import evaluation
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Result, Sources, TestSet
from jaxdistill.models.vectors import similarities

COLUMNS = ("score", "sentence1", "sentence2")
METRIC = "pairs/spearman"
AUC_METRIC = "pairs/auc"
"""Metric of pairs with the scores 0 and 1."""
TEST: Mapping[str, tuple[str, slice]] = {
    "qqp": ("pairs/qqp.sample.tsv.gz", slice(0, None)),
    "qnli": ("pairs/qnli.dev.tsv.gz", slice(1000, None)),
    "mrpc": ("transfer/mrpc.test.tsv.gz", slice(0, None)),
}
"""Maps sets of two classes to their file in a data folder, and their rows."""
DEV: Mapping[str, tuple[str, slice]] = {
    "qnli-dev/auc": ("pairs/qnli.dev.tsv.gz", slice(1000)),
    "mrpc-dev/auc": ("transfer/mrpc.train.tsv.gz", slice(408)),
}
"""Maps metrics of sets that choose models to their file in a data folder, and their rows."""


@dataclass(frozen=True, kw_only=True)
class GradedPairs:
    """Sentence pairs with similarity scores by humans (or another model); higher is more similar."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Float[np.ndarray, " n"]
    subsets: tuple[str, ...] = ()
    """The subset of each pair, if the file has a column `subset`."""

    def __post_init__(self):
        if len(np.unique(self.scores)) < 2 or not np.isfinite(self.scores).all():
            count = len(self.scores)
            raise InputError(f"{self.name}: its {count} pairs must have at least two different scores, all finite.")


def pairs_spearman(embed: Embed | Scorer, pairs: GradedPairs) -> float:
    """Spearman's correlation of the model's similarities and the scores, in [-1, 1]."""
    return evaluation.spearman(pairs.scores, similarities(embed, pairs.first, pairs.second), name=pairs.name)


def pairs_auc(embed: Embed | Scorer, pairs: GradedPairs) -> float:
    """The area under the ROC curve, in [0, 1], of pairs with scores of 0 and 1; 0.5 is chance."""
    predicted = similarities(embed, pairs.first, pairs.second)
    evaluation.refuse_collapsed(predicted, f"{pairs.name}: the model finds all {len(predicted):,} pairs")
    return evaluation.area_under_roc(pairs.scores, predicted)


def scored_pairs(pairs: GradedPairs, similarities: Float[np.ndarray, " n"]) -> dict[str, Any]:
    """Data of a scatter plot: the pairs' `name` and `gold` scores, and a model's `similarities`, rounded to four decimals."""
    rounded = np.round(similarities.astype(np.float64), 4).tolist()
    return {"name": pairs.name, "gold": pairs.scores.tolist(), "similarities": rounded}


def read_pairs(file: str | Path) -> GradedPairs:
    """Reads a file of graded pairs, with or without a column `subset`; raises `InputError` for a bad row."""
    try:
        rows = evaluation.read_table(file, (*COLUMNS, "subset"))
    except MissingColumn:
        rows = evaluation.read_table(file, COLUMNS, headerless=True)
    with foreign_errors(f"{file}: each row needs a score and two sentences"):
        scores = np.array([float(row[0]) for row in rows])
    return GradedPairs(
        name=Path(file).name,
        first=tuple(row[1] for row in rows),
        second=tuple(row[2] for row in rows),
        scores=scores,
        subsets=tuple(row[3] for row in rows if len(row) > len(COLUMNS)),
    )


def binary_pairs(file: str | Path, rows: slice) -> GradedPairs:
    """Some rows of a file with the columns `label`, `sentence1` and `sentence2`; the labels, 0 and 1, become scores."""
    labels, texts = evaluation.labelled(file, ("sentence1", "sentence2"), ("0", "1"))
    first = tuple(sentence for sentence, _ in texts[rows])
    second = tuple(sentence for _, sentence in texts[rows])
    return GradedPairs(name=Path(file).name, first=first, second=second, scores=labels[rows].astype(np.float64))


def _sets(sources: Sources) -> Iterator[TestSet]:
    """The user's file of pairs; without one, the sets of two classes in the data folder, each with its rows as `content`."""
    if sources.pairs:
        protocol = "Spearman of cosine similarity and score; AUC where all scores are 0 or 1"
        yield TestSet(name="pairs", protocol=protocol, files=(file_of("pairs", sources.pairs),))
        return
    if not sources.data:
        raise MissingSet("needs pairs=FILE with score, sentence1, sentence2, or data=FOLDER.")
    for name, (file, rows) in TEST.items():
        skipped = f"; all but the first {rows.start:,} pairs, which are dev" if rows.start else ""
        protocol = f"area under the ROC curve of cosine similarity (Trans-Encoder){skipped}"
        yield TestSet(name=f"auc/{name}", protocol=protocol, files=(Path(sources.data) / file,), content=rows)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float] | Result:
    """The AUC of a set of two classes; Spearman's correlation of the user's pairs, with the AUC if their scores are 0 and 1."""
    if test_set.content:  # the rows of a set of two classes
        return {test_set.name: pairs_auc(model.embed, binary_pairs(test_set.file, test_set.content))}
    pairs = read_pairs(test_set.file)
    predicted = similarities(model.embed, pairs.first, pairs.second)
    scores = {"pairs": evaluation.spearman(pairs.scores, predicted, name=pairs.name)}
    if np.isin(pairs.scores, (0, 1)).all():
        scores[AUC_METRIC] = evaluation.area_under_roc(pairs.scores, predicted)
    to_plot = scored_pairs(pairs, predicted)
    return Result(scores, to_plot, {"pairs": to_plot["similarities"]})


EVALUATION = Evaluation(
    task="pairs",
    scores=("auc", *(metric.partition("/")[0] for metric in DEV), "pairs"),
    sets=_sets,
    run=_run,
    averages=evaluation.average_of("auc/average", [f"auc/{name}" for name in TEST]),
    headings={
        "auc/average": "pairs, AUC",
        "pairs": "graded pairs",
        AUC_METRIC: "graded pairs, AUC",
        METRIC: "graded pairs",
        **{metric: f"{metric.partition('-')[0]} dev, AUC" for metric in DEV},
    },
)
