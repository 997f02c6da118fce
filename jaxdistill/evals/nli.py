"""What do two sentence vectors tell about entailment: SICK-E and SNLI?

SentEval's protocol (Conneau and Kiela, LREC 2018; ConGen's Table 11): a logistic regression on frozen vectors, see
`probe.py`. SICK-E has the features `[|u - v|, u * v]` and chooses its L2 strength on the trial set; SNLI has
`[u, v, u * v, |u - v|]` and next to no penalty.

NOTE SNLI's training set is not in the data folder: `nli/train` (83,238 pairs, a quarter of them of SNLI, most others
written for premises of MultiNLI) stands in for its 549,367 pairs. The score compares with others made so, and not with
published ones; its name says it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed
from jaxdistill.evals import probe
from jaxdistill.evals.read_table import part_of
from jaxdistill.evals.transfer import Rows, pair_features, read_splits, row_vectors

CLASSES = ("entailment", "neutral", "contradiction")
SNLI_STRENGTH = 1e-9
SPLITS: Mapping[str, tuple[str, ...]] = {
    "sick-e": ("sick.train", "sick.trial", "sick.test"),
    "snli": ("train", "snli.test"),
}
"""Files of each set: those to train on, to choose on where there is a choice, and to test on."""
SCORES: Mapping[str, str] = {"sick-e": "nli/sick-e", "snli": "nli/snli (other training set)"}
PROTOCOLS: Mapping[str, str] = {
    "sick-e": "test accuracy of [|u - v|, u * v], L2 chosen on trial",
    "snli": "test accuracy of [u, v, u * v, |u - v|]; trained on nli/train in place of SNLI's training set",
}


@dataclass(frozen=True, kw_only=True)
class NliTask:
    """The evaluation on one set that was read; its splits are the files of `SPLITS`."""

    name: str
    rows: Rows

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """Accuracy in [0, 1], by its name in `SCORES`."""
        first, second = row_vectors(embed, self.rows.sentences)
        features, labels, split = pair_features(first, second), self.rows.labels, self.rows.split
        if self.name == "sick-e":
            found = probe.dev_selection(features, labels, split["sick.trial"], split["sick.test"])
        else:
            features = np.concatenate([first, second, features], axis=1)
            found = probe.one_strength(features, labels, split["snli.test"], SNLI_STRENGTH)
        return {SCORES[self.name]: found.accuracy}


def files(folder: str | Path, name: str) -> tuple[Path, ...]:
    """The files of a set."""
    return tuple(part_of(folder, "nli") / f"{split}.tsv.gz" for split in SPLITS[name])


def protocol(name: str) -> str:
    """How a set is scored."""
    return f"{probe.PROTOCOL}; {PROTOCOLS[name]}"


def nli_task(folder: str | Path, name: str) -> NliTask:
    """The evaluation on a set of a data folder; InputError with file and line for a bad row."""
    paths = dict(zip(SPLITS[name], files(folder, name), strict=True))
    return NliTask(name=name, rows=read_splits(paths, ("premise", "hypothesis"), CLASSES))
