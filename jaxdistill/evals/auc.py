"""Measures how well similarities separate matching pairs from others: AUC on QQP, QNLI and MRPC.

Protocol of Trans-Encoder (Liu et al., ICLR 2022, https://arxiv.org/abs/2109.13059, section 3 and Table 2): the area
under the ROC curve of cosine similarity against the binary label; nothing is trained.

The sets come from a data folder. Their test and dev (for choosing models) splits share no row:

    qqp    the sample of 1,000 pairs; no dev, as no other pairs with both labels are available (paper: 10,000 and 1,000)
    qnli   the official dev set without its first 1,000 pairs; those 1,000 (as in the paper: test labels are not public)
    mrpc   the official test set; the first 408 of the 4,076 pairs of train, a tenth (paper: 408, the official dev set)
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_of
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.read_table import labelled, part_of
from jaxdistill.evals.similarity import area_under_roc, refuse_collapsed, similarities

TEST: Mapping[str, tuple[str, str, slice]] = {
    "qqp": ("pairs", "qqp.sample.tsv.gz", slice(0, None)),
    "qnli": ("pairs", "qnli.dev.tsv.gz", slice(1000, None)),
    "mrpc": ("transfer", "mrpc.test.tsv.gz", slice(0, None)),
}
"""Maps sets to their folder, file and rows."""
DEV: Mapping[str, tuple[str, str, slice]] = {
    "qnli": ("pairs", "qnli.dev.tsv.gz", slice(1000)),
    "mrpc": ("transfer", "mrpc.train.tsv.gz", slice(408)),
}
"""The same for choosing models."""
DEV_METRICS: Mapping[str, str] = {f"{name}-dev/auc": name for name in DEV}
"""Maps metrics to names of sets."""
PROTOCOL = "area under the ROC curve of cosine similarity (Trans-Encoder)"


def area(pairs: GradedPairs, metric: str, embed: Embed | Scorer) -> Mapping[str, float]:
    """The area under the ROC curve, in [0, 1], of pairs with scores of 0 and 1, named `metric`; 0.5 is chance."""
    scores = similarities(embed, pairs.first, pairs.second)
    refuse_collapsed(scores, f"{metric}: the model finds all {len(scores):,} pairs")
    return {metric: area_under_roc(pairs.scores, scores)}


def dev_pairs(folder: str | Path, name: str) -> GradedPairs:
    """The pairs for choosing models of a set in a data folder."""
    part, file, rows = DEV[name]
    return binary_pairs(part_of(folder, part) / file, rows)


def binary_pairs(path: Path, rows: slice) -> GradedPairs:
    """These rows of a file, with labels as scores; raises `InputError` for a bad row, or if there are none."""
    labels, texts = labelled(path, ("sentence1", "sentence2"), ("0", "1"))
    if not texts[rows]:
        raise InputError(
            f"{path}: {len(texts)} pairs; more than {rows.start} are needed, because the first ones are dev."
        )
    first, second = zip(*texts[rows], strict=True)
    return GradedPairs(name=path.name, first=first, second=second, scores=labels[rows].astype(np.float64))


def _sets(sources: Sources) -> Iterable[TestSet]:
    """The published sets, unless the user gives pairs."""
    for name, (part, file, rows) in TEST.items() if sources.data and not sources.pairs else ():
        skipped = f"; all but the first {rows.start:,} pairs, which are dev" if rows.start else ""
        path = sources.part(part, "auc") / file
        yield TestSet(name=f"auc/{name}", protocol=PROTOCOL + skipped, files=(path,), content=rows)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    return area(binary_pairs(test_set.file, test_set.content), test_set.name, model.embed)


EVALUATION = Evaluation(
    task="pairs",
    scores=("auc", *(metric.partition("/")[0] for metric in DEV_METRICS)),
    sets=_sets,
    run=_run,
    averages=average_of("auc/average", [f"auc/{name}" for name in TEST]),
    headings={"auc/average": "pairs, AUC"},
    dev_headings={metric: f"{name} dev, AUC" for metric, name in DEV_METRICS.items()},
)
