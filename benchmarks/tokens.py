"""Measures time and memory of tokenising a made-up text, and of its duplicates.

    python benchmarks/tokens.py --rows=20_000_000 --processes=2 --workdir=DIR

Each row has three of 1,000 words, in a WordPiece vocabulary of these. The processes of this machine share one cache folder. With
--keys, sorts random keys instead, of which one in ten repeats an earlier one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from jaxdistill.cli import Parser, run
from jaxdistill.cluster import processes
from jaxdistill.data import row_keys, token_parts, tokenize

WORDS = [f"{first}{second}{third}" for first in "abcdefghij" for second in "klmnopqrst" for third in "uvwxyzaeio"]
PIECE = 1 << 20
CLEAR_PEAK = "5"
"""What resets `VmHWM` when it is written to `/proc/self/clear_refs`."""


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/tokens.py", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--workdir", required=True, type=Path)
    given = parser.parse_args(arguments)
    given.workdir.mkdir(parents=True, exist_ok=True)
    if given.keys:
        return of_keys(given.keys, given.workdir / "keys")
    text = given.workdir / f"{given.rows}.txt"
    if "JAX_PROCESS_ID" in os.environ or given.processes == 1:
        if not text.exists():
            write_text(text, given.rows)
        return of_text(text, given.workdir / f"cache-{given.processes}")
    if not text.exists():
        write_text(text, given.rows)
    shared = os.environ | {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:29517", "JAX_NUM_PROCESSES": str(given.processes)}
    command = [sys.executable, __file__, *arguments]
    children = [
        subprocess.Popen(command, env=shared | {"JAX_PROCESS_ID": str(number)}) for number in range(given.processes)
    ]
    sys.exit(max(child.wait() for child in children))


def write_text(path: Path, rows: int) -> None:
    generator = np.random.default_rng(0)
    with open(path, "w") as file:
        for begin in range(0, rows, PIECE):
            drawn = generator.integers(len(WORDS), size=(min(PIECE, rows - begin), 3)).tolist()
            file.write("".join(f"{WORDS[a]} {WORDS[b]} {WORDS[c]}\n" for a, b, c in drawn))


def of_text(text: Path, cache: Path) -> None:
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    written = token_parts.PartWriter.written

    def timed(*given, **options):
        begin = time.perf_counter()
        parts = written(*given, **options)
        say("parts", begin)
        return parts

    with processes.connected(dict), patch.object(token_parts.PartWriter, "written", timed):
        begin = time.perf_counter()
        store = tokenize.build_store([str(text)], tokenizer=tokenizer, max_length=16, cache_folder=cache, dedupe=True)
        say("all", begin)
        begin = time.perf_counter()
        tokenize.build_store([str(text)], tokenizer=tokenizer, max_length=16, cache_folder=cache, dedupe=True)
        say("opened again", begin)
    if processes.is_first():
        print(store.report())


def of_keys(count: int, path: Path) -> None:
    generator = np.random.default_rng(0)
    with open(path, "wb") as file:
        for begin in range(0, count, PIECE):
            keys = generator.integers(1 << 64, size=min(PIECE, count - begin), dtype=np.uint64)
            keys[::10] = keys[0]
            keys.tofile(file)
    sizes = [min(PIECE, count - begin) for begin in range(0, count, PIECE)]
    begin = time.perf_counter()
    kept = np.ones(count, bool)
    row_keys.drop_repeats(
        kept,
        lambda: (np.fromfile(path, np.uint64, size, offset=8 * PIECE * place) for place, size in enumerate(sizes)),
    )
    say(f"{kept.sum():,} of {count:,} keys are kept", begin)


def say(what: str, begin: float) -> None:
    """Prints seconds, and the peak of this process's memory since the last call."""
    seconds = time.perf_counter() - begin
    peak = next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    print(f"process {processes.index()}, {what}: {seconds:.1f} s, {int(peak) / 1e6:.2f} GB", flush=True)
    Path("/proc/self/clear_refs").write_text(CLEAR_PEAK)


if __name__ == "__main__":
    run(main)
