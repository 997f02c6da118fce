"""Shows scores in tables that programs print, and in reports of trainings and evaluations, each one HTML page without scripts."""

import base64
import io
import itertools
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxdistill.core.files import write_atomic, writing
from jaxdistill.evals import geometry, suite
from jaxdistill.evals.model_card import filled

PAGE = "index.html"
LOSS_COLOR, METRIC_COLORS = "#3b6ea5", ("#c2573a", "#4f8a4c", "#7b5aa6", "#8a6d3b")
DEV_SCORE_ENDS = ("/spearman", "/auc", "/ndcg@10", "/recall@1", "/recall@10")
COSTS = {
    "parameters": ("parameters", "{:,}".format),
    "size_bytes": ("weights file (MB)", lambda size: f"{size / 1e6:.1f}"),
    "vector_bytes": ("bytes per vector", "{:,}".format),
    "sentences_per_s": ("encoding (sentences/s)", "{:,.0f}".format),
}
"""Maps costs of a model to their labels and formatters."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model, or a row of a paper, in a table or report."""

    name: str
    scores: Mapping[str, float]
    """Maps names of scores to values, in [-1, 1] or in their own units."""
    costs: Mapping[str, float | None] = field(default_factory=dict)
    """Values of `COSTS`; missing or None: not measured."""
    scored_pairs: Mapping[str, Any] | None = None
    """Graded pairs with the model's similarities, to plot, as `pairs.scored_pairs` returns them."""
    is_cited: bool = False
    """Whether the scores are quoted from a paper, not measured."""


class ScoreRow(NamedTuple):
    """One score or cost of all models, as a row of a table."""

    label: str
    cells: list[str]
    shares: Sequence[str] = ()
    """For each cell, the score as a percentage of the teacher's, or an empty text; no elements in a row that is not compared."""


def score_rows(entries: Sequence[Entry], teacher: str = "") -> tuple[list[ScoreRow], list[ScoreRow], list[ScoreRow]]:
    """Returns three lists of rows: main scores, with their shares of the scores of the entry `teacher`; costs; and all other scores."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.scores))
    headings = _main_headings(names)

    def score_cells(name: str) -> list[str]:
        has_unit = any(evaluation.has_units and evaluation.owns(name) for evaluation in suite.evaluations())
        return _cells([entry.scores.get(name) for entry in entries], plain_number if has_unit else hundredfold)

    main = [ScoreRow(headings[name], score_cells(name), _shares(name, entries, teacher)) for name in headings]
    others = [ScoreRow(name, score_cells(name)) for name in names if name not in headings]
    costs = []
    for name, (label, formatter) in COSTS.items():
        values = [entry.costs.get(name) for entry in entries]
        if any(values):
            costs.append(ScoreRow(label, _cells(values, formatter)))
    return main, costs, others


def _main_headings(names: Sequence[str]) -> dict[str, str]:
    """Maps main scores to headings: of each evaluation, those of `names` that have a heading; if none has, all without units, by name."""
    headings: dict[str, str] = {}
    for evaluation in suite.evaluations():
        measured = {name: heading for name, heading in evaluation.headings.items() if name in names}
        if not measured and not evaluation.has_units:
            measured = {name: name for name in names if evaluation.owns(name)}
        headings |= measured
    return headings


def _cells(values: Sequence[float | None], formatter: Callable[[float], str]) -> list[str]:
    """The formatted values; a dash for a missing one."""
    return ["–" if value is None else formatter(value) for value in values]


def _shares(name: str, entries: Sequence[Entry], teacher: str) -> list[str]:
    """Each entry's score `name` as a percentage of the teacher's; an empty text for the teacher itself, for papers, and for entries
    without this score. No texts at all if the teacher has no positive score."""
    teacher_score = next((entry.scores.get(name, 0.0) for entry in entries if entry.name == teacher), 0.0)
    if teacher_score <= 0.0:
        return []
    shares = []
    for entry in entries:
        is_compared = name in entry.scores and entry.name != teacher and not entry.is_cited
        shares.append(f"{entry.scores[name] / teacher_score:.1%}" if is_compared else "")
    return shares


def score_table(entries: Sequence[Entry]) -> Table:
    """The table that trainings and evaluations print: main scores first, then costs, then all other scores."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("scores × 100", no_wrap=True)
    for entry in entries:
        table.add_column(entry.name, justify="right", max_width=12, overflow="fold")
    for section in score_rows(entries):
        table.add_section()
        for row in section:
            table.add_row(row.label, *row.cells)
    return table


def as_text(table: Table, *, width: int = 100) -> str:
    """The table as plain text, the same on a terminal, in a file and in a log. Cells are not parsed as markup."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, markup=False, emoji=False).print(table)
    return text.getvalue().rstrip("\n")


def hundredfold(score: float) -> str:
    """A score in [-1, 1], times 100, as papers print it."""
    return f"{100 * score:.2f}"


def plain_number(value: float) -> str:
    """A value that has its own unit: four decimals below 10, one below 100, none above."""
    if abs(value) < 10:
        return f"{value:,.4f}"
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def stage_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per stage, with a column for the paper's STS if any stage repeats a paper. Each of `rows` has the stage's `number`,
    `form`, `student` and dev `metric`; the scores `before` and `after` training by this metric, `sts`, and `paper`, in [-1, 1] or None;
    and `no_gain`, a warning, which is empty if the training improved the student."""
    repeats_paper = any(row["paper"] is not None for row in rows)
    table = Table(box=SIMPLE_HEAD)
    for name in ("stage", "form", "student", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("before", "after", "gain", "STS", *(["paper's STS"] if repeats_paper else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        gain = "-"
        if row["no_gain"]:
            gain = "NO GAIN"
        elif row["before"] is not None and row["after"] is not None:
            gain = f"{100 * (row['after'] - row['before']):+.2f}"
        scores = (row[name] for name in ("before", "after", "sts", "paper"))
        before, after, sts, paper = ("-" if score is None else hundredfold(score) for score in scores)
        shown = [str(row["number"]), row["form"] or "-", row["student"], row["metric"], before, after, gain, sts]
        table.add_row(*shown, *([paper] if repeats_paper else []))
    return table


def write_page(
    path: Path,
    entries: Sequence[Entry],
    *,
    title: str,
    sections: Mapping[str, Mapping[str, Any]],
    teacher: str = "",
    plot: Path | None = None,
    warning: str = "",
) -> None:
    """Writes the page of a report: the `title`, a `warning` in red, the scores, with shares of the scores of the entry called
    `teacher`, the `plot` of a training, and `sections`, which map headings to lines, each a term and its text."""
    main, costs, others = score_rows(entries, teacher)
    page = filled(
        "report.html", title=title, warning=warning, teacher=teacher, models=[entry.name for entry in entries],
        main=main + costs, others=others, images=images(entries, plot), sections=sections,
    )  # fmt: skip
    with writing(path):
        write_atomic(path, page)


def entries_of(content: Mapping[str, Any]) -> list[Entry]:
    """The models of an evaluation, then the rows of papers beside them, from the content of its results file."""
    names = short_names([row["model"] for row in content["models"]])
    entries = []
    for row in content["models"]:
        # 0 stands for not applicable, such as the bytes of an ensemble's vectors.
        costs = {name: row[name] or None for name in ("parameters", "size_bytes", "vector_bytes")}
        costs["sentences_per_s"] = row["scores"].get(geometry.RATE)
        name = names[row["model"]]
        entries.append(Entry(name=name, scores=row["scores"], costs=costs, scored_pairs=row["scored_pairs"]))
    return entries + [Entry(name=row["label"], scores=row["scores"], is_cited=True) for row in content["papers"]]


def failures(content: Mapping[str, Any]) -> dict[str, str]:
    """Maps the models and evaluations that failed to the reasons, from the content of an evaluation's results file."""
    failed = {f"model {name}": reason for name, reason in content["failed"].items()}
    for row in content["models"]:
        failed |= {f"{name} of {row['model']}": reason for name, reason in row["failed"].items()}
    return failed


def write_evaluation(content: Mapping[str, Any], path: Path) -> None:
    """Writes the report of an evaluation, from the content of its results file."""
    inputs = {name: value for name, value in content["inputs"].items() if value}
    settings = {name: ", ".join(value) if isinstance(value, list) else str(value) for name, value in inputs.items()}
    settings["Missing sets"] = " ".join(content["absent"])
    settings |= {row["label"]: row["tables"] for row in content["papers"]}
    settings["Versions"] = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    teacher = short_names([row["model"] for row in content["models"]]).get(content["inputs"]["teacher"], "")
    sections = {"Failed": failures(content), "What was evaluated": settings, "How it was measured": content["protocol"]}
    write_page(path, entries_of(content), title="Evaluation of sentence encoders", teacher=teacher, sections=sections)


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Maps models (paths, or `A+B` for an ensemble) to their names in tables. A name is the last part of the path, such as `minilm`; the
    last two if it ends in `export` or `model`, such as `run/export`; the whole path if another model would have the same name."""
    ends = {}
    for member in "+".join(specs).split("+"):  # the models of all ensembles
        parts = member.removeprefix("package:").rstrip("/").split("/")
        ends[member] = "/".join(parts[-2:] if parts[-1] in ("export", "model") else parts[-1:])
    counts = Counter(ends.values())
    names = {member: end if counts[end] == 1 else member for member, end in ends.items()}
    return {spec: "+".join(names[member] for member in spec.split("+")) for spec in specs}


def read_curves(metrics_path: Path) -> dict[str, list[tuple[int, float]]]:
    """Maps `loss` and the dev scores of a run to lists of `(step, value)`; of a step that a resumed run repeated, the last value."""
    values: dict[str, dict[int, float]] = {"loss": {}}
    for row in map(json.loads, metrics_path.read_text(encoding="utf-8").splitlines()):
        for name, value in row.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and "step" in row and (name == "loss" or name.endswith(DEV_SCORE_ENDS)):
                values.setdefault(name, {})[row["step"]] = value
    return {name: sorted(by_step.items()) for name, by_step in values.items()}


def training_plot(metrics_path: Path, out_png: Path, *, title: str = "Training") -> Path:
    """Draws loss above and dev scores below against step; returns the path of the PNG."""
    curves = read_curves(metrics_path)
    figure, (top, bottom) = _canvas(height=6.4, width=8.0, panels=2)
    steps, losses = np.reshape(curves.pop("loss"), (-1, 2)).T  # from [n, 2], or from an empty list
    top.plot(steps, losses, color=LOSS_COLOR, marker="o", markersize=2, linewidth=1.0)
    lines = []
    for color, (name, series) in zip(itertools.cycle(METRIC_COLORS), curves.items(), strict=False):
        steps, values = np.transpose(series)
        best = np.argmax(values)
        label = f"{name}, best {100 * values[best]:.2f} at step {steps[best]:,.0f}"
        lines += bottom.plot(steps, 100 * values, color=color, marker="o", markersize=4, label=label)
        bottom.plot(steps[best], 100 * values[best], color=color, marker="*", markersize=14)
    if lines:
        figure.legend(handles=lines, frameon=False, loc="outside lower left")
    top.set_title("Training loss (lower is better)", loc="left", fontsize=11)
    bottom.set_title("Dev evaluation (higher is better)", loc="left", fontsize=11)
    top.set(ylabel="mean over sentences")
    bottom.set(xlabel="step (updates of the student)", ylabel="dev score × 100")
    # Matplotlib finds mathematics between dollars.
    figure.suptitle(title.replace("$", r"\$"), fontweight="bold", fontsize=11, wrap=True)
    out_png.parent.mkdir(parents=True, exist_ok=True)
    out_png.write_bytes(_png(figure))
    return out_png


def images(entries: Sequence[Entry], plot: Path | None = None) -> list[dict[str, str]]:
    """The figures of a report, each as `title`, `note` (how to read it) and `address` (the PNG as a `data:` URL)."""
    figures: list[dict[str, str]] = []

    def add(title: str, note: str, png: bytes) -> None:
        address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        figures.append({"title": title, "note": note, "address": address})

    if plot:
        note = "The star is the best dev score. Losses of different objectives are not comparable."
        add("Learning curves", note, plot.read_bytes())
    scored = [(entry.name, entry.scored_pairs) for entry in entries if entry.scored_pairs]
    similarities = [similarity for _, pairs in scored for similarity in pairs["similarities"]]
    limits = (min(similarities, default=0.0) - 0.05, max(similarities, default=0.0) + 0.05)  # the same for all models
    for name, pairs in scored:
        figure, (panel,) = _canvas(height=3.4, width=4.6)
        panel.scatter(pairs["gold"], pairs["similarities"], s=9, alpha=0.5, linewidths=0, color=LOSS_COLOR)
        panel.set(xlabel="gold score", ylabel="cosine similarity", ylim=limits)
        note = f"{len(pairs['gold']):,} pairs of {pairs['name']}. A good model's points rise from left to right in a narrow band."
        add(f"Gold score and similarity: {name}", note, _png(figure))
    return figures


def _canvas(*, height: float, width: float, panels: int = 1) -> tuple[Any, Sequence[Any]]:
    """A figure with its panels one below the other on a shared x axis; sizes in inches."""
    # Imported here: matplotlib is slow to import. A Figure without pyplot needs no display and leaves no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(panels, sharex=True, squeeze=False)[:, 0])
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _png(figure: Any) -> bytes:
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a name in another script
        figure.savefig(png, dpi=130)
    return png.getvalue()
