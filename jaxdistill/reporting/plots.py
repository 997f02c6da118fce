"""Draws the plot of a training and the figures of reports, with matplotlib.

`metrics.jsonl` has a JSON object in each line, with `step` and named numbers: `loss` at log steps, dev scores such as
`agreement/spearman`, `pairs/auc` or `retrieval-dev/ndcg@10` at evaluation steps.
"""

import base64
import io
import itertools
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jaxdistill.core import InputError
from jaxdistill.reporting.tables import Entry

LOSS_COLOR, METRIC_COLORS = "#3b6ea5", ("#c2573a", "#4f8a4c", "#7b5aa6", "#8a6d3b")
COLORS, TEACHER_COLOR = (*METRIC_COLORS, LOSS_COLOR, "#3f9aa0", "#b5507f", "#b8862d"), "#4a4a4a"
DEV_SCORES = ("/spearman", "/auc", "/ndcg@10", "/recall@1", "/recall@10")
"""Suffixes of the names of dev scores."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Learning curves of a run, as `(step, value)` in order of step."""

    loss: Sequence[tuple[int, float]]
    metrics: Mapping[str, Sequence[tuple[int, float]]]
    """Maps dev scores (a Spearman correlation, an AUC, an nDCG or a recall) to their values."""


class Image(NamedTuple):
    """A figure of a report."""

    title: str
    note: str
    """How to read it."""
    address: str
    """The figure itself, as a `data:` address of an SVG."""


def read_curves(metrics_jsonl_path: str | Path) -> Curves:
    """The curves of a run; raises `InputError` if the file does not exist or a line is not JSON."""
    path = Path(metrics_jsonl_path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; a run writes metrics.jsonl into its workdir.")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [json.loads(line) for line in lines]
    names = dict.fromkeys(name for row in rows for name in row if name.endswith(DEV_SCORES))
    metrics = {name: points for name in names if (points := _series(rows, name))}
    return Curves(loss=_series(rows, "loss"), metrics=metrics)


def training_plot(metrics_jsonl_path: str | Path, out_png: str | Path, *, title: str = "Training") -> Path:
    """Draws loss above and dev scores below against step; returns the path of the PNG.

    Raises:
      InputError: the file does not exist, or a line is not JSON.
    """
    figure = _learning_curves(read_curves(metrics_jsonl_path), width=8.0)
    figure.suptitle(_plain(title), fontweight="bold", fontsize=11, wrap=True)
    Path(out_png).parent.mkdir(parents=True, exist_ok=True)
    _save(figure, out_png, dpi=130)
    return Path(out_png)


def images(entries: Sequence[Entry], *, teacher: str = "", curves: Curves | None = None) -> list[Image]:
    """The figures of a report that have data.

    Args:
      teacher: name of the entry to draw in grey.
      curves: of the training that the report is about.
    """
    others = [entry.name for entry in entries if entry.name != teacher]
    colors = dict(zip(others, itertools.cycle(COLORS), strict=False)) | {teacher: TEACHER_COLOR}
    drawn = []
    if curves:
        note = "The star is the best dev score. Losses of different objectives are not comparable."
        drawn.append(_image("Learning curves", note, _learning_curves(curves, width=5.5)))
    scored = [(entry.name, entry.scored_pairs) for entry in entries if entry.scored_pairs]
    every = [similarity for _, pairs in scored for similarity in pairs.similarities]
    for name, pairs in scored:
        figure, (panel,) = canvas(height=3.4, width=4.6)
        # As pixels: a set may have thousands of pairs.
        panel.scatter(pairs.gold, pairs.similarities, s=9, alpha=0.5, linewidths=0, color=colors[name], rasterized=True)
        panel.set(xlabel="gold score", ylabel="cosine similarity", ylim=(min(every) - 0.05, max(every) + 0.05))
        note = f"{len(pairs.gold):,} pairs of {pairs.name}. A good model's points rise from left to right in a narrow band."
        drawn.append(_image(f"Gold score and similarity: {name}", note, figure))
    return drawn


def canvas(*, height: float, panels: int = 1, width: float = 8.0) -> tuple[Any, Sequence[Any]]:
    """A figure with its panels one below the other on a shared x axis; sizes in inches."""
    # Imported here: matplotlib is slow to import. A Figure without pyplot needs no display and leaves no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = list(figure.subplots(panels, sharex=True, squeeze=False)[:, 0])
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _image(title: str, note: str, figure: Any) -> Image:
    svg = io.BytesIO()
    _save(figure, svg, format="svg", dpi=150, metadata={"Date": None})
    encoded = base64.b64encode(svg.getvalue()).decode("ascii")
    return Image(title, note, f"data:image/svg+xml;base64,{encoded}")


def _save(figure: Any, target: str | Path | io.BytesIO, **options: Any) -> None:
    from matplotlib import rc_context

    # Text stays text, for which a browser finds the glyphs that matplotlib's font lacks.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "jaxdistill"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, **options)


def _learning_curves(curves: Curves, *, width: float) -> Any:
    figure, (top, bottom) = canvas(height=6.4, panels=2, width=width)
    steps, losses = [step for step, _ in curves.loss], [loss for _, loss in curves.loss]
    window = max(1, len(losses) // 25)
    raw = {"alpha": 0.35, "linewidth": 1.0} if window > 1 else {"marker": "o", "markersize": 3}
    top.plot(steps, losses, color=LOSS_COLOR, label="as logged", **raw)
    if window > 1:
        top.plot(steps, _smooth(losses, window), color=LOSS_COLOR, linewidth=2, label=f"mean of {window} log steps")
        top.legend(frameon=False)
    lines = []
    for color, (name, series) in zip(itertools.cycle(METRIC_COLORS), curves.metrics.items(), strict=False):
        steps, scores = zip(*((step, 100 * value) for step, value in series), strict=True)
        best = max(range(len(scores)), key=scores.__getitem__)
        label = f"{_plain(name)}, best {scores[best]:.2f} at step {steps[best]:,}"
        lines += bottom.plot(steps, scores, color=color, marker="o", markersize=4, label=label)
        bottom.plot(steps[best], scores[best], color=color, marker="*", markersize=14)
    if lines:
        figure.legend(handles=lines, frameon=False, loc="outside lower left")
    top.set_title("Training loss (lower is better)", loc="left", fontsize=11)
    bottom.set_title("Dev evaluation (higher is better)", loc="left", fontsize=11)
    top.set(ylabel="mean over sentences")
    bottom.set(xlabel="step (updates of the student)", ylabel="dev score × 100")
    return figure


def _plain(text: str) -> str:
    """The text without mathematics, which matplotlib finds between dollars."""
    return text.replace("$", r"\$")


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """Moving average over the last `window` values, or over all so far at the start."""
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in windows]


def _series(rows: Sequence[dict], name: str) -> list[tuple[int, float]]:
    """(step, value) pairs in order of step; if a resumed run wrote a step again, the last value counts."""
    values = {row["step"]: row[name] for row in rows if "step" in row and _is_number(row.get(name))}
    return sorted(values.items())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
