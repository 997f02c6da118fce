"""Evaluates sentence encoders on the papers' benchmarks, or on your own pairs, entities and retrieval sets.

  python -m jaxdistill.evaluate --model=runs/l3/export --tasks=sts --data=DATA
  python -m jaxdistill.evaluate --model=A --model=B --data=DATA --out=report/ \\
    --tasks=sts,multilingual,transfer,nli,pairs,retrieval,geometry,speed
  python -m jaxdistill.evaluate --model=runs/a/export+runs/b/export --tasks=sts,pairs --data=DATA    # their mean scores

Tasks, separated by commas:

  sts            STS12-16, STS-B, SICK-R, STS-B dev, and the subsets of STS12-16; also single sets such as sick-r
  multilingual   the tracks of STS 2017
  transfer       MR, CR, SUBJ, MPQA, SST2, TREC, MRPC: logistic regression on frozen vectors
  nli            SICK-E, and SNLI with another training set: likewise
  pairs          AUC on QQP, QNLI, MRPC; with --pairs=FILE the correlation with your own graded pairs instead
  retrieval      translations among other sentences (alone: bitext), entities (--entities=FILE), and the neighbours of
                 random captions; with --index_model=TEACHER also in an index of the teacher's vectors
  documents      nDCG@10, recall, MRR@10 and MAP of documents (--retrieval=FOLDER, in BEIR's format); with --index_model
                 also in that model's index, with --reranker after a cross-encoder. --model=bm25 is the lexical
                 baseline. --max_length and --document_prompt also apply to the index model; the reranker keeps its own
                 length
  geometry       alignment, uniformity, anisotropy, edit distance, an out-of-domain example
  speed          sentences/s at batch 1 and 128, parameters, bytes

Sets that the data folder lacks are skipped with a message; --strict refuses to start instead. Scores of the same model
and files are cached, except speed. If an evaluation fails, a line says why, the others continue, and the program exits
with status 2. Cross-encoders and ensembles (`A+B`) score pairs directly and have no vectors for other tasks.
--parts=FILE adds evaluations.

--postprocess=whiten scores vectors transformed by BERT-whitening, flow those transformed by BERT-flow's normalizing
flow. Both are fitted on the model's vectors of at most 100,000 distinct sentences of --postprocess_text, given as text
for training is. A file that is itself scored is refused.

If --out is a folder, its index.html shows tables and plots, and needs no network.

Several processes, started as for training, each encode a part; the first one prints and writes. All must see the same
sets and models: a set that one of them cannot read fails for all. Each measures speed on its own devices.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxdistill import processes
from jaxdistill.candidates import (
    Candidate,
    Others,
    candidate_of,
    index_model_of,
    model_of,
    postprocessing_of,
    reranker_of,
)
from jaxdistill.cli import Parser, add_reading_options, any_path, did_you_mean, make_callable, run
from jaxdistill.core import ROLES, InputError
from jaxdistill.evals import options, probe, suite
from jaxdistill.evals.evaluation import Unit
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.evals.postprocess import METHODS
from jaxdistill.files import is_remote, refuse_overwriting, write_atomic
from jaxdistill.ops.dense import dtype_of
from jaxdistill.paths import cache_folder, delivered
from jaxdistill.reporting import evaluation as evaluation_report
from jaxdistill.reporting.page import PAGE
from jaxdistill.reporting.tables import as_text, result_tables
from jaxdistill.versions import source_digest, versions

JOINED, REPEATED = ("tasks", "parts", "entities", "retrieval"), ("model", "postprocess_text")
"""Options that a call from Python may give as lists: on the command line commas join the values, or the flag is repeated."""


def score(
    candidate: Candidate, units: Sequence[Unit], others: Others, *, batch_size: int
) -> tuple[dict[str, Any], ScoredPairs | None]:
    """A model's row of the results file (its description, scores, failed units and seconds), and graded pairs to draw.

    Args:
      batch_size: number of sentences of 32 tokens that are computed together.
    """
    start, digest, spec = time.perf_counter(), candidate.digest(), candidate.spec
    known = model_of(candidate, others, batch_size=batch_size)
    found, failed, seconds = {}, {}, {}
    for unit in units:
        begun = time.perf_counter()
        try:
            found[unit.name] = suite.unit_values(unit, known, [digest, *others.digests(unit)], cache_folder())
            seconds[unit.name] = round(time.perf_counter() - begun, 1)
        except InputError as error:
            failed[unit.name] = str(error)
            _complain(f"failed: {unit.name} of {spec}: {error}")
    scores = {name: float(score) for values in found.values() for name, score in values["scores"].items()}
    single = [unit.name for unit in units if not unit.is_averaged]
    apart = {*single, *(name for unit in single for name in found.get(unit, {"scores": ()})["scores"])}
    described = candidate.reading()
    row = {
        "model": spec,
        "digest": digest,
        "parameters": known.parameters,
        "size_bytes": known.size_bytes,
        **(described[0] if len(described) == 1 else {"members": described}),
        "seconds": round(time.perf_counter() - start, 1),
        "seconds_of_task": seconds,
        "scores": suite.with_averages(scores, failed, apart),
        "failed": failed,
        "neighbours": {name: values["neighbours"] for name, values in found.items() if "neighbours" in values},
    }
    drawn = [ScoredPairs(**found[name]["scored_pairs"]) for name in suite.drawn_units() if name in found]
    return row, drawn[0] if drawn else None


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    given = _parser().parse_args(arguments)
    with processes.joined(lambda: {"jaxdistill": source_digest()[:12]} | vars(given)):
        failures = _delivered(given)
        processes.gathered("reported")
        if failures:
            raise InputError(f"{failures} of the evaluations or models failed; the lines above say why.")


def _delivered(given: argparse.Namespace) -> int:
    """Scores; the first process prints, and writes to a path or a bucket. Returns how many evaluations and models failed."""
    if not processes.is_first():
        given.out = ""
        return _failures(_scored(given)[0])
    address = given.out if is_remote(given.out) else ""
    with delivered(given.out) as given.out:
        failures = _reported(given, said=not address)
    if address:
        print(f"uploaded to {address}")
    return failures


def _reported(given: argparse.Namespace, *, said: bool) -> int:
    """Scores, prints, writes; returns how many evaluations and models failed.

    Args:
      said: whether to print where the files are.
    """
    content, scored_pairs = _scored(given)
    for table in result_tables({row["model"]: row["scores"] for row in content["models"]}):
        print(as_text(table, width=160))
    if given.postprocess:
        print(f"vectors transformed by {content['postprocess']}")
    out = evaluation_report.results_path(given.out)
    if out and said:
        print(f"written to {out}")
    if out and evaluation_report.is_folder(given.out):
        page = evaluation_report.write_evaluation(content, scored_pairs, out.with_name(PAGE), teacher=given.teacher)
        if said:
            print(f"report: {page}")
    return _failures(content)


def _failures(content: Mapping[str, Any]) -> int:
    return len(content["failed"]) + sum(len(row["failed"]) for row in content["models"])


def _complain(line: str) -> None:
    if processes.is_first():
        print(line, file=sys.stderr)


def evaluate(
    models: str | Path | Sequence[str | Path], *, tasks: str | Sequence[str] = "sts", **options: Any
) -> dict[str, Any]:
    """Scores models; `jaxdistill.evaluate` is this function.

    Args:
      models: folders, `package:NAME/PATH` or hub names; `A+B` for the mean of several models' scores.
      tasks: as `--tasks`.
      options: the program's other options by their names (`data`, `pairs`, `parts`, `batch_size` and so on), checked as on the
        command line. Those that take several values, such as `retrieval`, also take a list. `out` is a local path and gets the
        results without the report.

    Returns:
      The content of a results file: `models` has a row for each, with `scores` in [-1, 1] and the units that `failed`.
    """
    parser = _parser()
    known = parser.defaults().keys() - {"model"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InputError(f"option {unknown[0]!r} is unknown.{did_you_mean(unknown[0], sorted({*known, 'models'}))}")
    chosen = {"model": models, "tasks": tasks, "out": ""} | options
    given = parser.parse_call(chosen, joined=JOINED, repeated=REPEATED)
    if is_remote(given.out):
        raise InputError(
            f"out={given.out!r} is an address; give a local path, or run `python -m jaxdistill.evaluate --out`."
        )
    return _scored(given)[0]


def _scored(given: argparse.Namespace) -> tuple[dict[str, Any], dict[str, ScoredPairs | None]]:
    """Evaluates, and writes the results file if `--out` names one; returns its content, and graded pairs to draw by model."""
    with processes.agreed() as facts:
        plan = options.planned(given)
        if processes.count() > 1:
            facts |= {unit.name: unit.digest()[:12] for unit in plan.units} | {"absent": list(plan.absent)}
    out = evaluation_report.results_path(given.out)
    if out:
        refuse_overwriting(out, [path for unit in plan.units for path in unit.files])
    postprocessing = postprocessing_of(given, plan.units)
    precision = dtype_of(given.precision).name
    others = Others(index_model_of(given, precision), reranker_of(given.reranker, precision))
    specs = list(dict.fromkeys([*filter(None, [given.teacher]), *given.model]))
    evaluated, unloaded = [], {}
    for spec in specs:
        try:
            with processes.agreed() as facts:
                candidate = candidate_of(spec, given, postprocessing)
                facts[spec] = candidate.digest() if processes.count() > 1 else ""
            evaluated.append(score(candidate, plan.units, others, batch_size=given.batch_size))
        except InputError as error:
            if len(specs) == 1:
                raise
            unloaded[spec] = str(error)
            _complain(f"failed: model {spec}: {error}")
    content = {
        "protocol": {unit.name: unit.protocol for unit in plan.units},
        "files": {unit.name: unit.digest() for unit in plan.units},
        "seed": probe.SEED,
        "data": given.data or ("Hugging Face hub" if any(map(_is_of_hub, plan.units)) else ""),
        "sets": {option: spec for option in ("pairs", "entities", "retrieval") if (spec := getattr(given, option))},
        "index_model": given.index_model,
        "index_model_reading": others.index.reading()[0] if others.index else {},
        "reranker": given.reranker,
        "reranker_reading": others.reranker.reading()[0] if others.reranker else {},
        "precision": precision,
        "postprocess": str(postprocessing),
        "versions": versions(),
        "absent": plan.absent,
        "failed": unloaded,
        "models": [row for row, _ in evaluated],
    }
    if out:
        write_atomic(out, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return content, {row["model"]: pairs for row, pairs in evaluated}


def _is_of_hub(unit: Unit) -> bool:
    """Whether a unit fetches its sets when it runs: it has no file here, and its scores are not remembered."""
    return not unit.files and not unit.is_repeatable


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.evaluate", description=__doc__)
    parser.add_argument(
        "--model",
        action="append",
        type=any_path,
        required=True,
        help="folder, package:NAME/PATH or hub name, or A+B for the mean of several models' scores; repeatable",
    )
    parser.add_argument(
        "--teacher",
        type=any_path,
        default="",
        help="also scored, and the reference of the report; default: the teacher of the run that an export belongs to",
    )
    options.add_options(parser)
    parser.add_argument(
        "--postprocess", choices=tuple(METHODS), default="", help="transform of the vectors before scoring"
    )
    parser.add_argument(
        "--postprocess_text",
        action="append",
        type=os.path.expanduser,
        default=[],
        help="text to fit the transform on; repeatable",
    )
    add_reading_options(parser, precision="float32")  # scores must not depend on the machine
    parser.add_argument("--prompt", default="", help="name of a prompt of the checkpoint, or the text itself")
    for role in ROLES:
        also = ", and for the index model" if role == "document" else ""
        parser.add_argument(
            f"--{role}_prompt", default="", help=f"the same for each {role} in the task documents{also}"
        )
    parser.add_argument(
        "--out",
        type=any_path,
        default=evaluation_report.RESULTS,
        help=f"results file, or a folder (ending in /) for {evaluation_report.RESULTS} and {PAGE}; default: "
        f"{evaluation_report.RESULTS}",
    )
    return parser


make_callable(__name__, evaluate)

if __name__ == "__main__":
    run(main)
