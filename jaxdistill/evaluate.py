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
  retrieval      translations among other sentences (alone: bitext; --bitext=FOLDER: your own), entities (alone: entities;
                 --entities=FILE), and the neighbours of random captions; with --index_model=TEACHER also in an index of
                 the teacher's vectors
  documents      nDCG@10, recall, MRR@10 and MAP of documents (--retrieval=FOLDER, in BEIR's format); with --index_model
                 also in that model's index, with --reranker after a cross-encoder. --model=bm25 is the lexical
                 baseline. --split=dev uses the dev judgements. --max_length and --document_prompt also apply to the
                 index model; the reranker keeps its own length
  agreement      share of the nearest 1 and 10 sentences that --teacher finds in --text=FILE which the model also finds, and the
                 correlation of their similarities
  geometry       alignment, uniformity, anisotropy, edit distance, an out-of-domain example
  speed          sentences/s at batch 1 and 128, parameters, bytes

Sets that the data folder lacks are skipped with a message; --strict refuses to start instead. Scores of the same model
and files are cached, except speed. If an evaluation fails, a line says why, the others continue, and the program exits
with status 2. Cross-encoders and ensembles (`A+B`) score pairs directly and have no vectors for other tasks.
--parts=FILE adds evaluations.

--postprocess=whiten scores vectors transformed by BERT-whitening, --postprocess=flow by BERT-flow's normalizing flow. Both
are fitted on the model's vectors of at most 100,000 distinct sentences of --postprocess_text, a source of text as for
training. A file that is itself scored is refused.

--dims=64,128,256 and --dtypes=float32,int8,binary,centred score each model's vectors as an index stores them, with one row for each
width in each dtype, the bytes per vector, and a plot of score against bytes. In `documents`, queries stay float.

Results of other models, sets or options, and files of other programs, are never replaced: move them, or give another --out.

If --out is a folder, its index.html shows tables and plots, and needs no network.

Several processes, started as for training, each encode a part; the first one prints and writes. All must see the same sets
and models: a set that one of them cannot read fails for all. Each measures speed on its own devices.
"""

import argparse
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxdistill.calls import in_python_words, make_callable
from jaxdistill.cli import BATCH_SIZE, Parser, add_reading_options, any_path, run
from jaxdistill.cluster import processes
from jaxdistill.core import ROLES, InputError, Precision, Split
from jaxdistill.evals import options
from jaxdistill.evals.in_memory import PARTS, InMemory, graded_pairs, retrieval_set
from jaxdistill.evals.postprocess import METHODS
from jaxdistill.files import is_remote
from jaxdistill.inference import Embedder
from jaxdistill.paths import delivered
from jaxdistill.reporting.page import PAGE
from jaxdistill.reporting.tables import as_text, result_tables, score_table
from jaxdistill.scoring import Scored, scored
from jaxdistill.versions import source_digest
from jaxdistill.workdir.folder import RESULTS

JOINED, REPEATED = (
    ("tasks", "parts", "dims", "dtypes", "bitext", "entities", "retrieval", "text"),
    ("model", "paper", "postprocess_text"),
)
"""Options that a Python call may give as lists; on the command line, values are joined by commas or the flag is repeated."""


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    given = _parser().parse_args(arguments)
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12]} | vars(given)):
        failures = _delivered(given)
        processes.wait("reported")
        if failures:
            raise InputError(f"{failures} of the evaluations or models failed; the lines above say why.")


def _delivered(given: argparse.Namespace) -> int:
    """Scores; the first process prints, and writes to a path or a bucket. Returns the number of failed evaluations and models."""
    if not processes.is_first():
        given.out = ""
        return len(scored(given, InMemory(), {}).failed())
    address = given.out if is_remote(given.out) else ""
    with delivered(given.out) as given.out:
        failures = _reported(given, said=not address)
    if address:
        print(f"uploaded to {address}")
    return failures


def _reported(given: argparse.Namespace, *, said: bool) -> int:
    """Scores, prints and writes; returns the number of failed evaluations and models.

    Args:
      said: whether to print where the files are.
    """
    outcome = scored(given, InMemory(), {})
    measured = {row["model"]: row["scores"] for row in outcome.content["models"]}
    for table in result_tables(measured | {paper["label"]: paper["scores"] for paper in outcome.content["papers"]}):
        print(as_text(table, width=160))
    if given.dims or given.dtypes:
        sizes = {row["model"]: {"bytes per vector": row["vector_bytes"]} for row in outcome.content["models"]}
        print(as_text(score_table(sizes, ["bytes per vector"], what="model", shown="{:,}".format), width=160))
    if given.postprocess:
        print(f"vectors transformed by {outcome.content['postprocess']}")
    if outcome.file and said:
        print(f"written to {outcome.file}")
    page = outcome.page(given)
    if page and said:
        print(f"report: {page}")
    return len(outcome.failed())


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

    def __init__(self, line: str, result: EvaluationResult):
        super().__init__(line)
        self.result = result


@in_python_words(renamed={"model": "models"})
def evaluate(
    models: str | Path | Embedder | Sequence[str | Path | Embedder],
    *,
    tasks: str | Sequence[str] = "",
    data: str | Path | None = None,
    strict: bool = False,
    pairs: str | Path | Sequence[tuple[str, str, float]] = "",
    queries: Mapping[str, str] | None = None,
    corpus: Mapping[str, str | Mapping[str, str]] | None = None,
    relevant_docs: Mapping[str, Collection[str] | Mapping[str, int]] | None = None,
    bitext: str | Path | Sequence[str | Path] = (),
    entities: str | Path | Sequence[str | Path] = (),
    retrieval: str | Path | Sequence[str | Path] = (),
    text: str | Path | Sequence[str | Path] = (),
    split: Split = "test",
    index_model: str | Path = "",
    reranker: str | Path = "",
    teacher: str | Path = "",
    paper: str | Sequence[str] = (),
    dims: str | Sequence[int] = "",
    dtypes: str | Sequence[str] = "",
    postprocess: str = "",
    postprocess_text: str | Path | Sequence[str | Path] = (),
    parts: str | Path | Sequence[str | Path] = (),
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
      pairs: graded pairs `(sentence1, sentence2, score)`, or a file of them.
      queries, corpus, relevant_docs: a retrieval set in memory: maps ids to texts, ids to texts (or `title` and `text`), and
        query ids to document ids, or to relevance by document id. Its scores begin with `documents/in-memory`.
      retrieval: sets of documents in BEIR's format, with the judgements of `split`.
      text: files of sentences, on which the task `agreement` compares models with `teacher`.
      dims, dtypes: of stored vectors, such as `(64, 128)` and `("int8", "binary")`; scores are named `MODEL (64 int8)` and so on.
      out: results file, or a folder (ending in /) for results and report; empty: nothing is written.

    Raises:
      InputError: an option or a set in memory cannot be used.
      EvaluationFailed: an evaluation or one of several models failed; the others were scored, and are in its `result`.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    own = _in_memory(options)
    loaded = _loaded(options)
    given = _parser().parse_call(options, joined=JOINED, repeated=REPEATED)
    if is_remote(given.out):
        raise InputError(f"out={given.out!r} is an address; give a local path, or use the program's --out.")
    given.out = given.out if processes.is_first() else ""
    return _result(scored(given, own, loaded), given)


def _in_memory(options: dict[str, Any]) -> InMemory:
    """Removes sets in memory from the arguments of `evaluate`, and returns them."""
    parts = [options.pop(name, None) for name in PARTS]
    is_file = isinstance(options.get("pairs", ""), str | Path)
    return InMemory(
        pairs=None if is_file else graded_pairs(options.pop("pairs")),
        retrieval=retrieval_set(*parts) if any(part is not None for part in parts) else None,
    )


def _loaded(options: dict[str, Any]) -> dict[str, Embedder]:
    """Replaces models in memory among the arguments of `evaluate` by their names; returns the models by name."""
    models = options.pop("models", [])
    is_list = isinstance(models, Iterable) and not isinstance(models, str | Path)
    models = list(models) if is_list else [models]
    names = [model.model.source if isinstance(model, Embedder) else model for model in models]
    loaded = {model.model.source: model for model in models if isinstance(model, Embedder)}
    for name in loaded:
        if [str(one) for one in names].count(name) > 1:
            raise InputError(f"models has {name!r} twice, but results are named by it; score them one at a time.")
    for option in ("pooling", "max_length", "prompt"):
        if loaded and options[option]:
            raise InputError(f"{option}={options[option]!r} is for models given by name; give it to jaxdistill.load.")
    options["model"] = names
    return loaded


def _result(outcome: Scored, given: argparse.Namespace) -> EvaluationResult:
    """The result for Python; raises `EvaluationFailed` if something failed."""
    result = EvaluationResult(
        scores={row["model"]: row["scores"] for row in outcome.content["models"]},
        results=outcome.content,
        results_file=outcome.file,
        report=outcome.page(given),
    )
    if failed := outcome.failed():
        what, why = next(iter(failed.items()))
        more = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        raise EvaluationFailed(f"{what} failed: {why}{more} The other scores are in this error's `result`.", result)
    return result


def _parser() -> Parser:
    parser = Parser(prog="python -m jaxdistill.evaluate", description=__doc__)
    add = parser.add_argument
    model = "folder, package:NAME/PATH or hub name, or A+B for the mean of several models' scores; repeatable"
    add("--model", action="append", type=any_path, required=True, help=model)
    teacher = "also scored, and the reference of the report and of the task agreement; default: the teacher of the export's run, for the report"
    add("--teacher", type=any_path, default="", help=teacher)
    paper = "row of a paper's tables to show beside the models, as congen:tinybert-l4 (see docs/methods.md); repeatable"
    add("--paper", action="append", default=[], help=paper)
    options.add_options(parser)
    add("--postprocess", choices=tuple(METHODS), default="", help="transform of the vectors before scoring")
    fitted = "text to fit the transform on; repeatable"
    add("--postprocess_text", action="append", type=os.path.expanduser, default=[], help=fitted)
    add_reading_options(parser, precision="float32")  # scores must not depend on the machine
    add("--prompt", default="", help="name of a prompt of the checkpoint, or the text itself")
    for role in ROLES:
        also = ", and for the index model" if role == "document" else ""
        add(f"--{role}_prompt", default="", help=f"the same for each {role} in the task documents{also}")
    out = f"results file, or a folder (ending in /) for {RESULTS} and {PAGE}; default: {RESULTS}"
    add("--out", type=any_path, default=RESULTS, help=out)
    return parser


make_callable(__name__, evaluate)

if __name__ == "__main__":
    run(main)
