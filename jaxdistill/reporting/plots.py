"""Plots loss and dev scores of a training against step, as one PNG made from `metrics.jsonl`.

Every line of that file is a JSON object with `step` and named numbers: `loss` at log steps, dev scores such as
`agreement/spearman`, `pairs/auc` or `retrieval-dev/ndcg@10` at evaluation steps.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxdistill.core import InputError
from jaxdistill.files.reading import parsed_json
from jaxdistill.reporting.tables import StageRow

LOSS_COLOR, METRIC_COLORS = "#3b6ea5", ("#c2573a", "#4f8a4c", "#7b5aa6", "#8a6d3b")
DEV_SCORES = ("/spearman", "/auc", "/ndcg@10", "/recall@1", "/recall@10")
"""Suffixes of the names of dev scores."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Learning curves of a run, as `(step, value)` in order of step."""

    loss: Sequence[tuple[int, float]]
    metrics: Mapping[str, Sequence[tuple[int, float]]]
    """Maps dev scores (a Spearman correlation, an AUC, an nDCG or a recall) to their values."""


def read_curves(metrics_jsonl_path: str | Path) -> Curves:
    """The curves of a run; raises `InputError` if the file does not exist or a line is not JSON."""
    rows = _rows(Path(metrics_jsonl_path))
    return Curves(loss=_series(rows, "loss"), metrics={name: _series(rows, name) for name in _dev_metrics(rows)})


def training_plot(metrics_jsonl_path: str | Path, out_png: str | Path, *, title: str = "Training") -> Path:
    """Draws loss above and dev scores below against step; returns the path of the PNG.

    Raises:
      InputError: the file does not exist, or a line is not JSON.
    """
    curves = read_curves(metrics_jsonl_path)
    figure, (top, bottom) = canvas(height=6.4, panels=2)
    figure.suptitle(title, fontweight="bold", fontsize=11, wrap=True)
    _draw_loss(top, curves.loss)
    _draw_metrics(bottom, curves.metrics)
    bottom.set_xlabel("step (updates of the student)")
    Path(out_png).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png, dpi=130)
    return Path(out_png)


def stage_plot(rows: Sequence[StageRow], out_png: str | Path) -> Path:
    """Draws the dev scores before and after each stage, one line per form of encoder; returns the path of the PNG."""
    figure, (panel,) = canvas(height=4.2)
    for color, form in zip(METRIC_COLORS, dict.fromkeys(row.form for row in rows), strict=False):
        known = [row for row in rows if row.form == form]
        after = [(row.number, 100 * row.dev.after) for row in known if row.dev.after is not None]
        name = f"{form}-encoder" if form else "student"
        numbers, scores = zip(*after, strict=True) if after else ((), ())
        panel.plot(numbers, scores, color=color, marker="o", label=f"{name}, exported")
        compared = [row for row in known if row.dev.after is not None and form != "cross"]
        before = [(row.number, 100 * row.dev.before) for row in compared if row.dev.before is not None]
        if before:
            panel.plot(
                *zip(*before, strict=True), color=color, marker="o", alpha=0.35, linewidth=1.0, label=f"{name}, before"
            )
    panel.set_xticks([row.number for row in rows])
    panel.set_xlabel("stage")
    panel.set_ylabel("dev score × 100")
    panel.set_title("Stages", loc="left", fontsize=11)
    panel.legend(frameon=False)
    figure.savefig(out_png, dpi=130)
    return Path(out_png)


def canvas(*, height: float, panels: int = 1) -> tuple[Any, Sequence[Any]]:
    """A figure 8 inches wide, with its panels one below the other on a shared x axis."""
    # Imported here: matplotlib is slow to import. A Figure without pyplot needs no display and leaves no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), layout="constrained")
    axes = list(figure.subplots(panels, sharex=True, squeeze=False)[:, 0])
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _draw_loss(panel, loss) -> None:
    steps, values = [step for step, _ in loss], [value for _, value in loss]
    if not loss:
        panel.text(0.5, 0.5, "metrics.jsonl holds no loss", ha="center", va="center", transform=panel.transAxes)
    window = max(1, len(values) // 25)
    raw = {"alpha": 0.35, "linewidth": 1.0} if window > 1 else {"marker": "o", "markersize": 3}
    panel.plot(steps, values, color=LOSS_COLOR, label="as logged", **raw)
    if window > 1:
        panel.plot(steps, _smooth(values, window), color=LOSS_COLOR, linewidth=2, label=f"mean of {window} log steps")
        panel.legend(frameon=False)
    panel.set_title("Training loss (lower is better)", loc="left", fontsize=11)
    panel.set_ylabel("mean over sentences")


def _draw_metrics(panel, metrics) -> None:
    panel.set_title("Dev evaluation (higher is better)", loc="left", fontsize=11)
    panel.set_ylabel("dev score × 100")
    if not metrics:
        panel.text(0.5, 0.5, "no evaluation in this run", ha="center", va="center", transform=panel.transAxes)
    for color, (name, series) in zip(itertools.cycle(METRIC_COLORS), metrics.items(), strict=False):
        steps, scores = zip(*((step, 100 * value) for step, value in series), strict=True)
        best = max(range(len(scores)), key=scores.__getitem__)
        label = f"{name}, best {scores[best]:.2f} at step {steps[best]:,}"
        panel.plot(steps, scores, color=color, marker="o", markersize=4, label=label)
        panel.plot(steps[best], scores[best], color=color, marker="*", markersize=14)
    if metrics:
        panel.legend(frameon=False, loc="lower right")


def _smooth(values: Sequence[float], window: int) -> list[float]:
    """Moving average over the last `window` values, or over all so far at the start."""
    windows = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [sum(part) / len(part) for part in windows]


def _rows(path: Path) -> list[dict]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; a run writes metrics.jsonl into its workdir.")
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [parsed_json(text, f"{path}:{line}") for line, text in enumerate(lines, start=1)]


def _series(rows: Sequence[dict], name: str) -> list[tuple[int, float]]:
    """(step, value) pairs in order of step; if a resumed run wrote a step again, the last value counts."""
    values = {row["step"]: row[name] for row in rows if "step" in row and _is_number(row.get(name))}
    return sorted(values.items())


def _dev_metrics(rows: Sequence[dict]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row if name.endswith(DEV_SCORES))
    return [name for name in names if _series(rows, name)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
