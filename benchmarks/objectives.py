"""Compares all objectives on the same student, text and number of sentences.

    JAXDISTILL_DATA=DATA python benchmarks/objectives.py --workdir=runs/objectives --steps=80 --seeds=0

Trains layers 1, 3 and 5 of all-MiniLM-L6-v2 on the text of the data folder with each objective's `minilm-l3` preset, one
after the other, and scores all exports on the STS sets. Objectives with labels read the triplets of `nli/train.tsv.gz`.
What is done is not done again. --config.SECTION.OPTION=VALUE holds for every training.
"""

import csv
import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from jaxdistill.cli import Parser, run
from jaxdistill.core import InputError
from jaxdistill.evals.sts import TESTS
from jaxdistill.paths import needed_data_folder

METHODS = {
    "L2": "l2.py:minilm-l3",
    "L2, cosine": "l2.py:cosine",
    "Dual-L2": "dual_l2.py:minilm-l3",
    "SKD": "skd.py:minilm-l3",
    "KD": "kd.py:minilm-l3",
    "CKD": "ckd.py:minilm-l3",
    "CKD, stage 2": "ckd.py:two-stage",
    "SEED": "seed.py:minilm-l3",
    "ConGen": "congen.py:minilm-l3",
    "SimTDE, 128 wide": "simtde.py:minilm-128-l3",
    "LRN-KD": "lrn_kd.py:minilm-l3",
    "LMX-KD": "lmx_kd.py:minilm-l3",
    "SimCSE, unsupervised": "simcse.py:minilm-l3",
    "SimCSE, supervised": "simcse.py:minilm-l3-sup",
    "Mirror-BERT": "simcse.py:minilm-l3-mirror",
}
WITH_TRIPLETS = ("SimCSE, supervised",)
TWO_STAGES = ("CKD, stage 2",)


def main(arguments: Sequence[str]) -> None:
    parser = Parser(prog="benchmarks/objectives.py", description=__doc__)
    parser.add_argument("--workdir", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=80, help="of 128 sentences")
    parser.add_argument("--seeds", default="0", help="separated by commas")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    overrides = [argument for argument in arguments if argument.startswith("--config.")]
    given = parser.parse_args([argument for argument in arguments if argument not in overrides])
    data = needed_data_folder("what is scored")
    methods = given.methods.split(";")
    unknown = [method for method in methods if method not in METHODS]
    if unknown:
        raise InputError(f"method {unknown[0]!r} is unknown; there are {'; '.join(METHODS)}.")
    given.workdir.mkdir(parents=True, exist_ok=True)
    triplets = given.workdir / "triplets.tsv"
    write_triplets(data / "nli" / "train.tsv.gz", triplets)
    exports = {}
    for seed in given.seeds.split(","):
        for method in methods:
            folder = given.workdir / f"{METHODS[method].replace(':', '-')}-{seed}"
            command = [
                *(
                    sys.executable,
                    "-m",
                    "jaxdistill.main",
                    f"--config=configs/{METHODS[method]}",
                    f"--workdir={folder}",
                ),
                *options(method, data, triplets, steps=given.steps, seed=seed),
                *overrides,
            ]
            with (given.workdir / f"{folder.name}.log").open("wb") as log:
                status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
            print(f"{method}, seed {seed}: " + ("trained" if status == 0 else f"failed, see {log.name}"), flush=True)
            if status == 0:
                exports[method, seed] = (folder / "stage2" if method in TWO_STAGES else folder) / "export"
    scored = given.workdir / "sts.json"
    evaluate = [sys.executable, "-m", "jaxdistill.evaluate", "--tasks=sts", f"--out={scored}"]
    subprocess.run([*evaluate, *(f"--model={export}" for export in exports.values())], check=True)
    print(markdown(list(exports), json.loads(scored.read_text())["models"]))


def options(method: str, data: Path, triplets: Path, *, steps: int, seed: str) -> list[str]:
    """Of `jaxdistill.main`: text, steps and seed."""
    common = {"evals.every": steps, "evals.sts": False, "run.steps": steps, "run.seed": seed}
    text = {
        "data.text": f"{data}/text/[!t]*.txt.gz,{data}/text/tatoeba.txt.gz",
        "data.weights": "(0.88,0.12)",
    }
    columns = '(("text","text"),("positive","positive"),("negative","negative"))'
    labelled = {"data.text": triplets, "data.columns": columns}
    chosen = common | (labelled if method in WITH_TRIPLETS else text)
    if method in TWO_STAGES:
        of_second = {f"stage2.{name}": value for name, value in (common | {"data.text": triplets}).items()}
        chosen = {f"stage1.{name}": value for name, value in chosen.items()} | of_second
    return [f"--config.{name}={value}" for name, value in chosen.items()]


def write_triplets(pairs: Path, out: Path) -> None:
    """Premise, entailed and contradicting hypothesis: all combinations of each premise."""
    hypotheses: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(pairs, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            hypotheses[row["premise"]][row["label"]].append(row["hypothesis"])
    lines = ["text\tpositive\tnegative"]
    for premise, named in hypotheses.items():
        lines += [f"{premise}\t{yes}\t{no}" for yes in named["entailment"] for no in named["contradiction"]]
    out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def markdown(rows: Sequence[tuple[str, str]], results: Sequence[dict]) -> str:
    """Table of STS scores x 100, best average first."""
    names = [*TESTS, "average", "sts-b-dev"]
    lines = [f"| objective | seed | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    ranked = sorted(zip(rows, results, strict=True), key=lambda pair: -pair[1]["scores"]["average"])
    for (method, seed), result in ranked:
        cells = [f"{100 * result['scores'][name]:.2f}" for name in names]
        lines.append(f"| {method} | {seed} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
