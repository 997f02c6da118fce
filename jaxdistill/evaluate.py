"""Evaluates sentence encoders on the papers' benchmarks, or on your own pairs, translations, entities and retrieval sets.

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
  retrieval      translations among other sentences (alone: bitext; --bitext=FOLDER: your own), and entities (alone: entities;
                 --entities=FILE)
  documents      nDCG@10, recall, MRR@10 and MAP of documents (--retrieval=FOLDER, in BEIR's format); with --index_model
                 also in that model's index, with --reranker after a cross-encoder. --split=dev uses the dev judgements.
                 --max_length and --document_prompt also apply to the index model; the reranker keeps its own length
  agreement      share of the nearest 1 and 10 sentences that --teacher finds in --text=FILE which the model also finds, and the
                 correlation of their similarities
  geometry       alignment, uniformity, anisotropy, edit distance, an out-of-domain example
  speed          sentences/s at batch 1 and 128, parameters, bytes

Sets that the data folder lacks are skipped with a message; --strict refuses to start instead. Scores of the same model
and files are cached, except speed. If an evaluation fails, a line says why, the others continue, and the program exits
with status 2. Cross-encoders and ensembles (`A+B`) score pairs directly and have no vectors for other tasks.
--parts=FILE adds evaluations.

--postprocess=whiten scores whitened vectors, fitted on the model's vectors of at most 100,000 distinct sentences of
--postprocess_text, a source of text as for training. A file that is itself scored is refused.

--dims=64,128,256 scores the first numbers of each model's vectors, with one column for each width.

If --out is a folder, its index.html shows tables and plots, and needs no network. Results of other models, sets or options, and
files of other programs, are never replaced: move them, or give another --out.

Several processes, started as for training, each encode a part; the first one prints and writes. All must see the same sets
and models: a set that one of them cannot read fails for all. Each measures speed on its own devices.
"""

import inspect
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.candidates import (
    Candidate,
    Others,
    Reading,
    candidate_of,
    index_model_of,
    model_of,
    reranker_of,
    truncated,
)
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, any_path, local_path, run
from jaxdistill.cluster import processes
from jaxdistill.core import ROLES, InputError, Precision, Split
from jaxdistill.data.sources import file_of, files_of, local_files, split_specs
from jaxdistill.data.tables import refuse_changes
from jaxdistill.evals import probe, suite
from jaxdistill.evals.beir import SPLITS
from jaxdistill.evals.evaluation import Model, Sources
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.files import is_remote, is_special, refuse_overwriting, write_atomic
from jaxdistill.files import parts as plugins
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.paths import cache_folder, delivered
from jaxdistill.reporting import evaluation as report
from jaxdistill.reporting import papers
from jaxdistill.reporting.page import PAGE
from jaxdistill.reporting.tables import as_text, score_table
from jaxdistill.versions import source_digest, versions
from jaxdistill.workdir.folder import RESULTS

TASK_OF = {"pairs": "pairs", "bitext": "bitext", "entities": "entities", "retrieval": "documents", "text": "agreement"}
"""Maps options that name sets to the tasks that read them, which are the default tasks if the option is given."""
ASIDE = ("models", "strict", "batch_size", "out")
"""Arguments that are not among the noted inputs."""
Listed = str | Path | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Result of `jaxdistill.evaluate`."""

    scores: Mapping[str, Mapping[str, float]]
    """Maps models to their scores by name, in [-1, 1]; the task `speed` has its own units."""
    results: Mapping[str, Any] = field(repr=False)
    """Content of `results.json`: one row per model, protocols, digests, versions."""
    results_file: Path | None
    """The file with `results`, if `out` named one."""
    report: Path | None
    """The report, if `out` is a folder."""


class EvaluationFailed(InputError):
    """An evaluation failed; raised after everything else was scored. `result` has these scores."""

    def __init__(self, failed: Mapping[str, str], result: EvaluationResult):
        what, why = next(iter(failed.items()))
        more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        super().__init__(f"{what} failed: {why}{more} The other scores are in this error's `result`.")
        self.count, self.result = len(failed), result


@in_python_words(renamed={"model": "models"})
def evaluate(
    models: str | Path | Embedder | Sequence[str | Path | Embedder],
    *,
    tasks: str | Sequence[str] = "",
    data: str | Path | None = None,
    strict: bool = False,
    pairs: str | Path = "",
    bitext: Listed = "",
    entities: Listed = "",
    retrieval: Listed = "",
    text: Listed = "",
    split: Split = "test",
    index_model: str | Path = "",
    reranker: str | Path = "",
    teacher: str | Path = "",
    paper: str | Sequence[str] = (),
    dims: str | int | Sequence[int] = "",
    postprocess: str = "",
    postprocess_text: Listed = (),
    parts: Listed = "",
    pooling: str = "",
    max_length: int = 0,
    prompt: str = "",
    query_prompt: str = "",
    document_prompt: str = "",
    batch_size: int = BATCH_SIZE,
    precision: Precision = "float32",
    out: str | Path = "",
) -> EvaluationResult:
    """Scores models; `jaxdistill.evaluate` is this function. docs/guide/evaluation.md explains the tasks.

    Args:
      models: one or several: results of `jaxdistill.load`, or folders, `package:NAME/PATH` or hub names; `A+B` is the mean of
        several models' scores. `pooling`, `max_length` and `prompt` apply only to names.
      tasks: names, also as one string with commas; empty: the tasks of the given sets, or `sts`.
      data: the data folder; None: $JAXDISTILL_DATA.
      pairs: file of graded pairs.
      retrieval: sets of documents in BEIR's format, with the judgements of `split`.
      text: files of sentences, on which the task `agreement` compares models with `teacher`.
      dims: widths of truncated vectors, such as `(64, 128)`; scores are named `MODEL (64)` and so on.
      out: results file, or a folder (ending in /) for results and report; empty: nothing is written.

    Raises:
      InputError: an option cannot be used.
      EvaluationFailed: an evaluation or one of several models failed; the others were scored, and are in its `result`.
    """
    options = Namespace(**{name: value for name, value in locals().items() if name not in ASIDE})
    options.data = os.path.expanduser(os.environ.get("JAXDISTILL_DATA", "") if data is None else data)
    for name in ("tasks", "bitext", "entities", "retrieval", "text", "dims", "parts"):
        setattr(options, name, _listed(getattr(options, name)))
    options.paper, options.postprocess_text = _repeated(paper), _repeated(postprocess_text)
    for name in ("pairs", "index_model", "reranker", "teacher"):
        setattr(options, name, os.path.expanduser(getattr(options, name)))
    plugins.use(",".join(options.parts))
    if is_remote(str(out)):
        raise InputError(f"out={os.fspath(out)!r} is an address; give a local path, or use the program's --out.")
    options.model, loaded = _loaded(models, options)
    file = report.results_path(str(out)) if out and processes.is_first() else None
    plan = _planned(options, strict=strict)
    if file:
        refuse_overwriting(file, [path for _, one in plan.sets for path in one.files])
    files = {one.name: one.digest() for _, one in plan.sets}
    earlier = _earlier(file, file.with_name(PAGE) if report.is_folder(str(out)) else file) if file else {}
    if earlier:
        refuse_changes(str(file), earlier["inputs"], vars(options) | files)
    content, scored_pairs = _evaluated(options, plan, files, loaded, batch_size=batch_size)
    before = _states(earlier)
    if changed := [name for name, digest in _states(content).items() if before.get(name, digest) != digest]:
        raise InputError(f"{file} has results of another state of {changed[0]}; move it, or give another --out.")
    page = None
    if file:
        write_atomic(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        if report.is_folder(str(out)):
            page = report.write_evaluation(content, scored_pairs, file.with_name(PAGE), teacher=options.teacher)
    scores = {row["model"]: row["scores"] for row in content["models"]}
    result = EvaluationResult(scores=scores, results=content, results_file=file, report=page)
    failed = {f"model {model}": why for model, why in content["failed"].items()}
    failed |= {f"{one} of {row['model']}": why for row in content["models"] for one, why in row["failed"].items()}
    if failed:
        raise EvaluationFailed(failed, result)
    return result


def _listed(value: Any) -> list[str]:
    """The values of an option that may also be one string with commas."""
    specs = split_specs(value) if isinstance(value, str) else [value] if isinstance(value, Path | int) else value
    return [os.path.expanduser(str(spec)) for spec in specs]


def _repeated(value: Any) -> list[str]:
    """The values of an option that may be a single one."""
    return [os.path.expanduser(one) for one in ([value] if isinstance(value, str | Path) else value)]


def _loaded(models: Any, options: Namespace) -> tuple[list[str], dict[str, Embedder]]:
    """The names of the models, and the models in memory by name."""
    is_list = isinstance(models, Iterable) and not isinstance(models, str | Path)
    every: list[Any] = list(models) if is_list else [models]
    names = [one.model.source if isinstance(one, Embedder) else os.path.expanduser(one) for one in every]
    loaded = {one.model.source: one for one in every if isinstance(one, Embedder)}
    if not names:
        raise InputError("models is empty; give one or several.")
    if twice := [name for name in loaded if names.count(name) > 1]:
        raise InputError(f"models has {twice[0]!r} twice, but results are named by it; score them one at a time.")
    for option in ("pooling", "max_length", "prompt"):
        if loaded and (value := getattr(options, option)):
            raise InputError(f"{option}={value!r} is for models given by name; give it to jaxdistill.load.")
    return names, loaded


def _planned(options: Namespace, *, strict: bool) -> suite.Suite:
    """The sets that can be scored; raises `InputError` if there are none, or if `strict` is set and one is absent."""
    tasks = options.tasks or [task for option, task in TASK_OF.items() if getattr(options, option)] or ["sts"]
    sources = Sources(
        data=options.data,
        pairs=str(file_of("--pairs", options.pairs)) if options.pairs else "",
        entities=tuple(map(str, files_of("--entities", options.entities))),
        bitext=tuple(options.bitext),
        retrieval=tuple(options.retrieval),
        split=options.split,
        text=tuple(files_of("--text", options.text)) if options.teacher else (),
        asymmetric=bool(options.index_model),
        reranked=bool(options.reranker),
    )
    with processes.agreed() as facts:
        plan = suite.planned(tasks, sources)
        if processes.count() > 1:
            facts |= {one.name: one.digest()[:12] for _, one in plan.sets} | {"absent": plan.absent}
    if plan.absent and (strict or not plan.sets):
        also = f" ({len(plan.absent)} sets are absent, and --strict refuses that.)" if strict else ""
        raise InputError(f"{plan.absent[0]}{also}")
    for missing in plan.absent:
        _complain(f"skipped: {missing}")
    return plan


def _evaluated(
    options: Namespace, plan: suite.Suite, files: dict[str, str], loaded: Mapping[str, Embedder], *, batch_size: int
) -> tuple[dict[str, Any], dict[str, ScoredPairs | None]]:
    """The content of the results file, and each model's graded pairs to plot.

    Args:
      files: maps sets to their digests.
      loaded: models in memory, by name.
    """
    reading = _reading(options, plan)
    cited = [papers.cited(reference, "--paper") for reference in options.paper]
    compares = any("teacher" in one.uses for _, one in plan.sets)
    others = Others(
        index_model_of(options.index_model, reading),
        reranker_of(options.reranker, reading),
        candidate_of(options.teacher, reading, loaded) if compares else None,
    )
    rows, scored_pairs, unloaded = [], {}, {}
    specs = list(dict.fromkeys([*filter(None, [options.teacher]), *options.model]))
    for spec in specs:
        try:
            with processes.agreed() as facts:
                teacher = others.teacher if spec == options.teacher else None
                candidate = teacher or candidate_of(spec, reading, loaded)
                facts[spec] = candidate.digest() if processes.count() > 1 else ""
            whole = model_of(candidate, others, batch_size=batch_size)
            for dims in _widths(options, candidate) if spec in options.model else [0]:
                one = replace(candidate, dims=dims)
                row, scored_pairs[one.label] = _scored(one, truncated(whole, dims) if dims else whole, plan, others)
                rows.append(row)
        except InputError as error:
            if len(specs) == 1:
                raise
            unloaded[spec] = str(error)
            _complain(f"failed: model {spec}: {error}")
    measured = dict.fromkeys(name for row in rows for name in row["scores"])
    is_of_hub = any(not one.files and not one.is_repeatable for _, one in plan.sets)
    content = {
        "protocol": {one.name: one.protocol for _, one in plan.sets},
        "files": files,
        "inputs": vars(options) | files,
        "states": others.states(),
        "seed": probe.SEED,
        "data": options.data or ("Hugging Face hub" if is_of_hub else ""),
        "sets": {option: _shown(value) for option in TASK_OF if (value := getattr(options, option))},
        **{name: getattr(options, name) for name in ("index_model", "reranker", "teacher")},
        "index_model_reading": others.index.reading()[0] if others.index else {},
        "reranker_reading": others.reranker.reading()[0] if others.reranker else {},
        "precision": dtype_of(options.precision).name,
        "postprocess": f"whiten, fitted on {_shown(reading.whitened_on)}" if reading.whitened_on else "none",
        "versions": versions(),
        "absent": plan.absent,
        "failed": unloaded,
        "models": rows,
        "papers": [
            {"label": row.label, "tables": row.tables, "scores": dict(row.scores)}
            for row in (paper.only(measured) for paper in cited)
        ],
    }
    return content, scored_pairs


def _shown(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _reading(options: Namespace, plan: suite.Suite) -> Reading:
    """How models read texts; raises `InputError` for a whitening that has no text, or one that is a set of this evaluation."""
    if options.postprocess not in ("", "whiten"):
        raise InputError(f"--postprocess={options.postprocess} is unknown; there is whiten.")
    if bool(options.postprocess) != bool(options.postprocess_text):
        raise InputError("--postprocess=whiten is fitted on --postprocess_text=FILE; give both.")
    if options.postprocess and options.index_model:
        raise InputError(
            "--postprocess fits one transform per model, so it excludes --index_model; leave out one of them."
        )
    scored = {path.resolve() for _, one in plan.sets for path in one.files}
    for path in local_files(options.postprocess_text):
        if path.resolve() in scored:
            raise InputError(f"--postprocess_text={path} is a test set of this evaluation; fit on another text.")
    return Reading(
        pooling=options.pooling,
        max_length=options.max_length,
        prompt=options.prompt,
        role_prompts={role: getattr(options, f"{role}_prompt") for role in ROLES},
        precision=options.precision,
        whitened_on=tuple(options.postprocess_text),
    )


def _earlier(file: Path, page: Path) -> dict[str, Any]:
    """The results that will be replaced, empty without any; raises `InputError` if they are not of this program."""
    if is_special(file) or not (file.exists() or page.exists()):
        return {}
    try:
        earlier = json.loads(file.read_bytes())
        if {"inputs", "models"} <= earlier.keys():
            return earlier
    except (OSError, ValueError, AttributeError):
        pass
    raise InputError(f"{file if file.exists() else page} is not of evaluate; move it, or give another --out.")


def _states(content: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the models of a results file by name, and of the other models that they were scored with."""
    return {row["model"]: row["digest"] for row in content.get("models", ())} | content.get("states", {})


def _widths(options: Namespace, candidate: Candidate) -> list[int]:
    """The widths at which a model is scored; 0: its own."""
    if wrong := [dims for dims in options.dims if not dims.isdecimal() or not 0 < int(dims) <= candidate.width]:
        raise InputError(
            f"--dims={wrong[0]}: the vectors of {candidate.spec} have {candidate.width} numbers; give widths up to that."
        )
    return [int(dims) for dims in dict.fromkeys(options.dims)] or [0]


def _scored(
    candidate: Candidate, model: Model, plan: suite.Suite, others: Others
) -> tuple[dict[str, Any], ScoredPairs | None]:
    """A model's row of the results file, and graded pairs to plot."""
    start, digest = time.perf_counter(), candidate.digest()
    results, failed, seconds = {}, {}, {}
    for evaluation, one in plan.sets:
        begun = time.perf_counter()
        try:
            digests = [digest, *others.digests(one)]
            results[one.name] = suite.measured(evaluation, one, model, digests, cache_folder())
            seconds[one.name] = round(time.perf_counter() - begun, 1)
        except InputError as error:
            failed[one.name] = str(error)
            _complain(f"failed: {one.name} of {candidate.label}: {error}")
    apart = {
        name for _, one in plan.sets if not one.is_averaged and one.name in results for name in results[one.name].scores
    }
    scores = {name: score for result in results.values() for name, score in result.scores.items()}
    described = candidate.reading()
    row = {
        "model": candidate.label,
        "digest": digest,
        "parameters": model.parameters,
        "size_bytes": model.size_bytes,
        "vector_bytes": 4 * candidate.width,
        **(described[0] if len(described) == 1 else {"members": described}),
        "seconds": round(time.perf_counter() - start, 1),
        "seconds_of_task": seconds,
        "scores": suite.with_averages(scores, failed, apart),
        "failed": failed,
        "notes": [result.note for result in results.values() if result.note],
        "details": {name: values for result in results.values() for name, values in result.details.items()},
    }
    drawn = [results[name].scored_pairs for name in suite.DRAWN if name in results]
    return row, ScoredPairs(**drawn[0]) if drawn and drawn[0] else None


def _complain(line: str) -> None:
    if processes.is_first():
        print(line, file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    options = vars(_parser().parse_args(arguments))
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12]} | options):
        out, models, failed = options.pop("out"), options.pop("model"), 0
        with delivered(out, upload=processes.is_first()) as path:
            try:
                result = cast(Any, evaluate).__wrapped__(models, out=path, **options)
            except EvaluationFailed as error:
                result, failed = error.result, error.count
            if processes.is_first():
                _print(result, is_local=not is_remote(out))
        if is_remote(out) and processes.is_first():
            print(f"uploaded to {out}")
        processes.wait("reported")
        if failed:
            raise InputError(f"{failed} of the evaluations or models failed; the lines above say why.")


def _print(result: EvaluationResult, *, is_local: bool) -> None:
    """Prints the scores and, if they stay on this machine, where the files are."""
    content = result.results
    print(as_text(score_table(report.entries_of(content)), width=200))
    if content["postprocess"] != "none":
        print(f"vectors transformed by {content['postprocess']}")
    if result.results_file and is_local:
        print(f"written to {result.results_file}")
    if result.report and is_local:
        print(f"report: {result.report}")


HELP = {
    "teacher": "also scored, and the reference of the report and of the task agreement",
    "paper": "row of a paper's tables to show beside the models, as congen:tinybert-l4 (see docs/methods.md); repeatable",
    "tasks": "names from the list above, separated by commas; default: the tasks of the given sets, or sts",
    "data": "data folder with sts/, transfer/ and so on; default: $JAXDISTILL_DATA, or else the Hugging Face hub for STS",
    "strict": "refuse to start if a set is absent",
    "pairs": "your graded pairs for the task pairs, with columns score, sentence1, sentence2",
    "bitext": "your translations: files or globs NAME.en-de.tsv with columns en and de, or folders, separated by commas",
    "entities": "files with columns query, entity, label, one per language, separated by commas",
    "retrieval": "folders or hub names in BEIR's form, separated by commas; A+B: A's queries, B's documents; default: DATA/retrieval/*",
    "text": "sentences on which the task agreement compares models with --teacher: files or globs, separated by commas",
    "split": "judgements of the sets of documents; default: test",
    "reranker": "cross-encoder with which the first 100 documents are also reordered; it keeps its own maximum length",
    "index_model": "model that makes the index of asymmetric retrieval, such as the teacher; --max_length and --document_prompt apply "
    "to it, pooling and other prompts are its own",
    "dims": "score the first numbers of each vector: widths separated by commas; default: all",
    "postprocess": "transform of the vectors before scoring",
    "postprocess_text": "text to fit the transform on; repeatable",
    "prompt": "name of a prompt of the checkpoint, or the text itself",
    "query_prompt": "the same for each query in the task documents",
    "document_prompt": "the same for each document in the task documents, and for the index model",
}
"""The program's options besides those of `add_reading_options`."""
KINDS: dict[str, dict[str, Any]] = {
    "paper": {"action": "append"},
    "postprocess_text": {"action": "append"},
    "strict": {"action": "store_true"},
    "split": {"choices": SPLITS},
    "postprocess": {"choices": ("whiten",)},
    "data": {"type": local_path},
    **{name: {"type": any_path} for name in ("teacher", "pairs", "reranker", "index_model")},
}
"""Properties of options that are not plain strings."""


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.evaluate", description=__doc__)
    model = "folder, package:NAME/PATH or hub name, or A+B for the mean of several models' scores; repeatable"
    parser.add_argument("--model", action="append", type=any_path, required=True, help=model)
    for name, text in HELP.items():
        default = inspect.signature(evaluate).parameters[name].default
        default = list(default) if isinstance(default, tuple) else default
        parser.add_argument(f"--{name}", **{"default": default, "help": text} | KINDS.get(name, {}))
    add_reading_options(parser, precision="float32")  # scores must not depend on the machine
    out = f"results file, or a folder (ending in /) for {RESULTS} and {PAGE}; default: {RESULTS}"
    parser.add_argument("--out", type=any_path, default=RESULTS, help=out)
    return parser


make_callable(__name__, evaluate)

if __name__ == "__main__":
    run(main)
