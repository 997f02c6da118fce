"""How good is a sentence encoder? Scores any checkpoint on the STS sets, on your own graded pairs, or on translations.

  python -m jaxdistill.evaluate --model=runs/l3/export --tasks=sts --data=DATA
  python -m jaxdistill.evaluate --model=A --model=B --tasks=pairs --pairs=pairs.tsv --out=results.json

Tasks, separated by commas: sts (STS12-16, STS-B, SICK-R and STS-B dev), sts-b-dev, pairs, bitext (translations found among
others, from multilingual/ of the data folder), or single sets such as sick-r.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from jaxdistill.cli import Parser, did_you_mean, run
from jaxdistill.core import Embed, InputError
from jaxdistill.encoders.model import load
from jaxdistill.evals import bitext
from jaxdistill.evals.pairs import pairs_spearman, read_pairs
from jaxdistill.evals.sts import PROTOCOL, SETS, sts, sts_folder
from jaxdistill.inference import Embedder
from jaxdistill.summary import as_text, score_table
from jaxdistill.versions import versions

TASKS = ("sts", "pairs", "bitext", *SETS)
Score = Callable[[Embed], Mapping[str, float]]


def chosen_tasks(names: Sequence[str], *, data: str, pairs: str) -> list[Score]:
    """The evaluations of the task names, their files checked; InputError for an unknown one."""
    for name in names:
        if name not in TASKS:
            raise InputError(f"task {name!r} is unknown; there are {', '.join(TASKS)}.{did_you_mean(name, TASKS)}")
    tasks: list[Score] = []
    sets = tuple(SETS) if "sts" in names else tuple(name for name in names if name in SETS)
    if sets:
        folder = sts_folder(data) if data else None
        tasks.append(lambda embed: sts(embed, folder, sets))
    if "pairs" in names:
        if not pairs:
            raise InputError("task pairs needs --pairs=FILE, a .tsv or .csv file with score, sentence1, sentence2.")
        graded = read_pairs(pairs)
        tasks.append(lambda embed: {"pairs": pairs_spearman(embed, graded)})
    if "bitext" in names:
        if not data:
            raise InputError("task bitext needs --data=FOLDER with multilingual/*.tsv.gz, or JAXDISTILL_DATA.")
        tasks.append(bitext.bitext_task(data))
    return tasks


def evaluate(
    spec: str,
    tasks: Sequence[Score],
    *,
    pooling: str = "",
    max_length: int = 0,
    prompt: str = "",
    batch_size: int = 128,
) -> dict[str, Any]:
    """What a results file says of one model: what it is, its scores in [-1, 1], and the time it took."""
    model = load(spec, pooling=pooling, max_length=max_length, prompt=prompt)
    embedder = Embedder(model, batch_size=batch_size)
    embed = partial(embedder.encode, progress=sys.stderr.isatty())
    start = time.perf_counter()
    scores = {name: float(score) for task in tasks for name, score in task(embed).items()}
    return {
        "model": spec,
        "digest": model.digest(),
        "parameters": model.parameter_count,
        "embedding_width": model.definition.embedding_width,
        "pooling": str(model.definition.pooling),
        "max_length": model.max_length,
        "prompt": prompt or model.default_prompt or "",
        "seconds": round(time.perf_counter() - start, 1),
        "scores": scores,
    }


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    given = _parser().parse_args(arguments)
    names = [name.strip() for name in given.tasks.split(",") if name.strip()]
    tasks = chosen_tasks(names, data=given.data, pairs=given.pairs)
    if not tasks:
        raise InputError(f"--tasks names no task; there are {', '.join(TASKS)}.")
    out = _writable(given.out)
    options = {key: getattr(given, key) for key in ("pooling", "max_length", "prompt", "batch_size")}
    results = [evaluate(spec, tasks, **options) for spec in given.model]
    for table in tables({f"{row['model']}": row["scores"] for row in results}):
        print(as_text(table, width=160))
    if out:
        source = given.data or "Hugging Face hub"
        protocol = f"{PROTOCOL}; {bitext.PROTOCOL}" if "bitext" in names else PROTOCOL
        report = {"protocol": protocol, "data": source, "versions": versions(), "models": results}
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"written to {out}")


def tables(scores: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """What is printed: a line a model with its correlations, and a line a set and direction with recalls."""
    measured = list(dict.fromkeys(name for named in scores.values() for name in named))
    recalls = [name for name in measured if name.endswith(bitext.METRIC)]
    correlations = [name for name in measured if name not in recalls]
    by_set = {
        name.removesuffix(bitext.METRIC): {model: named[name] for model, named in scores.items()} for name in recalls
    }
    found = [score_table(scores, correlations)] if correlations else []
    return found + ([score_table(by_set, list(scores), what="recall@1 × 100")] if recalls else [])


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.evaluate", description=__doc__)
    parser.add_argument(
        "--model", action="append", required=True, help="folder, package:NAME/PATH or hub name; repeatable"
    )
    parser.add_argument("--tasks", default="sts", help="separated by commas; default: sts")
    parser.add_argument(
        "--data",
        default=os.environ.get("JAXDISTILL_DATA", ""),
        help="data folder with sts/*.tsv.gz and multilingual/*.tsv.gz; default: $JAXDISTILL_DATA, or else the Hugging Face hub",
    )
    parser.add_argument("--pairs", default="", help="graded pairs for the task pairs")
    parser.add_argument("--pooling", default="", help="needed where a checkpoint does not say its pooling")
    parser.add_argument("--max_length", type=int, default=0, help="tokens of a sentence; 0: as the checkpoint says")
    parser.add_argument("--prompt", default="", help="name of a prompt of the checkpoint, or its text")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--out", default="results.json", help="file for the results; default: results.json")
    return parser


def _writable(out: str) -> Path | None:
    """The results file, tried before minutes of work; None when none is wanted (`--out=`)."""
    if not out:
        return None
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise InputError(f"--out={out} cannot be written: {error.strerror}.") from error
    return path


if __name__ == "__main__":
    run(main)
