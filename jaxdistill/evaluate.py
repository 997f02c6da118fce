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
                 also in that model's index, to which --max_length and --document_prompt also apply. --split=dev uses the dev
                 judgements
  agreement      share of the nearest 1 and 10 sentences that --teacher finds in --text=FILE which the model also finds, and the
                 correlation of their similarities
  geometry       alignment, uniformity, anisotropy, edit distance, an out-of-domain example
  speed          sentences/s at batch 1 and 128, parameters, bytes

Sets that the data folder lacks are skipped with a message; --strict refuses to start instead. Scores of the same model
and files are cached, except speed. If an evaluation fails, a line says why, the others continue, and the program exits
with status 2. Cross-encoders and ensembles (`A+B`) score pairs directly and have no vectors for other tasks.
--plugins=FILE adds evaluations.

--postprocess=whiten scores whitened vectors, fitted on the model's vectors of at most 100,000 distinct sentences of
--postprocess_text, a source of text as for training. A file that is itself scored is refused.

--dims=64,128,256 scores the first numbers of each model's vectors, with one column for each width.

If --out is a folder, its index.html shows tables and plots, and needs no network. Results of other models, sets or options, and
files of other programs, are never replaced: move them, or give another --out.

Several processes, started as for training, each encode a part; the first one prints and writes. All must see the same sets
and models: a set that one of them cannot read fails for all. Each measures speed on its own devices.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
from tyro.conf import UseAppendAction

from jaxdistill.core import ROLES, Embed, InputError, Precision, RoleEmbed, Scorer, Split, errors_of
from jaxdistill.core.cli import BATCH_SIZE, BY_NAMES, Listed, listed, make_callable, parse, run
from jaxdistill.core.cluster import processes
from jaxdistill.core.cluster.processes import over_processes
from jaxdistill.core.files import is_remote, refuse_overwriting, try_writing, write_atomic, writing
from jaxdistill.core.ops.dense import dtype_of
from jaxdistill.core.paths import cache_folder, delivered
from jaxdistill.core.plugins import use as use_plugins
from jaxdistill.core.runtime import source_digest, versions
from jaxdistill.data.targets import refuse_changes
from jaxdistill.data.text import content_digest, file_of, files_of, local_files
from jaxdistill.evals import probe, suite
from jaxdistill.evals.evaluation import Model, Sources
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.evals.reporting import page as report
from jaxdistill.evals.reporting import papers
from jaxdistill.evals.reporting.tables import as_text, score_table
from jaxdistill.evals.similarity import EmbeddingCache, whitening_on
from jaxdistill.models.checkpoints.model import SentenceModel, load_model, locate
from jaxdistill.models.inference import Embedder, Ensemble
from jaxdistill.training.export import weights_bytes
from jaxdistill.training.workdir.folder import RESULTS

TASK_OF = {"pairs": "pairs", "bitext": "bitext", "entities": "entities", "retrieval": "documents", "text": "agreement"}
"""Maps options that name sets to the tasks that read them, which are the default tasks if the option is given."""
LISTS = ("tasks", "bitext", "entities", "retrieval", "text", "postprocess_text", "dims", "plugins")
OTHERS = ("index_model", "teacher")
"""Options that name models with which the scored ones are combined or compared."""
OUTSIDE = ("model", "strict", "batch_size", "out")
"""Arguments that are not among the noted inputs."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model to score, or several as an ensemble."""

    spec: str
    members: tuple[SentenceModel, ...]
    precision: str
    """Dtype of matrix products."""
    whitened_on: tuple[str, ...] = ()
    """The text whose vectors are whitened; empty: vectors stay as they are."""
    dims: int = 0
    """Number of leading dimensions of its vectors; 0: all."""

    @property
    def label(self) -> str:
        """Its name in results."""
        return f"{self.spec} ({self.dims})" if self.dims else self.spec

    @property
    def width(self) -> int:
        """Width of its vectors; 0 if it has none of its own, or whitening changes it."""
        has_none = len(self.members) != 1 or self.members[0].definition.reads_pairs or self.whitened_on
        return 0 if has_none else self.dims or self.members[0].definition.embedding_width

    def digest(self) -> str:
        """Digest of everything that determines the scores."""
        digests = [member.digest() for member in self.members]
        digests += ["whiten", content_digest(self.whitened_on)] if self.whitened_on else []
        digests += [str(self.dims)] if self.dims else []
        digests += [] if self.precision == "float32" else [self.precision]
        return digests[0] if len(digests) == 1 else hashlib.sha256("+".join(digests).encode()).hexdigest()

    def reading(self) -> list[dict[str, Any]]:
        """How each member reads texts, for results; a cross-encoder has no prompts for roles."""
        return [
            {
                "embedding_width": member.definition.embedding_width,
                "pooling": str(member.definition.pooling),
                "max_length": member.max_length,
                "prompt": member.prompt,
                "role_prompts": {
                    role: member.role_prompts[role] for role in ROLES if not member.definition.reads_pairs
                },
            }
            for member in self.members
        ]

    def embed(self, batch_size: int, *, progress: bool = False) -> RoleEmbed | Scorer:
        """The model for evaluations, on the devices of this process."""
        embedders = [Embedder(member, compute_dtype=self.precision, batch_size=batch_size) for member in self.members]
        if len(embedders) > 1:
            return Ensemble(embedders, progress=progress)
        return cast(RoleEmbed | Scorer, embedders[0].as_embed(progress=progress))

    def model(self, batch_size: int, others: Mapping[str, Any]) -> Model:
        """The candidate, with vectors of full width, as the `Model` that evaluations use, on the devices of all processes.

        Args:
          others: fields for the models with which it is combined or compared.
        """
        embed = over_processes(self.embed(batch_size, progress=sys.stderr.isatty() and processes.is_first()))
        scores_pairs = isinstance(embed, Scorer)
        if scores_pairs and self.whitened_on:
            raise InputError(
                "postprocess=whiten transforms vectors; cross-encoders and ensembles have none, so leave it out."
            )
        whitening = cache(lambda: whitening_on(cast(Embed, embed), self.whitened_on))  # fitted on first use

        def after(embed: Any) -> Embed:
            return (lambda sentences: whitening()(np.asarray(embed(sentences)))) if self.whitened_on else embed

        def in_role(role: str) -> Embed:  # a scorer of pairs raises `InputError` when it is asked for vectors
            return EmbeddingCache(after(embed if scores_pairs else partial(cast(RoleEmbed, embed), role=role)))

        has_lengths = len(self.members) == 1 and not self.whitened_on
        return Model(
            embed=cast(Embed, embed) if scores_pairs else EmbeddingCache(after(embed)),
            embed_in_batches=lambda size: after(self.embed(size)),
            parameters=sum(member.parameter_count for member in self.members),
            size_bytes=sum(weights_bytes(locate(member.source)) for member in self.members),
            query=in_role("query"),
            document=in_role("document"),
            similarity=self.members[0].definition.similarity if has_lengths else "cosine",
            **others,
        )


def truncated(model: Model, dims: int) -> Model:
    """The model, and the index that it searches, with the first `dims` numbers of each vector, at unit length."""

    def cut(embed: Embed) -> Embed:
        def leading(sentences: Sequence[str]) -> np.ndarray:
            vectors = np.asarray(np.asarray(embed(sentences))[:, :dims], np.float32)
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            return vectors / np.where(lengths == 0, np.float32(1), lengths)

        return leading

    roles = {name: cut(embed) for name in ("query", "document", "index") if (embed := getattr(model, name))}
    return replace(model, embed=cut(model.embed), similarity="cosine", index_similarity="cosine", **roles)


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


def evaluate(
    model: Annotated[str | Path | Embedder | Sequence[str | Path | Embedder], BY_NAMES, UseAppendAction],
    *,
    tasks: Listed = "",
    data: str | Path | None = None,
    strict: bool = False,
    pairs: str | Path = "",
    bitext: Listed = "",
    entities: Listed = "",
    retrieval: Listed = "",
    split: Split = "test",
    index_model: str | Path = "",
    text: Listed = "",
    teacher: str | Path = "",
    paper: Annotated[str | Sequence[str], BY_NAMES, UseAppendAction] = (),
    dims: Listed = "",
    postprocess: Literal["", "whiten"] = "",
    postprocess_text: Listed = "",
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
    """Scores models; docs/guide/evaluation.md explains the tasks.

    Args:
      model: Folder, package:NAME/PATH or hub name, or A+B for the mean of several models' scores. From Python also a list, and
        results of `jaxdistill.load`, which read as they were loaded.
      tasks: Names from the list above; empty: the tasks of the given sets, or sts.
      data: Data folder with sts/, transfer/ and so on; None: $JAXDISTILL_DATA, or else the Hugging Face hub for STS.
      strict: Refuse to start if a set is absent.
      pairs: Your graded pairs, with columns score, sentence1, sentence2.
      bitext: Your translations: files or globs NAME.en-de.tsv with columns en and de, or folders.
      entities: Files with columns query, entity, label, one for each language.
      retrieval: Folders or hub names in BEIR's form; A+B: A's queries, B's documents; empty: the sets of the data folder.
      split: Judgements of the sets of documents.
      index_model: Model that makes the index of asymmetric retrieval, such as the teacher. Pooling and other prompts are its own.
      text: Sentences on which the task agreement compares models with the teacher: files or globs.
      teacher: Also scored, and the reference of the report and of the task agreement.
      paper: Row of a paper's tables to show beside the models, as congen:tinybert-l4 (configs/papers/ has them).
      dims: Widths of truncated vectors; scores are named `MODEL (64)` and so on.
      postprocess: Transform of the vectors before scoring.
      postprocess_text: Texts to fit the transform on.
      plugins: Modules or files with your own readers, families and evaluations.
      pooling: Needed if a model's folder does not state its pooling.
      max_length: Most tokens of a sentence, also for the index model; 0: the model's.
      prompt: Name of a prompt of the model, or the text itself.
      query_prompt: The same for each query in the task documents.
      document_prompt: The same for each document in the task documents, also for the index model.
      batch_size: Sentences of 32 tokens that are computed together.
      precision: Of matrix products; auto: bfloat16 where the hardware supports it.
      out: Results file, or a folder (ending in /) for results.json and index.html. From Python empty for none.

    Raises:
      InputError: an option cannot be used.
      EvaluationFailed: an evaluation or one of several models failed; the others were scored, and are in its `result`.
    """
    options = {name: value for name, value in locals().items() if name not in OUTSIDE}
    options["data"] = os.path.expanduser(os.environ.get("JAXDISTILL_DATA", "") if data is None else data)
    options |= {name: listed(options[name]) for name in LISTS}
    options |= {name: os.path.expanduser(options[name]) for name in ("pairs", *OTHERS)}
    options["paper"] = [paper] if isinstance(paper, str) else list(paper)
    use_plugins(",".join(options["plugins"]))
    is_list = isinstance(model, Iterable) and not isinstance(model, str | Path)
    every: list[Any] = list(cast(Any, model)) if is_list else [model]
    loaded = {one.model.source: one for one in every if isinstance(one, Embedder)}
    names = [one.model.source if isinstance(one, Embedder) else os.path.expanduser(one) for one in every]
    options["model"] = names
    if twice := [name for name in loaded if names.count(name) > 1]:
        raise InputError(f"model has {twice[0]!r} twice, but results are named by it; score them one at a time.")
    for option in ("pooling", "max_length", "prompt"):
        if loaded and options[option]:
            raise InputError(f"{option}={options[option]!r} is for models given by name; give it to jaxdistill.load.")
    if bool(postprocess) != bool(options["postprocess_text"]):
        raise InputError("postprocess=whiten is fitted on postprocess_text=FILE; give both.")
    if postprocess and index_model:
        raise InputError(
            "postprocess fits a transform for each model, so it excludes index_model; leave out one of them."
        )
    cited = [papers.cited(reference, "paper") for reference in options["paper"]]
    out = os.path.expanduser(out)
    is_folder = out.endswith("/") or os.path.isdir(out)
    file = (Path(out, RESULTS) if is_folder else Path(out)) if out and processes.is_first() else None
    page = file.with_name(report.PAGE) if file and is_folder else None
    if file:
        with writing(file):  # checked before the evaluation, which takes minutes
            try_writing(file)
    plan = _planned(options, strict=strict)
    files = [path for _, one in plan.sets for path in one.files]
    inputs = {**options, **{one.name: one.digest() for _, one in plan.sets}}
    if file:
        refuse_overwriting(file, files)
        _refuse_other_results(file, page, inputs)
    if tested := {path.resolve() for path in files} & {
        path.resolve() for path in local_files(options["postprocess_text"])
    }:
        raise InputError(f"postprocess_text={min(tested)} is a test set of this evaluation; fit on another text.")
    rows, scored_pairs, failed, index_reading = _evaluated(options, plan, loaded, batch_size=batch_size)
    measured = dict.fromkeys(name for row in rows for name in row["scores"])
    is_of_hub = any(not one.files and not one.is_repeatable for _, one in plan.sets)
    content = {
        "protocol": {one.name: one.protocol for _, one in plan.sets},
        "seed": probe.SEED,
        "data": options["data"] or ("Hugging Face hub" if is_of_hub else ""),
        "sets": {
            name: value if isinstance(value, str) else ",".join(value) for name in TASK_OF if (value := options[name])
        },
        **{name: options[name] for name in OTHERS},
        "index_model_reading": index_reading,
        "precision": dtype_of(precision).name,
        "postprocess": f"whiten, fitted on {','.join(options['postprocess_text'])}" if postprocess else "none",
        "versions": versions(),
        "absent": plan.absent,
        "failed": failed,
        "models": rows,
        "papers": [
            {"label": row.label, "tables": row.tables, "scores": dict(row.scores)}
            for row in (one.only(measured) for one in cited)
        ],
        "inputs": inputs,
        "files": {one.name: inputs[one.name] for _, one in plan.sets},
    }
    if file:
        with writing(file):
            write_atomic(file, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        if page:
            report.write_evaluation(content, scored_pairs, page)
    scores = {row["model"]: row["scores"] for row in rows}
    result = EvaluationResult(scores=scores, results=content, results_file=file, report=page)
    failures = {f"model {name}": why for name, why in failed.items()}
    failures |= {f"{one} of {row['model']}": why for row in rows for one, why in row["failed"].items()}
    if failures:
        raise EvaluationFailed(failures, result)
    return result


def _planned(options: Mapping[str, Any], *, strict: bool) -> suite.Suite:
    """The sets that can be scored; raises `InputError` if there are none, or if `strict` is set and one is absent."""
    tasks = options["tasks"] or [task for option, task in TASK_OF.items() if options[option]] or ["sts"]
    sources = Sources(
        data=options["data"],
        pairs=str(file_of("pairs", options["pairs"])) if options["pairs"] else "",
        entities=tuple(map(str, files_of("entities", options["entities"]))),
        bitext=tuple(options["bitext"]),
        retrieval=tuple(options["retrieval"]),
        split=options["split"],
        text=tuple(files_of("text", options["text"])) if options["teacher"] else (),
        asymmetric=bool(options["index_model"]),
    )
    with processes.agreed() as facts:
        plan = suite.planned(tasks, sources)
        if processes.count() > 1:
            facts |= {one.name: one.digest()[:12] for _, one in plan.sets} | {"absent": plan.absent}
    if plan.absent and (strict or not plan.sets):
        also = f" ({len(plan.absent)} sets are absent, and strict refuses that.)" if strict else ""
        raise InputError(f"{plan.absent[0]}{also}")
    for missing in plan.absent:
        _complain(f"skipped: {missing}")
    return plan


def _refuse_other_results(file: Path, page: Path | None, inputs: Mapping[str, object]) -> None:
    """Raises `InputError` for a file that is not of this program, or has results of other inputs."""
    if file.exists() or (page and page.exists()):
        try:
            earlier = json.loads(file.read_bytes())["inputs"]
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(
                f"{file if file.exists() else page} is not of evaluate; move it, or give another out."
            ) from None
        refuse_changes(file, earlier, inputs)


def _evaluated(
    options: Mapping[str, Any], plan: suite.Suite, loaded: Mapping[str, Embedder], *, batch_size: int
) -> tuple[list[dict[str, Any]], dict[str, ScoredPairs | None], dict[str, str], dict[str, Any]]:
    """The models' rows of the results file, their graded pairs to plot, errors of models, and how the index model reads."""
    read_as = {name: options[name] for name in ("pooling", "max_length", "prompt")}
    precision, prompts = dtype_of(options["precision"]).name, {role: options[f"{role}_prompt"] for role in ROLES}

    def candidate(spec: str) -> Candidate:
        """A model, or an ensemble if the spec is `A+B` (a folder's name may contain +)."""
        names = [spec] if Path(spec).exists() else spec.split("+")
        if not all(names):
            raise InputError(f"{spec!r} has an empty name next to a +; write an ensemble as A+B.")
        models = [loaded[spec].model] if spec in loaded else [load_model(name, **read_as) for name in names]
        in_roles = {role: prompt for role in ROLES if (prompt := prompts[role] or options["prompt"])}
        members = tuple(model.with_role_prompts(in_roles) for model in models)
        whitened_on = tuple(options["postprocess_text"])
        return Candidate(spec=spec, members=members, precision=precision, whitened_on=whitened_on)

    needed = {name for _, one in plan.sets for name in one.uses}
    others: dict[str, Candidate] = {}
    fields: dict[str, Any] = {}  # the same for all scored models: each encodes a text once for all of them
    if "index_model" in needed:
        spec = options["index_model"]
        with errors_of(f"index_model={spec}"):
            index = load_model(spec, max_length=options["max_length"])
            if index.definition.reads_pairs:
                raise InputError("it is a cross-encoder; an index needs a sentence encoder.")
        index = index.with_role_prompts({"document": prompts["document"]} if prompts["document"] else {})
        others["index_model"] = Candidate(spec=spec, members=(index,), precision=precision)
        model = others["index_model"].model(BATCH_SIZE, {})
        fields |= {"index": model.document, "index_similarity": model.similarity}
    teacher = options["teacher"]
    if "teacher" in needed:
        others["teacher"] = candidate(teacher)
        fields["teacher"] = others["teacher"].model(BATCH_SIZE, {}).embed
    rows, scored_pairs, failed = [], {}, {}
    specs = list(dict.fromkeys([*filter(None, [teacher]), *options["model"]]))
    for spec in specs:
        try:
            with processes.agreed() as facts:
                one = others["teacher"] if spec == teacher and "teacher" in others else candidate(spec)
                facts[spec] = one.digest() if processes.count() > 1 else ""
            widths = list(dict.fromkeys(options["dims"])) if spec in options["model"] else []
            if wrong := [width for width in widths if not width.isdecimal() or not 0 < int(width) <= one.width]:
                raise InputError(
                    f"dims={wrong[0]}: the vectors of {spec} have {one.width} numbers; give widths up to that."
                )
            model = one.model(batch_size, fields)
            model = replace(model, embed=fields["teacher"]) if one is others.get("teacher") else model
            for dims in map(int, widths or [0]):
                cut = replace(one, dims=dims)
                row, scored_pairs[cut.label] = _scored(cut, truncated(model, dims) if dims else model, plan, others)
                rows.append(row)
        except InputError as error:
            if len(specs) == 1:
                raise
            failed[spec] = str(error)
            _complain(f"failed: model {spec}: {error}")
    index_reading = others["index_model"].reading()[0] if "index_model" in others else {}
    return rows, scored_pairs, failed, index_reading


def _scored(
    candidate: Candidate, model: Model, plan: suite.Suite, others: Mapping[str, Candidate]
) -> tuple[dict[str, Any], ScoredPairs | None]:
    """A model's row of the results file, and graded pairs to plot."""
    start, digest = time.perf_counter(), candidate.digest()
    results, failed, seconds = {}, {}, {}
    for evaluation, one in plan.sets:
        begun = time.perf_counter()
        try:
            digests = [digest, *(others[name].digest() for name in one.uses)]
            results[one.name] = suite.measured(evaluation, one, model, digests, cache_folder())
            seconds[one.name] = round(time.perf_counter() - begun, 1)
        except InputError as error:
            failed[one.name] = str(error)
            _complain(f"failed: {one.name} of {candidate.label}: {error}")
    scores = {name: score for result in results.values() for name, score in result.scores.items()}
    apart = {
        name for _, one in plan.sets if not one.is_averaged and one.name in results for name in results[one.name].scores
    }
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
        "details": {name: values for result in results.values() for name, values in result.details.items()},
    }
    drawn = [results[name].scored_pairs for name in suite.DRAWN if name in results]
    return row, ScoredPairs(**drawn[0]) if drawn and drawn[0] else None


def _complain(line: str) -> None:
    if processes.is_first():
        print(line, file=sys.stderr)


def main(arguments: Sequence[str]) -> None:
    """`python -m jaxdistill.evaluate`."""
    options = parse(evaluate, arguments, out=RESULTS)
    with processes.connected(lambda: {"jaxdistill": source_digest()[:12], **options}):
        out, failed = options["out"], 0
        with delivered(out, upload=processes.is_first()) as path:
            try:
                options["out"] = path
                result = evaluate(**options)
            except EvaluationFailed as error:
                result, failed = error.result, error.count
            if processes.is_first():
                print(as_text(score_table(report.entries_of(result.results)), width=200))
                if result.results_file and not is_remote(out):
                    print(f"written to {result.results_file}" + f"\nreport: {result.report}" * bool(result.report))
        if is_remote(out) and processes.is_first():
            print(f"uploaded to {out}")
        processes.wait("reported")
        if failed:
            raise InputError(f"{failed} of the evaluations or models failed; the lines above say why.")


make_callable(__name__, evaluate)

if __name__ == "__main__":
    run(main)
