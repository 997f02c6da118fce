"""Scores models by the units of an evaluation, and writes the results file and the report."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.candidates import (
    Candidate,
    Others,
    candidate_of,
    model_of,
    others_of,
    postprocessing_of,
)
from jaxdistill.cluster import processes
from jaxdistill.core import InputError
from jaxdistill.data.tables import refuse_changes
from jaxdistill.evals import options, probe, suite
from jaxdistill.evals.evaluation import Model, Unit
from jaxdistill.evals.in_memory import InMemory
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.evals.small_forms import SmallForm, small_forms
from jaxdistill.files import is_special, refuse_overwriting, write_atomic
from jaxdistill.inference import Embedder
from jaxdistill.ops.dense import dtype_of
from jaxdistill.paths import cache_folder
from jaxdistill.reporting import evaluation as evaluation_report
from jaxdistill.reporting import papers
from jaxdistill.reporting.page import PAGE
from jaxdistill.versions import versions

ASIDE = ("out", "strict", "batch_size")
"""Options that change no result."""


class OtherResults(InputError):
    """The results file has results of another state of a model."""


class Scored(NamedTuple):
    """Results of an evaluation."""

    content: dict[str, Any]
    """The content of the results file."""
    scored_pairs: dict[str, ScoredPairs | None]
    """Maps models to graded pairs to plot."""
    file: Path | None
    """The results file, if one was written."""

    def failed(self) -> dict[str, str]:
        """Maps failures, `model NAME` or `UNIT of NAME`, to the reasons."""
        units = {
            f"{unit} of {row['model']}": why for row in self.content["models"] for unit, why in row["failed"].items()
        }
        return {f"model {model}": why for model, why in self.content["failed"].items()} | units

    def page(self, given: argparse.Namespace) -> Path | None:
        """Writes the report beside the results if `--out` is a folder."""
        if self.file is None or not evaluation_report.is_folder(given.out):
            return None
        path = self.file.with_name(PAGE)
        return evaluation_report.write_evaluation(self.content, self.scored_pairs, path, teacher=given.teacher)


def _replaced_digests(out: Path, option: str, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Digests of the models in the results file that will be replaced; raises `InputError` unless it has the same inputs.

    Args:
      option: `--out`, which may be a folder that also holds the report.
      inputs: of `_inputs_of`.
    """
    page = out.with_name(PAGE) if evaluation_report.is_folder(option) else None
    if is_special(out) or not (out.exists() or (page and page.exists())):
        return {}
    try:
        earlier = json.loads(out.read_bytes())
        made_from, digests = dict(earlier["inputs"]), {of["model"]: of["digest"] for of in earlier["models"]}
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{out if out.exists() else page} is not of evaluate; move it, or give another --out."
        ) from None
    refuse_changes(out, made_from, inputs)
    return digests


def score(
    candidate: Candidate, known: Model, units: Sequence[Unit], others: Others
) -> tuple[dict[str, Any], ScoredPairs | None]:
    """A model's row of the results file (description, scores, failed units and seconds), and graded pairs to plot.

    Args:
      known: the candidate as the `Model` of units.
    """
    start, digest, spec = time.perf_counter(), candidate.digest(), candidate.label
    of_units, failed, seconds = {}, {}, {}
    for unit in units:
        begun = time.perf_counter()
        try:
            of_units[unit.name] = suite.unit_values(unit, known, [digest, *others.digests(unit)], cache_folder())
            seconds[unit.name] = round(time.perf_counter() - begun, 1)
        except InputError as error:
            failed[unit.name] = str(error)
            _complain(f"failed: {unit.name} of {spec}: {error}")
    scores = {name: float(score) for values in of_units.values() for name, score in values["scores"].items()}
    # `failed` holds names of units, and `scores` names of scores. Averages leave out both of a unit that is not averaged.
    single = [unit.name for unit in units if not unit.is_averaged]
    apart = {*single, *(name for unit in single for name in of_units.get(unit, {"scores": ()})["scores"])}
    described = candidate.reading()
    row = {
        "model": spec,
        "digest": digest,
        "parameters": known.parameters,
        "size_bytes": known.size_bytes,
        "vector_bytes": candidate.vector_bytes,
        **(described[0] if len(described) == 1 else {"members": described}),
        "seconds": round(time.perf_counter() - start, 1),
        "seconds_of_task": seconds,
        "scores": suite.with_averages(scores, failed, apart),
        "failed": failed,
        "notes": [values["note"] for values in of_units.values() if "note" in values],
        "neighbours": {name: values["neighbours"] for name, values in of_units.items() if "neighbours" in values},
    }
    drawn = [ScoredPairs(**of_units[name]["scored_pairs"]) for name in suite.drawn_units() if name in of_units]
    return row, drawn[0] if drawn else None


def scored(given: argparse.Namespace, own: InMemory, loaded: Mapping[str, Embedder]) -> Scored:
    """Evaluates, and writes the results file if `--out` names one.

    Args:
      own: sets in memory.
      loaded: models in memory, by their names in `--model`.
    """
    forms = small_forms(given.dims, given.dtypes)
    with processes.agreed() as facts:
        plan = options.planned(given, own)
        if processes.count() > 1:
            facts |= {unit.name: unit.digest()[:12] for unit in plan.units} | {
                "absent": [missing.reason for missing in plan.absent]
            }
    out = evaluation_report.results_path(given.out)
    if out:
        refuse_overwriting(out, [path for unit in plan.units for path in unit.files])
    postprocessing = postprocessing_of(given, plan.units)
    cited = [papers.cited(reference, "--paper") for reference in given.paper]
    precision = dtype_of(given.precision).name
    others = others_of(given, postprocessing, loaded, plan.units)
    files = {unit.name: unit.digest() for unit in plan.units}
    inputs = _inputs_of(given, files, others)
    earlier = _replaced_digests(out, given.out, inputs) if out else {}
    load = partial(candidate_of, given=given, postprocessing=postprocessing, loaded=loaded)
    evaluated, unloaded = _evaluated(given, load, forms, plan.units, others=others, earlier=earlier)
    measured = dict.fromkeys(name for row, _ in evaluated for name in row["scores"])
    content = {
        "protocol": {unit.name: unit.protocol for unit in plan.units},
        "files": files,
        "inputs": inputs,
        "seed": probe.SEED,
        "data": given.data or ("Hugging Face hub" if any(map(_is_of_hub, plan.units)) else ""),
        "sets": {option: spec for option in options.TASK_OF if (spec := getattr(given, option))} | own.described(),
        **{name: getattr(given, name) for name in ("index_model", "reranker", "teacher")},
        "index_model_reading": others.index.reading()[0] if others.index else {},
        "reranker_reading": others.reranker.reading()[0] if others.reranker else {},
        "precision": precision,
        "postprocess": str(postprocessing),
        "versions": versions(),
        "absent": [missing.reason for missing in plan.absent],
        "failed": unloaded,
        "models": [row for row, _ in evaluated],
        "papers": [
            {"label": row.label, "tables": row.tables, "scores": dict(row.scores)}
            for row in (paper.only(measured) for paper in cited)
        ],
    }
    if out:
        write_atomic(out, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return Scored(content, {row["model"]: pairs for row, pairs in evaluated}, out)


def _inputs_of(given: argparse.Namespace, files: Mapping[str, str], others: Others) -> dict[str, Any]:
    """Everything besides the scored models that determines the results: options, digests of sets, and of other models."""
    helpers = {
        "state of index_model": others.index,
        "state of reranker": others.reranker,
        "state of teacher": others.teacher,
    }
    chosen = {name: value for name, value in vars(given).items() if name not in ASIDE}
    return {**chosen, **files, **{name: model.digest() for name, model in helpers.items() if model}}


def _evaluated(
    given: argparse.Namespace,
    load: Callable[[str], Candidate],
    forms: Sequence[SmallForm | None],
    units: Sequence[Unit],
    *,
    others: Others,
    earlier: Mapping[str, str],
) -> tuple[list[tuple[dict[str, Any], ScoredPairs | None]], dict[str, str]]:
    """The results of `score` for all models, and the reasons of those that could not be loaded.

    Args:
      earlier: of `_replaced_digests`.

    Raises:
      InputError: the only model cannot be loaded, or the results file has results of another state of a model.
    """
    specs = list(dict.fromkeys([*filter(None, [given.teacher]), *given.model]))
    evaluated, unloaded = [], {}
    for spec in specs:
        try:
            with processes.agreed() as facts:
                teacher = others.teacher if spec == given.teacher else None
                candidate = teacher or load(spec)
                facts[spec] = candidate.digest() if processes.count() > 1 else ""
            asked = forms if spec in given.model else [None]
            for one in (candidate._replace(form=form) for form in asked):
                if one.label in earlier and one.digest() != earlier[one.label]:
                    raise OtherResults(
                        f"{given.out} has results of another state of {spec}; move it, or give another --out."
                    )
            evaluated += _scored_in(asked, candidate, units, others, batch_size=given.batch_size)
        except InputError as error:
            if len(specs) == 1 or isinstance(error, OtherResults):
                raise
            unloaded[spec] = str(error)
            _complain(f"failed: model {spec}: {error}")
    return evaluated, unloaded


def _scored_in(
    forms: Sequence[SmallForm | None],
    candidate: Candidate,
    units: Sequence[Unit],
    others: Others,
    *,
    batch_size: int,
) -> list[tuple[dict[str, Any], ScoredPairs | None]]:
    """The results of `score` for each form of a model's vectors, which are computed only once; raises `InputError` if it has
    none."""
    if not candidate.vector_bytes and any(forms):
        raise InputError(f"--dims and --dtypes: {candidate.spec} has no vectors to store; leave them out.")
    known = model_of(candidate, others, batch_size=batch_size)
    models = {form: form.of(known, candidate.width) if form else known for form in forms}
    return [score(candidate._replace(form=form), model, units, others) for form, model in models.items()]


def _is_of_hub(unit: Unit) -> bool:
    """Whether a unit downloads its sets when it runs: it has no local file, and its scores are not cached."""
    return not unit.files and not unit.is_repeatable


def _complain(line: str) -> None:
    if processes.is_first():
        print(line, file=sys.stderr)
