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
  retrieval      translations among other sentences (alone: bitext), and entities (alone: entities)
  documents      nDCG@10, recall, MRR@10 and MAP of documents, in BEIR's format; with --index_model also in that model's index
  nanobeir       the same for the 13 sets of NanoBEIR, from the hub
  mteb           MTEB's own tasks, run by mteb
  agreement      share of the nearest 1 and 10 sentences of --text that --teacher finds which the model also finds; rank correlation
  geometry       alignment, uniformity, anisotropy, edit distance, an out-of-domain example
  speed          sentences/s at batch 1 and 128, parameters, bytes

Sets that the data folder lacks are skipped with a message. If an evaluation fails, a line says why, the others continue, and the
program exits with status 2. Scores of the same model and files are cached, except speed. Cross-encoders and ensembles (`A+B`) score
pairs directly and have no vectors for other tasks.
Results of other models, sets or options, and files of other programs, are never replaced: move them, or give another --out.

Several processes, started as for training, each encode a part; the first one prints and writes. All must see the same sets
and models. Each measures speed on its own devices.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from tyro.conf import UseAppendAction

from jaxdistill.core import ROLES, Embed, InputError, Precision, Scorer, Split, refuse
from jaxdistill.core.cli import BATCH_SIZE, BY_NAMES, Listed, listed, make_callable, parse, run
from jaxdistill.core.cluster import processes
from jaxdistill.core.files import foreign_errors, local, try_writing, write_atomic, writing
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.paths import cache_folder
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.core.runtime import source_digest, versions
from jaxdistill.data.targets import refuse_changes
from jaxdistill.data.text import content_digest, source_files
from jaxdistill.evals import geometry, papers, report, sts, suite, transfer
from jaxdistill.evals.evaluation import EmbeddingCache, Model, Sources
from jaxdistill.models.checkpoints.model import SentenceModel, load_model, locate
from jaxdistill.models.inference import Embedder, ensemble
from jaxdistill.models.vectors import unit_rows
from jaxdistill.training.export import weights_bytes
from jaxdistill.training.workdir.folder import RESULTS


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Result of `jaxdistill.evaluate`."""

    scores: Mapping[str, Mapping[str, float]]
    """Maps models to their scores by name, in [-1, 1]; speed has its own units."""
    results: Mapping[str, Any] = field(repr=False)
    """Content of `results.json`: one row per model, protocols, digests, versions."""
    results_file: Path | None
    """The file with `results`, if `out` named one."""
    report: Path | None
    """The HTML report, if `out` named a folder."""


class EvaluationFailed(InputError):
    """An evaluation failed. It is raised after all others were scored; `result` has their scores."""

    def __init__(self, failures: Mapping[str, str], result: EvaluationResult):
        name, reason = next(iter(failures.items()))
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        super().__init__(f"{name} failed: {reason}{more} The other scores are in this error's `result`.")
        self.result = result


def evaluate(
    model: Annotated[str | Path | Embedder | Sequence[str | Path | Embedder], BY_NAMES, UseAppendAction],
    *,
    tasks: Listed = "",
    data: str | Path | None = None,
    pairs: str | Path = "",
    bitext: Listed = "",
    entities: Listed = "",
    retrieval: Listed = "",
    split: Split = "test",
    index_model: str | Path = "",
    mteb: str = "",
    text: Listed = "",
    teacher: str | Path = "",
    paper: Annotated[str | Sequence[str], BY_NAMES, UseAppendAction] = (),
    dims: Listed = "",
    whiten: Listed = "",
    plugins: Listed = "",
    pooling: str = "",
    max_length: int = 0,
    prompt: str = "",
    query_prompt: str = "",
    document_prompt: str = "",
    batch_size: int = BATCH_SIZE,
    precision: Precision = "float32",
    out: str | Path = "",
) -> EvaluationResult:
    """Scores models on evaluation tasks, which docs/guide/evaluation.md explains.

    Args:
      model: Folder, package:NAME/PATH or hub name, or A+B for the mean of several models' scores. From Python also a list, and
        models from `jaxdistill.load`, with the options given there.
      tasks: Names from the list above; empty: the tasks of the given sets, or sts.
      data: Data folder with sts/, transfer/ and so on; None: $JAXDISTILL_DATA, or else the Hugging Face hub for STS.
      pairs: Your graded pairs, with columns score, sentence1, sentence2.
      bitext: Your translations: files or globs NAME.en-de.tsv with columns en and de, or folders.
      entities: Files with columns query, entity, label, one for each language.
      retrieval: Folders or hub names in BEIR's form; A+B: A's queries, B's documents; empty: the sets of the data folder.
      split: Judgements of the sets of documents.
      index_model: Model that makes the index of asymmetric retrieval, such as the teacher. Pooling and other prompts are its own.
      mteb: A benchmark or tasks of MTEB, such as 'MTEB(eng, v2)' or STSBenchmark,SciFact; its files go into the folder mteb beside `out`'s.
      text: Sentences on which the task agreement compares models with the teacher: files or globs.
      teacher: Also scored, and the reference of the report and of the task agreement.
      paper: Row of a paper's tables to show beside the models, as congen:tinybert-l4 (configs/papers/ has them).
      dims: Widths of truncated vectors, normalised again unless compared by dot product; scores are named `MODEL (64)` and so on.
      whiten: Texts, as for training, on whose vectors (of at most 100,000 distinct sentences) whitening is fitted; empty: none.
      plugins: Modules or files with your own families and evaluations.
      pooling: Needed if a model's folder does not state its pooling.
      max_length: Most tokens of a sentence, also for the index model; 0: the model's.
      prompt: Name of a prompt of the model, or the text itself.
      query_prompt: The same for each query in the task documents.
      document_prompt: The same for each document in the task documents, also for the index model.
      batch_size: Sentences of 32 tokens that are computed together.
      precision: Of matrix products; auto: bfloat16 where the hardware supports it.
      out: Results file, or a folder (ending in /) for results.json and index.html; empty: none.

    Raises:
      EvaluationFailed: an evaluation or one of several models failed; the others were scored, and are in its `result`.
    """
    # The arguments that determine scores, for the results file; `model` follows, by name. So far, the local variables are the arguments.
    options: dict[str, Any] = locals().copy()
    for name in ("model", "batch_size", "out"):
        del options[name]
    options["data"] = os.path.expanduser(os.environ.get("JAXDISTILL_DATA", "") if data is None else data)
    for name in ("tasks", "bitext", "entities", "retrieval", "text", "whiten", "dims", "plugins"):
        options[name] = listed(options[name])
    for name in ("pairs", "index_model", "teacher"):
        options[name] = os.path.expanduser(options[name])
    options["paper"] = [paper] if isinstance(paper, str) else list(paper)
    use_plugins(",".join(options["plugins"]))
    models = [model] if isinstance(model, str | Path | Embedder) else list(model)
    loaded = {item.model.source: item.model for item in models if isinstance(item, Embedder)}
    names = [item.model.source if isinstance(item, Embedder) else os.path.expanduser(item) for item in models]
    options["model"] = names
    repeated = [name for name in loaded if names.count(name) > 1]
    refuse([
        (loaded and (pooling or max_length or prompt),
         "pooling, max_length and prompt are of models given by name; give them to jaxdistill.load."),
        (repeated, f"{', '.join(repeated)} is given more than once, but scores are named by model; evaluate one at a time."),
        (whiten and dims, "dims truncates the model's own vectors, so it excludes whiten."),
        (whiten and index_model, "whiten fits a transform for each model, so it excludes index_model."),
    ])  # fmt: skip
    return _evaluate(options, partial(_model, options, loaded, batch_size), str(out))


def _evaluate(options: dict[str, Any], load: Callable[..., Model], out: str) -> EvaluationResult:
    """Scores the models that `options` name on the sets that they name, and writes the results to `out`.
    `load` makes a `Model` from a name; it is `_model` without its first three arguments."""
    paper_rows = [papers.cited(reference, "paper") for reference in options["paper"]]
    path = local(out, "out")
    is_folder = out.endswith("/") or path.is_dir()
    file = page = None
    if out and processes.is_first():
        file = path / RESULTS if is_folder else path
        page = path / report.PAGE if is_folder else None
        try_writing(file)  # before the evaluation, which takes minutes
    sources = Sources(
        **{name: options[name] for name in options.keys() & Sources.__annotations__.keys()},
        mteb_folder=file.with_name("mteb") if file else None,
    )
    # Without `tasks`, an option that names sets selects the task that reads them; most tasks have the option's name.
    set_options = [name for name in ("pairs", "bitext", "entities", "retrieval", "mteb", "text") if options[name]]
    other_names = {"retrieval": "documents", "text": "agreement"}
    tasks = options["tasks"] or [other_names.get(name, name) for name in set_options] or ["sts"]
    with processes.agreed() as facts:
        plan = suite.planned(tasks, sources)
        if not plan.sets:
            raise InputError(next(iter(plan.absent), "the tasks have no set."))  # `absent` says why each is
        for line in plan.absent:
            _print_error(f"skipped: {line}")
        scored_files = {path.resolve() for _, test_set in plan.sets for path in test_set.paths}
        whitening_files = {path.resolve() for spec in options["whiten"] for path in source_files(spec)}
        if both := scored_files & whitening_files:
            raise InputError(f"whiten={min(both)} is a test set of this evaluation; fit on another text.")
        digests = {test_set.name: test_set.digest() for _, test_set in plan.sets}
        facts |= digests | {"absent": plan.absent}
    # Replaces only results of the same models, sets and options.
    existing = [path for path in (file, page) if path and path.exists()]
    if file and existing:
        with foreign_errors(f"{existing[0]} is not of evaluate; move it, or give another out"):
            earlier = json.loads(file.read_bytes())
            earlier_inputs = earlier["inputs"] | earlier["files"]
        refuse_changes(file, earlier_inputs, options | digests)
    # The models `index_model` and `teacher`, if sets refer to them. All models share them, and so the vectors that they computed.
    reference_names = {name for _, test_set in plan.sets for name in test_set.references}
    references = {name: load(options[name], is_index=name == "index_model") for name in reference_names}
    rows, failed = _scored_models(options, load, plan, references)
    score_names = dict.fromkeys(name for row in rows for name in row["scores"])
    shown_paper_rows = [row.only(score_names) for row in paper_rows]
    content = {
        "protocol": {test_set.name: test_set.protocol for _, test_set in plan.sets},
        "seed": transfer.SEED,
        "index_model_reading": references["index_model"].reading if "index_model" in references else {},
        "precision": dtype_of(options["precision"]).name,
        "versions": versions(),
        "absent": plan.absent,
        "failed": failed,
        "models": rows,
        "papers": [{"label": row.label, "tables": row.tables, "scores": row.scores} for row in shown_paper_rows],
        "inputs": options,
        "files": digests,
    }
    if not score_names:  # all evaluations failed, so nothing is written
        file = page = None
    if file:
        with writing(file):
            write_atomic(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        if page:
            report.write_evaluation(content, page)
    scores = {row["model"]: row["scores"] for row in rows}
    result = EvaluationResult(scores=scores, results=content, results_file=file, report=page)
    if failures := report.failures(content):
        raise EvaluationFailed(failures, result)
    return result


def _scored_models(
    options: dict[str, Any], load: Callable[..., Model], plan: suite.Suite, references: dict[str, Model]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of the results file, one for each model and width; and by name, why other models cannot be scored."""
    rows = []
    failed = {}
    specs = list(dict.fromkeys([*filter(None, [options["teacher"]]), *options["model"]]))
    for spec in specs:
        try:
            with processes.agreed() as facts:
                is_reference = "teacher" in references and spec == options["teacher"]
                model = references["teacher"] if is_reference else load(spec)
                facts[spec] = model.digest
            model = replace(model, **references)
            widths = dict.fromkeys(options["dims"] if spec in options["model"] else ())  # the teacher is not truncated
            variants = [truncated(model, width) for width in widths] or [model]
            rows += [_scored(variant, plan) for variant in variants]
        except InputError as error:
            if len(specs) == 1:
                raise
            failed[spec] = str(error)
            _print_error(f"failed: model {spec}: {error}")
    return rows, failed


def _members(
    options: dict[str, Any], loaded: dict[str, SentenceModel], spec: str, *, is_index: bool
) -> list[SentenceModel]:
    """The model `spec`, or the models of an ensemble `A+B`, with the prompts in `options`. Models in `loaded`, by name, are not read
    again. If `is_index`, it makes the index of asymmetric retrieval, and has its own pooling and only the prompt for documents."""
    prompts = {role: options[f"{role}_prompt"] or options["prompt"] for role in ROLES}
    if is_index:
        models = [load_model(spec, max_length=options["max_length"])]
        prompts = {"document": options["document_prompt"]}
    elif spec in loaded:
        models = [loaded[spec]]
    else:
        names = [spec] if Path(spec).exists() else spec.split("+")  # a folder's name may contain +
        reading = {option: options[option] for option in ("max_length", "pooling", "prompt")}
        models = [load_model(name, **reading) for name in names]
    return [model.with_role_prompts({role: text for role, text in prompts.items() if text}) for model in models]


def _model(
    options: dict[str, Any], loaded: dict[str, SentenceModel], batch_size: int, spec: str, *, is_index: bool = False
) -> Model:
    """The model or ensemble that `_members` reads, as evaluations use it, on the devices of all processes."""
    models = _members(options, loaded, spec, is_index=is_index)
    dtype = dtype_of(options["precision"])
    embedders = [Embedder(model, compute_dtype=dtype, batch_size=batch_size) for model in models]
    whiten = options["whiten"]
    digests = [model.digest() for model in models]  # and whatever else changes vectors; float32 adds nothing
    if whiten:
        digests += ["whiten", content_digest(whiten)]
    digests += [name for embedder in embedders if (name := embedder.compute_dtype.name) != "float32"]
    readings = [
        {
            "embedding_width": model.definition.embedding_width,
            "pooling": str(model.definition.pooling),
            "max_length": model.max_length,
            "prompt": model.prompt,
            # A cross-encoder has no prompts for roles.
            "role_prompts": {role: model.role_prompts[role] for role in ROLES if not model.definition.reads_pairs},
        }
        for model in models
    ]
    first = embedders[0]  # the only one, unless the model is an ensemble, which scores pairs
    progress = sys.stderr.isatty() and processes.is_first()
    local_embed: Any = ensemble(embedders, progress=progress) if embedders[1:] else first.as_embed(progress=progress)
    embed = processes.over_processes(local_embed)
    has_vectors = not isinstance(local_embed, Scorer)
    whitening = cache(lambda: geometry.whitening_on(embed, whiten))  # fitted on first use

    def whitened(embed: Embed) -> Embed:
        return (lambda sentences: whitening()(np.asarray(embed(sentences)))) if whiten else embed

    # A scorer of pairs raises `InputError` when it is asked for vectors, from which whitening is fitted.
    functions: dict[str, Any] = {"embed": embed, "timed": local_embed, "query": embed, "document": embed}
    if has_vectors or whiten:
        functions = {role: EmbeddingCache(whitened(partial(embed, role=role))) for role in ROLES}  # query, document
        functions["embed"] = EmbeddingCache(whitened(embed))
        functions["timed"] = whitened(partial(first.encode, batch_size=geometry.BATCH_SIZE))
    return Model(
        **functions,
        name=spec,
        digest=digests[0] if len(digests) == 1 else hashlib.sha256("+".join(digests).encode()).hexdigest(),
        width=first.width if has_vectors and not whiten else 0,
        reading=readings[0] if len(readings) == 1 else {"members": readings},
        parameters=sum(model.parameter_count for model in models),
        size_bytes=sum(weights_bytes(locate(model.source)) for model in models),
        similarity=first.model.definition.similarity if has_vectors and not whiten else "cosine",
    )


def truncated(model: Model, width: str) -> Model:
    """The model with the first `width` numbers of each vector; scaled to unit length unless it compares by dot product. Likewise its
    index model. Raises `InputError` if the model has no vectors, or `width` is not a number from 1 to their width."""
    if not model.width:
        raise InputError(f"dims={width}: {model.name} scores pairs and has no vectors to truncate.")
    if not width.isdecimal() or not 0 < int(width) <= model.width:
        raise InputError(f"dims={width}: the vectors of {model.name} have {model.width} numbers; give at most that.")
    scale = np.asarray if model.similarity == "dot" else unit_rows

    def truncate(embed: Embed) -> Embed:
        return lambda sentences: scale(np.asarray(embed(sentences))[:, : int(width)]).astype(np.float32)

    return replace(
        model,
        **{name: truncate(getattr(model, name)) for name in ("embed", "query", "document")},
        name=f"{model.name} ({width})",
        digest=hashlib.sha256(f"{model.digest}+{width}".encode()).hexdigest(),
        width=int(width),
        index_model=truncated(model.index_model, width) if model.index_model else None,
    )


def _scored(model: Model, plan: suite.Suite) -> dict[str, Any]:
    """Scores a model on the sets of `plan`; returns its row of the results file."""
    start = time.perf_counter()
    results = {}
    failed = {}
    for evaluation, test_set in plan.sets:
        try:
            results[test_set.name] = suite.measured(evaluation, test_set, model, cache_folder())
        except InputError as error:
            failed[test_set.name] = str(error)
            _print_error(f"failed: {test_set.name} of {model.name}: {error}")
    scores = {name: score for result in results.values() for name, score in result.scores.items()}
    return {
        "model": model.name,
        "digest": model.digest,
        "parameters": model.parameters,
        "size_bytes": model.size_bytes,
        "vector_bytes": 4 * model.width,  # in float32
        **model.reading,
        "seconds": round(time.perf_counter() - start, 1),
        "scores": suite.with_averages(scores, failed),
        "failed": failed,
        "details": {name: values for result in results.values() for name, values in result.details.items()},
        "scored_pairs": next((results[name].scored_pairs for name in sts.PLOTTED if name in results), None),
    }


def _print_error(line: str) -> None:
    if processes.is_first():
        print(line, file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    options, _ = parse(evaluate, arguments)
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12], **options}):
        try:
            result = evaluate(**options)
        except EvaluationFailed as error:
            result = error.result
        if processes.is_first():
            print(report.as_text(report.score_table(report.entries_of(result.results)), width=200))
        if result.results_file:
            print(f"written to {result.report or result.results_file}")
        processes.wait("reported")  # the error below ends all processes
        if failures := report.failures(result.results):
            raise InputError(f"{len(failures)} of the evaluations or models failed; the lines above say why.")


make_callable(__name__, evaluate)

if __name__ == "__main__":
    run(main)
