"""Scores SentEval's transfer tasks and entailment by a linear probe on sentence vectors.

The protocol is SentEval's (Conneau and Kiela, LREC 2018; ConGen's Tables 10 and 11): a logistic regression on frozen vectors.
`probe.py` describes its training and the differences from SentEval's. The tasks are MR, CR, SUBJ, MPQA, SST2, TREC and MRPC, whose
features are `[|u - v|, u * v]` and which also reports the F1 of paraphrases; and entailment, SICK-E with the same features and SNLI
with `[u, v, |u - v|, u * v]` and nearly no penalty. Vectors are not normalised: their length affects the penalty.

The sets come from a data folder: `transfer/mr.all.tsv.gz`, `nli/sick.train.tsv.gz` and so on.

NOTE: SNLI's training set is not in the data folder: `nli/train` (83,238 pairs, a quarter of them from SNLI, most others
written for premises of MultiNLI) replaces its 549,367 pairs. So scores are comparable only with others of this training set,
not with published ones, and the score's name says so.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed
from jaxdistill.evals import probe
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_of, labelled
from jaxdistill.evals.similarity import refuse_same_vectors
from jaxdistill.models.vectors import finite_vectors


def pair_features(first: Float[np.ndarray, "n e"], second: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n d"]:
    """`[|u - v|, u * v]`, `d = 2 e`."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


@dataclass(frozen=True)
class ProbedSet:
    """A set on which a linear probe is trained and tested."""

    splits: tuple[str, ...]
    """Names of its files, without their suffixes; the last one is the test."""
    score: Callable[..., probe.Accuracy]
    """Trains and tests on features and labels of all splits, and masks of the rows of each split but the first."""
    protocol: str
    """How it trains and tests, in words."""
    metrics: tuple[str, ...]
    """Names of its scores: of the accuracy and, if it is reported, of the F1 of class 1."""
    columns: tuple[str, ...] = ("sentence",)
    classes: tuple[str, ...] = ("0", "1")
    features: Callable[..., Float[np.ndarray, "n d"]] = lambda vectors: vectors
    """Makes features from the vectors of each column."""


def row_vectors(embed: Embed, rows: Sequence[tuple[str, ...]]) -> list[Float[np.ndarray, "n e"]]:
    """Vectors of each column of sentences; each distinct sentence is embedded once, all in one call."""
    distinct = {text: number for number, text in enumerate(dict.fromkeys(text for row in rows for text in row))}
    vectors = finite_vectors(embed, list(distinct))
    refuse_same_vectors(vectors, list(distinct), f"the model finds all {len(distinct):,} sentences")
    return [vectors[[distinct[text] for text in column]] for column in zip(*rows, strict=True)]


def f1(labels: Integer[np.ndarray, " n"], predicted: Integer[np.ndarray, " n"]) -> float:
    """F1 of class 1 in [0, 1]: the harmonic mean of precision and recall; 0 if neither side has the class."""
    either = np.sum(labels == 1) + np.sum(predicted == 1)
    return float(2 * np.sum((labels == 1) & (predicted == 1)) / max(either, 1))


SICK_E, SNLI = "nli/sick-e", "nli/snli (other training set)"
PREMISES = {"columns": ("premise", "hypothesis"), "classes": ("entailment", "neutral", "contradiction")}
NESTED, DEV = "ten folds, L2 chosen in ten folds of the other nine", "test accuracy, L2 chosen on dev"
FOLDS = "L2 chosen in ten folds of train"
SETS: Mapping[str, ProbedSet] = {
    **{
        name: ProbedSet((f"{name}.all",), probe.nested_folds, NESTED, (f"transfer/{name}",))
        for name in ("mr", "cr", "subj", "mpqa")
    },
    "sst2": ProbedSet(("sst2.train", "sst2.dev", "sst2.test"), probe.dev_selection, DEV, ("transfer/sst2",)),
    "trec": ProbedSet(
        ("trec.train", "trec.test"),
        probe.train_folds,
        f"test accuracy, {FOLDS}",
        ("transfer/trec",),
        classes=("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    ),
    "mrpc": ProbedSet(
        ("mrpc.train", "mrpc.test"),
        probe.train_folds,
        f"test accuracy and F1 of [|u - v|, u * v], {FOLDS}",
        ("transfer/mrpc", "transfer/mrpc f1"),
        columns=("sentence1", "sentence2"),
        features=pair_features,
    ),
}
ENTAILMENT_SETS: Mapping[str, ProbedSet] = {
    "sick-e": ProbedSet(
        ("sick.train", "sick.trial", "sick.test"),
        probe.dev_selection,
        "test accuracy of [|u - v|, u * v], L2 chosen on trial",
        (SICK_E,),
        features=pair_features,
        **PREMISES,
    ),
    "snli": ProbedSet(
        ("train", "snli.test"),
        partial(probe.one_strength, strength=1e-9),
        "test accuracy of [u, v, u * v, |u - v|]; trained on nli/train in place of SNLI's training set",
        (SNLI,),
        features=lambda first, second: np.concatenate([first, second, pair_features(first, second)], axis=1),
        **PREMISES,
    ),
}


def _sets(sources: Sources, part: str, probed: Mapping[str, ProbedSet]) -> Iterable[TestSet]:
    folder = sources.part(part, part)
    for name, one in probed.items():
        files = tuple(folder / f"{split}.tsv.gz" for split in one.splits)
        protocol = f"{probe.PROTOCOL}; {one.protocol}"
        yield TestSet(name=f"{part}/{name}", protocol=protocol, files=files, content=one)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    probed: ProbedSet = test_set.content
    read = [labelled(path, probed.columns, probed.classes) for path in test_set.files]
    labels = np.concatenate([labels for labels, _ in read])
    split_of = np.repeat(np.arange(len(read)), [len(labels) for labels, _ in read])
    features = probed.features(*row_vectors(model.embed, [row for _, rows in read for row in rows]))
    result = probed.score(features, labels, *(split_of == split for split in range(1, len(read))))
    scores = result.accuracy, f1(labels[split_of == len(read) - 1], result.predicted)
    return dict(zip(probed.metrics, scores, strict=False))


EVALUATION = Evaluation(
    task="transfer",
    scores=("transfer",),
    sets=lambda sources: _sets(sources, "transfer", SETS),
    run=_run,
    averages=average_of("transfer/average", [f"transfer/{name}" for name in SETS]),
    headings={"transfer/average": "transfer"},
)
ENTAILMENT = Evaluation(
    task="nli",
    scores=("nli",),
    sets=lambda sources: _sets(sources, "nli", ENTAILMENT_SETS),
    run=_run,
    headings={SICK_E: "SICK-E", SNLI: "SNLI, own training set"},
)
