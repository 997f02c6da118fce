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
from typing import NamedTuple

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_heading, average_of
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.read_table import labelled, part_of
from jaxdistill.evals.similarity import area_under_roc, refuse_collapsed, similarities


class PairSet(NamedTuple):
    """A set of labelled pairs in a data folder."""

    part: str
    file: str
    dev_file: str = ""
    """File with the pairs for choosing models; empty: the set has none."""
    dev_rows: int = 0
    """Number of pairs for choosing models, at the start of `dev_file`."""

    @property
    def skipped(self) -> int:
        """Number of rows at the start of the test file that are dev rows and not scored."""
        return self.dev_rows if self.dev_file == self.file else 0


SETS: Mapping[str, PairSet] = {
    "qqp": PairSet("pairs", "qqp.sample.tsv.gz"),
    "qnli": PairSet("pairs", "qnli.dev.tsv.gz", "qnli.dev.tsv.gz", dev_rows=1000),
    "mrpc": PairSet("transfer", "mrpc.test.tsv.gz", "mrpc.train.tsv.gz", dev_rows=408),
}
DEV_METRICS: Mapping[str, str] = {f"{name}-dev/auc": name for name, pairs in SETS.items() if pairs.dev_file}
"""Maps metrics to names of sets."""
PROTOCOL = "area under the ROC curve of cosine similarity (Trans-Encoder)"


def area(pairs: GradedPairs, metric: str, embed: Embed | Scorer) -> Mapping[str, float]:
    """The area under the ROC curve, in [0, 1], of pairs with scores of 0 and 1, named `metric`; 0.5 is chance."""
    scores = similarities(embed, pairs.first, pairs.second)
    refuse_collapsed(scores, f"{metric}: the model finds all {len(scores):,} pairs")
    return {metric: area_under_roc(pairs.scores, scores)}


def test_pairs(path: Path, name: str) -> GradedPairs:
    """The scored pairs of a set; raises `InputError` with file and line for a bad row."""
    return _read(path, slice(SETS[name].skipped, None))


def dev_pairs(folder: str | Path, name: str) -> GradedPairs:
    """A set's dev pairs in a data folder; the set must have some."""
    return _read(part_of(folder, SETS[name].part) / SETS[name].dev_file, slice(SETS[name].dev_rows))


def _read(path: Path, chosen: slice) -> GradedPairs:
    labels, texts = labelled(path, ("sentence1", "sentence2"), ("0", "1"))
    dev = chosen.start or chosen.stop or 0
    if len(texts) <= dev:
        raise InputError(f"{path}: {len(texts)} pairs; more than {dev} are needed, because the first {dev} are dev.")
    first, second = zip(*texts[chosen], strict=True)
    return GradedPairs(name=path.name, first=first, second=second, scores=labels[chosen].astype(np.float64))


def _sets(sources: Sources) -> Iterable[TestSet]:
    """The published sets, unless the user gives pairs."""
    for name, pairs in SETS.items() if sources.data and not sources.pairs else ():
        skipped = f"; all but the first {pairs.skipped:,} pairs, which are dev" if pairs.skipped else ""
        file = sources.part(pairs.part, "auc") / pairs.file
        yield TestSet(name=f"auc/{name}", protocol=PROTOCOL + skipped, files=(file,), content=name)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    return area(test_pairs(test_set.file, test_set.content), test_set.name, model.embed)


EVALUATION = Evaluation(
    task="pairs",
    scores=("auc", *(metric.partition("/")[0] for metric in DEV_METRICS)),
    sets=_sets,
    run=_run,
    averages=average_of("auc/average", [f"auc/{name}" for name in SETS]),
    measure="AUC × 100",
    headings=average_heading("auc/average", "pairs, AUC"),
    dev_headings={metric: f"{name} dev, AUC" for metric, name in DEV_METRICS.items()},
)
