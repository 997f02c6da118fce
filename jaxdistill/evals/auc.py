"""How well do similarities tell pairs that belong together from others: QQP, QNLI, MRPC?

Protocol of Trans-Encoder (Liu et al., ICLR 2022, https://arxiv.org/abs/2109.13059, section 4.1 and Table 2): the area
under the ROC curve of cosine similarity against the binary label; nothing is trained.

The sets come from a data folder. Differences from the paper: QQP is a sample of 1,000 pairs, because the paper's 10,000
could not be had. As in the paper QNLI's test labels are not public, and the first 1,000 of its dev pairs are for
choosing models: the rest is scored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from jaxdistill.core import Embed, InputError
from jaxdistill.evals.similarity import similarities
from jaxdistill.evals.tables import labelled, part_of


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """Where a set of labelled pairs lies in a data folder."""

    part: str
    file: str
    skipped: int = 0
    """Rows at the beginning that are kept for choosing models."""


SETS: Mapping[str, PairSet] = {
    "qqp": PairSet(part="pairs", file="qqp.sample.tsv.gz"),
    "qnli": PairSet(part="pairs", file="qnli.dev.tsv.gz", skipped=1000),
    "mrpc": PairSet(part="transfer", file="mrpc.test.tsv.gz"),
}
PROTOCOL = "area under the ROC curve of cosine similarity (Trans-Encoder)"


@dataclass(frozen=True, kw_only=True)
class AucTask:
    """The evaluation on a set that was read."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    labels: Int[np.ndarray, " n"]

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`auc/NAME`, in [0, 1]; 0.5 is chance."""
        return {f"auc/{self.name}": area_under_roc(self.labels, similarities(embed, self.first, self.second))}


def area_under_roc(labels: Int[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Probability that a pair of label 1 scores above one of label 0, ties counted half; in [0, 1].

    Raises:
      InputError: all labels are the same.
    """
    positives, negatives = int(np.sum(labels == 1)), int(np.sum(labels == 0))
    if not positives or not negatives:
        raise InputError(f"{positives} pairs of label 1 and {negatives} of label 0; the area needs both.")
    from scipy import stats  # imported here: it takes over a second

    ranks = stats.rankdata(scores)
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def files(folder: str | Path, name: str) -> tuple[Path, ...]:
    """The file of a set."""
    return (part_of(folder, SETS[name].part) / SETS[name].file,)


def protocol(name: str) -> str:
    """How a set is scored."""
    skipped = SETS[name].skipped
    return f"{PROTOCOL}; all but the first {skipped:,} pairs, which are dev" if skipped else PROTOCOL


def auc_task(folder: str | Path, name: str) -> AucTask:
    """The evaluation on a set of a data folder; InputError with file and line for a bad row."""
    (path,) = files(folder, name)
    labels, texts = labelled(path, ("sentence1", "sentence2"), ("0", "1"))
    start = SETS[name].skipped
    if len(texts) <= start:
        raise InputError(f"{path}: {len(texts)} pairs; more than {start} are needed, the first {start} are dev.")
    first, second = zip(*texts[start:], strict=True)
    return AucTask(name=name, first=first, second=second, labels=labels[start:])
