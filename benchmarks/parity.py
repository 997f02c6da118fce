"""Compares vectors and STS scores of real checkpoints with sentence-transformers in PyTorch and float32.

    JAXDISTILL_DATA=DATA python benchmarks/parity.py --model=FOLDER [--model=FOLDER ...]

Prints the largest difference between the numbers of unit vectors, and the smallest cosine of bfloat16's vectors with float32's, on
sentences drawn from all text of the data folder; then, for each STS test, Spearman's correlation x 100 by SciPy over all pairs.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from interleaved import unit_rows
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from jaxdistill.core.cli import run
from jaxdistill.core.paths import needed_data_folder
from jaxdistill.data.text import read
from jaxdistill.evals import sts
from jaxdistill.models.checkpoints.model import locate
from jaxdistill.models.inference import load


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/parity.py", description=__doc__)
    parser.add_argument("--model", action="append", required=True, help="a folder, or package:NAME/PATH; repeatable")
    parser.add_argument("--sentences", type=int, default=1000)
    args = parser.parse_args(arguments)
    data = str(needed_data_folder("the sentences and the STS sets"))
    distinct = list(dict.fromkeys(sentence for (sentence,) in read([f"{data}/text/*.txt.gz"])))
    drawn = np.random.default_rng(0).choice(len(distinct), args.sentences, replace=False)
    for name in args.model:
        peer = SentenceTransformer(str(locate(name)), device="cpu")
        encoders = {"sentence-transformers": lambda texts, peer=peer: peer.encode(texts, batch_size=64)}
        encoders |= {precision: load(name, precision=precision).encode for precision in ("float32", "bfloat16")}
        sentences = [distinct[row] for row in drawn]
        theirs, exact, rounded = (unit_rows(encode(sentences)) for encode in encoders.values())
        cosine = np.einsum("ne,ne->n", exact, rounded).min()
        print(f"{name}: largest difference {np.abs(exact - theirs).max():.1e}, lowest cosine of bfloat16 {cosine:.6f}")
        for test in sts.TESTS:
            graded = sts.read_set(test, data)
            scores = []
            for encode in encoders.values():
                first, second = (unit_rows(encode(list(texts))) for texts in (graded.first, graded.second))
                scores.append(100 * spearmanr(graded.scores, np.sum(first * second, axis=1)).statistic)
            print(
                f"{name}, {test}: "
                + ", ".join(f"{side} {score:.3f}" for side, score in zip(encoders, scores, strict=True))
            )


if __name__ == "__main__":
    run(main)
