"""What a model scores with vectors stored as float, int8 and binary: Spearman on STS-B dev, nDCG@10 on retrieval sets.

    python benchmarks/rounded_vectors.py --data=DATA --sets=cranfield,cisi MODEL ...

int8 takes its ranges from the documents. Rescored, the first 40 documents by binary vectors are ordered again, by the float
vector of the query with the binary ones (`asymmetric`) or the float ones (`float`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import jaxdistill
from jaxdistill.cli import Parser, run
from jaxdistill.evals import beir, beir_files, ranking, sts
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.similarity import spearman
from jaxdistill.inference import Embedder
from jaxdistill.objectives.parts.rounded import STEPS

RESCORED = 40


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/rounded_vectors.py", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--sets", default="cranfield,cisi,vaswani,scifact,cosqa,medquad-sample", help="retrieval sets")
    given = parser.parse_args(arguments)
    pairs = sts.read_set("sts-b-dev", given.data)
    sets = [
        beir.read_set(beir_files.set_files(str(Path(given.data) / "retrieval" / name), split="test"))
        for name in given.sets.split(",")
    ]
    for folder in given.models:
        model = jaxdistill.load(folder, precision="float32")
        found = {f"sts-b-dev {form}": value for form, value in of_pairs(model, pairs).items()}
        each = [of_set(model, known) for known in sets]
        found |= {f"ndcg@10 {form}": float(np.mean([one[form] for one in each])) for form in each[0]}
        print(folder, *(f"{name} {100 * value:.2f}" for name, value in found.items()), sep="; ", flush=True)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def stored(vectors: np.ndarray, sample: np.ndarray) -> dict[str, np.ndarray]:
    """What the stored vectors stand for, at unit length."""
    lowest, highest = sample.min(axis=0), sample.max(axis=0)
    steps = (highest - lowest) / STEPS
    codes = np.clip(np.floor((vectors - lowest) / np.where(steps == 0, 1, steps)), 0, STEPS)
    return {
        "float": vectors,
        "int8": unit(lowest + (codes + 0.5) * steps),
        "binary": unit(np.where(vectors > 0, 1.0, -1.0).astype(np.float32)),
    }


def of_pairs(model: Embedder, pairs: GradedPairs) -> Mapping[str, float]:
    first, second = unit(model.encode(pairs.first)), unit(model.encode(pairs.second))
    sample = np.concatenate([first, second])
    one, other = stored(first, sample), stored(second, sample)
    return {form: spearman(pairs.scores, np.sum(one[form] * other[form], axis=1), what=form) for form in one}


def of_set(model: Embedder, known: beir.RetrievalSet) -> Mapping[str, float]:
    queries, documents = (
        unit(model.encode(list(known.queries.values()))),
        unit(model.encode(list(known.documents.values()))),
    )
    asked, held = stored(queries, documents), stored(documents, documents)
    scores = {form: asked[form] @ held[form].T for form in asked}
    least = -np.partition(-scores["binary"], RESCORED - 1, axis=1)[:, RESCORED - 1 : RESCORED]
    candidates = scores["binary"] >= least
    for name, form in (("asymmetric", "binary"), ("float", "float")):
        scores[f"binary, rescored {name}"] = np.where(candidates, queries @ held[form].T, -np.inf)
    return {form: ndcg(of_form, known) for form, of_form in scores.items()}


def ndcg(scores: np.ndarray, known: beir.RetrievalSet) -> float:
    rows = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    named = dict(zip(known.queries, ranking.ordered(scores, rows, list(known.documents)), strict=True))
    return ranking.measures(named, known.judged)[ranking.NDCG]


if __name__ == "__main__":
    run(main)
