"""Scores entailment by a linear probe on pairs of sentence vectors: SICK-E and SNLI.

The protocol is SentEval's (Conneau and Kiela, LREC 2018; ConGen's Table 11): a logistic regression on frozen vectors, see
`probe.py`. SICK-E uses the features `[|u - v|, u * v]` and chooses the L2 strength on the trial set; SNLI uses
`[u, v, u * v, |u - v|]` and nearly no penalty.

NOTE: SNLI's training set is not in the data folder: `nli/train` (83,238 pairs, a quarter of them from SNLI, most others
written for premises of MultiNLI) replaces its 549,367 pairs. So scores are comparable only with others of this training set,
not with published ones, and the score's name says so.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed
from jaxdistill.evals import probe
from jaxdistill.evals.evaluation import Absent, Evaluation, Scoring, Shown, Sources, Unit, set_units
from jaxdistill.evals.read_table import part_of
from jaxdistill.evals.transfer import Rows, pair_features, read_splits, row_vectors

CLASSES = ("entailment", "neutral", "contradiction")
SNLI_STRENGTH = 1e-9
SPLITS: Mapping[str, tuple[str, ...]] = {
    "sick-e": ("sick.train", "sick.trial", "sick.test"),
    "snli": ("train", "snli.test"),
}
"""Files of each set: for training, for choosing the L2 strength (unless it is fixed), and for testing."""
SCORES: Mapping[str, str] = {"sick-e": "nli/sick-e", "snli": "nli/snli (other training set)"}
PROTOCOLS: Mapping[str, str] = {
    "sick-e": "test accuracy of [|u - v|, u * v], L2 chosen on trial",
    "snli": "test accuracy of [u, v, u * v, |u - v|]; trained on nli/train in place of SNLI's training set",
}


def accuracy(name: str, rows: Rows, embed: Embed) -> Mapping[str, float]:
    """Accuracy on a set, in [0, 1], named as in `SCORES`."""
    first, second = row_vectors(embed, rows.sentences)
    features, labels, split = pair_features(first, second), rows.labels, rows.split
    if name == "sick-e":
        found = probe.dev_selection(features, labels, split["sick.trial"], split["sick.test"])
    else:
        features = np.concatenate([first, second, features], axis=1)
        found = probe.one_strength(features, labels, split["snli.test"], SNLI_STRENGTH)
    return {SCORES[name]: found.accuracy}


def files(folder: str | Path, name: str) -> tuple[Path, ...]:
    """The files of a set."""
    return tuple(part_of(folder, "nli") / f"{split}.tsv.gz" for split in SPLITS[name])


def protocol(name: str) -> str:
    """How a set is scored."""
    return f"{probe.PROTOCOL}; {PROTOCOLS[name]}"


def read_set(folder: str | Path, name: str) -> Rows:
    """The rows of a set of a data folder, with the splits of `SPLITS`; raises `InputError` with file and line for a bad row."""
    paths = dict(zip(SPLITS[name], files(folder, name), strict=True))
    return read_splits(paths, ("premise", "hypothesis"), CLASSES)


def _task(folder: str, name: str) -> Scoring:
    return partial(accuracy, name, read_set(folder, name))


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    return set_units(sources, "nli", tuple(SPLITS), files=files, protocol=protocol, task=_task)


def _headings(measured: Collection[str]) -> Mapping[str, str]:
    known = {SCORES["sick-e"]: "SICK-E", SCORES["snli"]: "SNLI, own training set"}
    return {score: heading for score, heading in known.items() if score in measured}


EVALUATION = Evaluation(
    group="nli", scores=("nli",), units=_units, shown=Shown(measure="accuracy, F1 × 100", headings=_headings)
)
