"""Measures how well similarities separate matching pairs from others: AUC on QQP, QNLI and MRPC.

Protocol of Trans-Encoder (Liu et al., ICLR 2022, https://arxiv.org/abs/2109.13059, section 3 and Table 2): the area
under the ROC curve of cosine similarity against the binary label; nothing is trained.

The sets come from a data folder. Their test and dev (for choosing models) splits share no row:

    qqp    the sample of 1,000 pairs; no dev, as no other pairs with both labels are available (paper: 10,000 and 1,000)
    qnli   the official dev set without its first 1,000 pairs; those 1,000 (as in the paper: test labels are not public)
    mrpc   the official test set; the first 408 of the 4,076 pairs of train, a tenth (paper: 408, the official dev set)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer, Task
from jaxdistill.evals.evaluation import Absent, Evaluation, Shown, Sources, Unit, average_heading, average_of, set_units
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.read_table import labelled, part_of
from jaxdistill.evals.similarity import area_under_roc, refuse_collapsed, similarities


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """The files of a set of labelled pairs in a data folder."""

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
    "qqp": PairSet(part="pairs", file="qqp.sample.tsv.gz"),
    "qnli": PairSet(part="pairs", file="qnli.dev.tsv.gz", dev_file="qnli.dev.tsv.gz", dev_rows=1000),
    "mrpc": PairSet(part="transfer", file="mrpc.test.tsv.gz", dev_file="mrpc.train.tsv.gz", dev_rows=408),
}
DEV_METRICS: Mapping[str, str] = {f"{name}-dev/auc": name for name, known in SETS.items() if known.dev_file}
"""Maps metrics to names of sets."""
PROTOCOL = "area under the ROC curve of cosine similarity (Trans-Encoder)"


def area(pairs: GradedPairs, metric: str, embed: Embed | Scorer) -> Mapping[str, float]:
    """The area under the ROC curve, in [0, 1], of pairs with scores of 0 and 1, named `metric`; 0.5 is chance."""
    scores = similarities(embed, pairs.first, pairs.second)
    refuse_collapsed(scores, f"{metric}: the model finds all {len(scores):,} pairs")
    return {metric: area_under_roc(pairs.scores, scores)}


def files(folder: str | Path, name: str) -> tuple[Path, ...]:
    """The file of a set."""
    return (part_of(folder, SETS[name].part) / SETS[name].file,)


def protocol(name: str) -> str:
    """How a set is scored."""
    skipped = SETS[name].skipped
    return f"{PROTOCOL}; all but the first {skipped:,} pairs, which are dev" if skipped else PROTOCOL


def test_pairs(folder: str | Path, name: str) -> GradedPairs:
    """The scored pairs of a set in a data folder; raises `InputError` with file and line for a bad row."""
    (path,) = files(folder, name)
    return _read(path, slice(SETS[name].skipped, None))


def dev_pairs(folder: str | Path, name: str) -> GradedPairs:
    """A set's dev pairs; the set must have some."""
    known = SETS[name]
    return _read(part_of(folder, known.part) / known.dev_file, slice(known.dev_rows))


def _task(folder: str | Path, name: str) -> Task:
    return partial(area, test_pairs(folder, name), f"auc/{name}")


def _read(path: Path, chosen: slice) -> GradedPairs:
    labels, texts = labelled(path, ("sentence1", "sentence2"), ("0", "1"))
    dev = chosen.start or chosen.stop or 0
    if len(texts) <= dev:
        raise InputError(f"{path}: {len(texts)} pairs; more than {dev} are needed, because the first {dev} are dev.")
    first, second = zip(*texts[chosen], strict=True)
    return GradedPairs(name=path.name, first=first, second=second, scores=labels[chosen].astype(np.float64))


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    """The published sets, unless the user gives pairs."""
    if sources.pairs or not sources.data:
        return ()
    return set_units(sources, "auc", tuple(SETS), files=files, protocol=protocol, task=_task)


EVALUATION = Evaluation(
    group="pairs",
    scores=("auc", *(metric.partition("/")[0] for metric in DEV_METRICS)),
    units=_units,
    averages=average_of("auc/average", [f"auc/{name}" for name in SETS]),
    shown=Shown(
        measure="AUC × 100",
        headings=average_heading("auc/average", "pairs, AUC"),
        dev_headings={metric: f"{name} dev, AUC" for metric, name in DEV_METRICS.items()},
    ),
)
