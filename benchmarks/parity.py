"""Compares vectors and STS scores of real checkpoints with sentence-transformers, in float32 and bfloat16.

    JAXDISTILL_DATA=DATA python benchmarks/parity.py --model=FOLDER [--model=FOLDER ...]

sentence-transformers reads each checkpoint with PyTorch in float32. First come the largest difference between the numbers of
unit vectors, and the smallest cosine of bfloat16's vectors with float32's, on sentences drawn from all text of the data
folder; then Spearman's correlation x 100 on each STS test, all pairs of a set together, where the other side is
`SentenceTransformer.encode` and SciPy's `spearmanr`. Each line is printed when it is known. --sets= leaves STS out.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import load_model, locate
from jaxdistill.cli import run
from jaxdistill.data.sources import split_specs
from jaxdistill.data.text import read
from jaxdistill.evals import sts
from jaxdistill.evals.similarity import EmbeddingCache, cosines, unit_vectors
from jaxdistill.inference import Embedder
from jaxdistill.paths import needed_data_folder

OURS = ("float32", "bfloat16")
THEIRS = "sentence-transformers"
Embed = Callable[[Sequence[str]], Float[np.ndarray, "n e"]]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/parity.py", description=__doc__)
    parser.add_argument("--model", action="append", required=True, help="a folder, or package:NAME/PATH; repeatable")
    parser.add_argument(
        "--text", default="", help="sentences to compare vectors of; default: all text of the data folder"
    )
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--sets", default=",".join(sts.TESTS), help="STS sets, separated by commas")
    args = parser.parse_args(arguments)
    data = str(needed_data_folder("the sentences and the STS sets"))
    sentences = drawn([args.text or f"{data}/text/*.txt.gz"], args.sentences) if args.sentences else []
    for spec in args.model:
        name, embeds = spec.rstrip("/").rpartition("/")[2], sides(spec)
        if sentences:
            print_vectors(name, embeds, sentences)
        for chosen in split_specs(args.sets):
            print_scores(name, embeds, chosen, data)


def drawn(text: Sequence[str], count: int) -> list[str]:
    """Distinct sentences of the text, drawn at random with seed 0."""
    distinct = list(dict.fromkeys(sentence for (sentence,) in read(text)))
    return [distinct[row] for row in np.random.default_rng(0).choice(len(distinct), count, replace=False)]


def sides(spec: str) -> dict[str, Embed]:
    """`embed` of each side; each distinct sentence is read once."""
    ours = {name: Embedder(load_model(spec), compute_dtype=name).encode for name in OURS}
    return {name: EmbeddingCache(embed) for name, embed in ({THEIRS: peer(spec)} | ours).items()}


def peer(spec: str) -> Embed:
    """The checkpoint in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(locate(spec)), device="cpu")
    return lambda texts: model.encode(list(texts), batch_size=64, show_progress_bar=False)


def print_vectors(name: str, embeds: Mapping[str, Embed], sentences: Sequence[str]) -> None:
    vectors = {side: unit_vectors(embed, sentences) for side, embed in embeds.items()}
    difference = np.abs(vectors["float32"] - vectors[THEIRS]).max()
    cosine = np.einsum("ne,ne->n", vectors["float32"], vectors["bfloat16"]).min()
    print(f"| {name} | largest difference {difference:.1e} | least cosine of bfloat16 {cosine:.6f} |", flush=True)


def print_scores(name: str, embeds: Mapping[str, Embed], chosen: str, data: str) -> None:
    from scipy.stats import spearmanr

    graded = sts.read_set(chosen, data)
    scores = {
        side: 100 * spearmanr(graded.scores, cosines(embed, graded.first, graded.second)).statistic
        for side, embed in embeds.items()
    }
    print(f"| {name} | {chosen} | {' | '.join(f'{side} {score:.3f}' for side, score in scores.items())} |", flush=True)


if __name__ == "__main__":
    run(main)
