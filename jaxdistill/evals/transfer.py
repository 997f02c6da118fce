"""Scores SentEval's transfer tasks by a linear probe on sentence vectors: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC.

The protocol is SentEval's (Conneau and Kiela, LREC 2018; ConGen's Table 10): a logistic regression on frozen vectors.
`probe.py` describes its training and the differences from SentEval's. MRPC's features are `[|u - v|, u * v]`, and it also
reports the F1 of paraphrases. Vectors are not normalised: their length affects the penalty.

The sets come from a data folder: `transfer/mr.all.tsv.gz`, `transfer/sst2.train.tsv.gz` and so on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Integer

from jaxdistill.core import Embed
from jaxdistill.evals import evaluation, probe
from jaxdistill.evals.evaluation import Absent, Evaluation, Shown, Sources, Unit, average_heading, average_of, set_units
from jaxdistill.evals.read_table import labelled, part_of
from jaxdistill.evals.similarity import finite_vectors, refuse_same_vectors

TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
BINARY = ("0", "1")
Scoring = Callable[
    [Float[np.ndarray, "n d"], Integer[np.ndarray, " n"], Mapping[str, Bool[np.ndarray, " n"]]], probe.Accuracy
]


@dataclass(frozen=True, kw_only=True)
class TransferSet:
    """A set's splits, class names, and protocol for training and testing."""

    splits: tuple[str, ...]
    protocol: str
    score: Scoring
    classes: tuple[str, ...] = BINARY
    pairs: bool = False


_NESTED = TransferSet(
    splits=("all",),
    protocol="ten folds, L2 chosen in ten folds of the other nine",
    score=lambda features, labels, split: probe.nested_folds(features, labels),
)
SETS: Mapping[str, TransferSet] = {
    "mr": _NESTED,
    "cr": _NESTED,
    "subj": _NESTED,
    "mpqa": _NESTED,
    "sst2": TransferSet(
        splits=("train", "dev", "test"),
        protocol="test accuracy, L2 chosen on dev",
        score=lambda features, labels, split: probe.dev_selection(features, labels, split["dev"], split["test"]),
    ),
    "trec": TransferSet(
        splits=("train", "test"),
        protocol="test accuracy, L2 chosen in ten folds of train",
        score=lambda features, labels, split: probe.train_folds(features, labels, split["test"]),
        classes=TREC_CLASSES,
    ),
    "mrpc": TransferSet(
        splits=("train", "test"),
        protocol="test accuracy and F1 of [|u - v|, u * v], L2 chosen in ten folds of train",
        score=lambda features, labels, split: probe.train_folds(features, labels, split["test"]),
        pairs=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Labelled sentences or pairs of all splits of a set, concatenated."""

    sentences: tuple[tuple[str, ...], ...]
    """One or two sentences per row."""
    labels: Integer[np.ndarray, " n"]
    split: Mapping[str, Bool[np.ndarray, " n"]]
    """Maps splits to masks of their rows."""


def accuracies(name: str, rows: Rows, embed: Embed) -> Mapping[str, float]:
    """`transfer/NAME`: accuracy on a set in [0, 1]; for MRPC also `transfer/mrpc f1`."""
    chosen = SETS[name]
    vectors = row_vectors(embed, rows.sentences)
    features = pair_features(*vectors) if chosen.pairs else vectors[0]
    found = chosen.score(features, rows.labels, rows.split)
    scores = {f"transfer/{name}": found.accuracy}
    if chosen.pairs:
        scores[f"transfer/{name} f1"] = f1(rows.labels[rows.split["test"]], found.predicted)
    return scores


def row_vectors(embed: Embed, rows: Sequence[tuple[str, ...]]) -> list[Float[np.ndarray, "n e"]]:
    """Vectors of each column of sentences; each distinct sentence is embedded once, all in one call."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(text for row in rows for text in row))}
    vectors = finite_vectors(embed, list(distinct))
    refuse_same_vectors(vectors, list(distinct), f"the model finds all {len(distinct):,} sentences")
    return [vectors[[distinct[text] for text in column]] for column in zip(*rows, strict=True)]


def pair_features(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """`[|u - v|, u * v]`, `d = 2 e`."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


def f1(labels: Integer[np.ndarray, " n"], predicted: Integer[np.ndarray, " n"]) -> float:
    """F1 of class 1 in [0, 1]: the harmonic mean of precision and recall; 0 if neither side has the class."""
    either = np.sum(labels == 1) + np.sum(predicted == 1)
    return float(2 * np.sum((labels == 1) & (predicted == 1)) / max(either, 1))


def files(folder: str | Path, name: str) -> tuple[Path, ...]:
    """The files of a set, one for each split."""
    return tuple(part_of(folder, "transfer") / f"{name}.{split}.tsv.gz" for split in SETS[name].splits)


def protocol(name: str) -> str:
    """How a set is scored."""
    return f"{probe.PROTOCOL}; {SETS[name].protocol}"


def read_set(folder: str | Path, name: str) -> Rows:
    """The rows of a set of a data folder; raises `InputError` with file and line for a bad row."""
    chosen = SETS[name]
    columns = ("sentence1", "sentence2") if chosen.pairs else ("sentence",)
    paths = dict(zip(chosen.splits, files(folder, name), strict=True))
    return read_splits(paths, columns, chosen.classes)


def _task(folder: str, name: str) -> evaluation.Scoring:
    return partial(accuracies, name, read_set(folder, name))


def read_splits(paths: Mapping[str, Path], columns: Sequence[str], classes: Sequence[str]) -> Rows:
    """The rows of all splits of a set; raises `InputError` with file and line for a bad row.

    Args:
      paths: maps splits to files.
      columns: names of the sentences' columns.
      classes: names in the column `label`.
    """
    read = [labelled(path, columns, classes) for path in paths.values()]
    split_of = np.repeat(list(paths), [len(labels) for labels, _ in read])
    return Rows(
        sentences=tuple(row for _, texts in read for row in texts),
        labels=np.concatenate([labels for labels, _ in read]),
        split={name: split_of == name for name in paths},
    )


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    return set_units(sources, "transfer", tuple(SETS), files=files, protocol=protocol, task=_task)


EVALUATION = Evaluation(
    group="transfer",
    scores=("transfer",),
    units=_units,
    averages=average_of("transfer/average", [f"transfer/{name}" for name in SETS]),
    shown=Shown(measure="accuracy, F1 × 100", headings=average_heading("transfer/average", "transfer")),
)
