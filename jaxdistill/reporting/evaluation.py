"""Builds the report of an evaluation from its results file and the learning curves of the models' runs."""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jaxdistill.core import InputError
from jaxdistill.evals import speed
from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.files import try_writing
from jaxdistill.paths import public_name
from jaxdistill.reporting import page as report
from jaxdistill.reporting.figures import Entry, Examples
from jaxdistill.reporting.model_card import FACTS_FILE, read_facts
from jaxdistill.reporting.plots import read_curves
from jaxdistill.reporting.tables import Costs
from jaxdistill.workdir.folder import METRICS, RESULTS

Value = TypeVar("Value")


def write_evaluation(
    content: Mapping[str, Any], scored_pairs: Mapping[str, ScoredPairs | None], path: Path, *, teacher: str
) -> Path:
    """Writes the page; returns its path.

    Args:
      content: content of the results file.
      scored_pairs: maps models to graded pairs with their similarities.
      teacher: the model with which others are compared. Empty: the teacher of the exports' runs, if they share one; if it is
        not among the models, its scores come from its student's run.
    """
    rows = {row["model"]: row for row in content["models"]}
    names = report.short_names([*rows, *content["failed"]])
    runs = {spec: run for spec in rows if (run := _run_of(spec)) is not None}
    entries = [_entry(names[spec], row, scored_pairs[spec], runs.get(spec)) for spec, row in rows.items()]
    entries += [Entry(name=names[spec], scores={}, failed={"model": why}) for spec, why in content["failed"].items()]
    if not teacher:
        known = [_readable(partial(read_facts, run)) for run in runs.values()]
        taught = {facts.origin.teacher: facts.checkpoint for facts in known if facts and facts.origin.teacher}
        named = next(iter(taught)) if len(taught) == 1 else ""
        scored = [spec for spec in rows if public_name(spec) == named]  # facts have no folders
        teacher = scored[0] if len(scored) == 1 else named
        if teacher and teacher not in names:
            names[teacher] = f"{teacher} (by its student's run)"
            entries.insert(0, Entry(name=names[teacher], scores=taught[teacher].teacher_scores))
    entries += [Entry(name=row["label"], scores=row["scores"], is_cited=True) for row in content["papers"]]
    said = {
        "Data": ", ".join(filter(None, [content["data"], *content["sets"].values()])),
        "Models": ", ".join(rows),
        **_readings(content, names),
        "Transform of vectors": content["postprocess"],
        **{row["label"]: row["tables"] for row in content["papers"]},
        "Seed of the probes": str(content["seed"]),
        "Versions": ", ".join(f"{name} {version}" for name, version in content["versions"].items()),
    }
    page = report.Report(
        title="Evaluation of sentence encoders",
        entries=entries,
        teacher=names.get(teacher, ""),
        facts=said,
        protocols=content["protocol"],
        absent=content["absent"],
    )
    return report.write_page(page, path)


def _entry(name: str, row: Mapping[str, Any], scored_pairs: ScoredPairs | None, run_folder: Path | None) -> Entry:
    metrics = run_folder / METRICS if run_folder else None
    return Entry(
        name=name,
        scores=row["scores"],
        costs=Costs(
            parameters=row["parameters"],
            size_bytes=row["size_bytes"],
            sentences_per_s=row["scores"].get(speed.RATE),
        ),
        vector_bytes=row["vector_bytes"] or None,
        examples=Examples(
            scored_pairs=scored_pairs,
            curves=_readable(partial(read_curves, metrics)) if metrics and metrics.is_file() else None,
        ),
        failed=row["failed"],
    )


def _readable(read: Callable[[], Value]) -> Value | None:
    """The result of `read`; None, with a line on standard error, if a run's file cannot be read, because scores need no run."""
    try:
        return read()
    except InputError as error:
        print(f"the report goes without a file of a run: {error}", file=sys.stderr)
        return None


def _readings(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    """A line for each model on how it reads texts; for the index model and the reranker, just their names."""
    read = {names[row["model"]]: row.get("members", [row]) for row in content["models"]}
    for kind, option in (("index model", "index_model"), ("reranker", "reranker")):
        if content[option]:
            read[f"the {kind} {content[option]}"] = [content[f"{option}_reading"]]
    return {f"Texts as {name} reads them": "; ".join(map(_reading, by)) for name, by in read.items() if by}


def _reading(of: Mapping[str, Any]) -> str:
    prompts = {
        "texts": of["prompt"],
        "queries": of["role_prompts"].get("query"),
        "documents": of["role_prompts"].get("document"),
    }
    before = [f"{prompt!r} before {what}" for what, prompt in prompts.items() if prompt]
    return ", ".join([f"at most {of['max_length']:,} tokens", *before])


def _run_of(spec: str) -> Path | None:
    """The workdir of the run that an export belongs to; None for other models."""
    folder = Path(spec).resolve().parent
    return folder if Path(spec).is_dir() and (folder / FACTS_FILE).is_file() else None


def results_path(out: str) -> Path | None:
    """The results file, checked before the evaluation, which takes minutes; None if `--out` is empty."""
    if not out:
        return None
    path = Path(out) / RESULTS if is_folder(out) else Path(out)
    if path.name == RESULTS and (path.parent / METRICS).is_file():  # a training has metrics beside its results
        raise InputError(f"--out={out}: {path} holds the results of a training; name another file or folder.")
    try:
        try_writing(path)
    except OSError as error:
        raise InputError(f"--out={out} cannot be written: {error.strerror}.") from error
    return path


def is_folder(out: str) -> bool:
    return out.endswith("/") or os.path.isdir(out)
