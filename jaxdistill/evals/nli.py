"""Scores entailment by a linear probe on pairs of sentence vectors: SICK-E and SNLI.

The protocol is SentEval's (Conneau and Kiela, LREC 2018; ConGen's Table 11): a logistic regression on frozen vectors, see
`probe.py`. SICK-E uses the features `[|u - v|, u * v]` and chooses the L2 strength on the trial set; SNLI uses
`[u, v, u * v, |u - v|]` and nearly no penalty.

NOTE: SNLI's training set is not in the data folder: `nli/train` (83,238 pairs, a quarter of them from SNLI, most others
written for premises of MultiNLI) replaces its 549,367 pairs. So scores are comparable only with others of this training set,
not with published ones, and the score's name says so.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from jaxtyping import Float

from jaxdistill.evals import probe
from jaxdistill.evals.evaluation import Absent, Evaluation, Shown, Sources, Unit
from jaxdistill.evals.transfer import ProbedSet, pair_features, probe_units

SNLI_STRENGTH = 1e-9
HEADINGS = {"nli/sick-e": "SICK-E", "nli/snli (other training set)": "SNLI, own training set"}
"""Maps scores to the headings of their columns."""


def all_features(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """`[u, v, |u - v|, u * v]`."""
    return np.concatenate([first, second, pair_features(first, second)], axis=1)


SICK_E, SNLI = HEADINGS
of_pairs = partial(
    ProbedSet,
    part="nli",
    columns=("premise", "hypothesis"),
    classes=("entailment", "neutral", "contradiction"),
)
SETS: Mapping[str, ProbedSet] = {
    "sick-e": of_pairs(
        splits=("sick.train", "sick.trial", "sick.test"),
        features=pair_features,
        protocol="test accuracy of [|u - v|, u * v], L2 chosen on trial",
        score=lambda features, labels, split: probe.dev_selection(
            features, labels, split["sick.trial"], split["sick.test"]
        ),
        metrics=(SICK_E,),
    ),
    "snli": of_pairs(
        splits=("train", "snli.test"),
        features=all_features,
        protocol="test accuracy of [u, v, u * v, |u - v|]; trained on nli/train in place of SNLI's training set",
        score=lambda features, labels, split: probe.one_strength(features, labels, split["snli.test"], SNLI_STRENGTH),
        metrics=(SNLI,),
    ),
}


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    return probe_units(sources, "nli", SETS)


EVALUATION = Evaluation(
    group="nli",
    scores=("nli",),
    units=_units,
    shown=Shown(measure="accuracy, F1 × 100", headings=lambda measured: HEADINGS),
)
