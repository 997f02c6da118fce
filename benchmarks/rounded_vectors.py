"""What a model scores with stored vectors: Spearman on STS-B dev, nDCG@10 on retrieval sets.

    python benchmarks/rounded_vectors.py --data=DATA --sets=cranfield,cisi --dims=128,384 MODEL ...

int8 and centred take their ranges from the documents, or from 8,192 lines of `--calibrate=TEXT`. Rescored, the first
40 documents by binary vectors are ordered again, by the float vector of the query with the binary ones (`asymmetric`), or with
all numbers of the float ones (`full`), as are the first 40 by int8 and centred vectors. `Hamming` compares centred bits with the
query's, around the documents' mean or (`own mean`) around the mean of the other half of the queries. `float32, apart` subtracts
half of these means from the float vectors of documents and queries.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import jaxdistill
from jaxdistill.cli import Parser, run
from jaxdistill.data.vectors import write_part
from jaxdistill.evals import beir, ranking, sts
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.evals.ranking import DEPTH
from jaxdistill.evals.similarity import spearman
from jaxdistill.exports.measuring import sentences
from jaxdistill.inference import Embedder
from jaxdistill.inference.index import RESCORE, nearest_stored
from jaxdistill.inference.to_file import CALIBRATED
from jaxdistill.ops.small_vectors import Form, as_read, cut, ranges_of

DTYPES = ("float32", "int8", "binary", "centred")


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/rounded_vectors.py", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--sets", default="cranfield,cisi,vaswani,scifact,cosqa,medquad-sample", help="retrieval sets")
    parser.add_argument("--dims", default="384", help="widths, separated by commas")
    parser.add_argument("--calibrate", help="text for the ranges of int8 and centred; default: the documents")
    given = parser.parse_args(arguments)
    pairs = sts.read_set("sts-b-dev", given.data)
    sets = [
        beir.read_set(beir.set_files(str(Path(given.data) / "retrieval" / name), split="test"))
        for name in given.sets.split(",")
    ]
    for folder in given.models:
        model = jaxdistill.load(folder, precision="float32")
        sample = model.encode_document(sentences(given.calibrate, CALIBRATED)) if given.calibrate else None
        texts = [(list(known.queries.values()), list(known.documents.values())) for known in sets]
        encoded = [(model.encode_query(queries), model.encode_document(documents)) for queries, documents in texts]
        for dims in map(int, given.dims.split(",")):
            found = {f"sts-b-dev {form}": value for form, value in of_pairs(model, pairs, dims).items()}
            each = [of_set(*vectors, known, dims, sample) for vectors, known in zip(encoded, sets, strict=True)]
            for number, name in enumerate(given.sets.split(",")):
                found |= {f"{name} {form}": value for form, value in each[number].items()}
            print(folder, dims, *(f"{name} {100 * value:.2f}" for name, value in found.items()), sep="; ", flush=True)


def form_of(dims: int, dtype: str, sample: np.ndarray) -> Form:
    return Form(dims=dims, dtype=dtype, ranges=ranges_of(sample, dims, dtype))


def of_pairs(model: Embedder, pairs: GradedPairs, dims: int) -> Mapping[str, float]:
    vectors = [model.encode(side) for side in (pairs.first, pairs.second)]
    scores = {}
    for dtype in DTYPES:
        form = form_of(dims, dtype, np.concatenate(vectors))
        first, second = (cut(as_read(form, side), dims) for side in vectors)
        scores[dtype] = spearman(pairs.scores, np.sum(first * second, axis=1), what=dtype)
    return scores


def of_set(
    queries: np.ndarray, documents: np.ndarray, known: beir.RetrievalSet, dims: int, sample: np.ndarray | None
) -> Mapping[str, float]:
    scores, every = {}, len(documents)
    with tempfile.TemporaryDirectory() as folder:
        full = Path(folder, "full.npy")
        np.save(full, documents)
        for dtype in DTYPES:
            form = form_of(dims, dtype, documents if sample is None else sample)
            write_part(small := Path(folder, f"{dtype}.parquet"), {}, documents, form)
            search = partial(nearest_stored, queries, small)
            scores[dtype] = ndcg(search(count=min(DEPTH, every), rescore=0), known)
            if dtype == "binary":
                scores["binary, asymmetric"] = ndcg(search(count=10, rescore=RESCORE), known)
            if dtype == "centred":
                mean, asked = np.mean(form.ranges, axis=0), cut(queries, dims)
                centred = cut(documents, dims) - mean
                write_part(bits := Path(folder, "bits.parquet"), {}, centred, Form(dims=dims, dtype="binary"))
                others = np.stack([asked[1::2].mean(axis=0), asked[::2].mean(axis=0)])[np.arange(len(asked)) % 2]
                for name, centre in (("Hamming", mean), ("Hamming, own mean", others)):
                    found = nearest_stored(asked - centre, bits, count=min(DEPTH, every), rescore=0)
                    scores[f"centred, {name}"] = ndcg(found, known)
                write_part(apart := Path(folder, "apart.parquet"), {}, cut(documents, dims) - mean / 2, Form(dims=dims))
                found = nearest_stored(asked - others / 2, apart, count=min(DEPTH, every), rescore=0)
                scores["float32, apart"] = ndcg(found, known)
            scores[f"{dtype}, full"] = ndcg(search(count=10, rescore=RESCORE, full=full), known)
    return scores


def ndcg(found: tuple[np.ndarray, np.ndarray], known: beir.RetrievalSet) -> float:
    named = dict(zip(known.queries, ranking.ordered(*found, list(known.documents)), strict=True))
    return ranking.measures(named, known.judged)[ranking.NDCG]


if __name__ == "__main__":
    run(main)
