"""Summarises a sweep: means over seeds, and its points as a table, CSV and a plot."""

import csv
import io
import itertools
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from rich.box import MARKDOWN, SIMPLE_HEAD, Box
from rich.table import Table

from jaxdistill.files import write_atomic
from jaxdistill.reporting.plots import LOSS_COLOR, METRIC_COLORS, canvas
from jaxdistill.reporting.tables import as_text, hundredfold

Row = dict[str, Any]
"""A point of a sweep: `point` (its name), `options` (those that differ between points), `seed`, exit `status` (None: not yet
run), `failure` (a line), `metric`, and, in [-1, 1], the best `score` by that metric and `sts_average`."""
SCORES = ("score", "sts_average")
LOG_AXIS_FROM = 20
"""An axis of values above 0 is logarithmic if the largest is more than this many times the smallest."""


def means(rows: Sequence[Row]) -> list[Row]:
    """For each choice of options: its seeds, and each score's mean and standard deviation over the seeds that have it.

    The standard deviation is the sample's (n - 1); None for a single value. A score that no seed has is None.
    """
    return [
        {"options": group[0]["options"], "seeds": [row["seed"] for row in group]}
        | {name: _mean([row[name] for row in group if row[name] is not None]) for name in SCORES}
        for group in _groups(rows)
    ]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups rows by their choice of options."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["options"]), []).append(row)
    return list(groups.values())


def _mean(values: list[float]) -> dict[str, float | None] | None:
    if not values:
        return None
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values) if len(values) > 1 else None}


def scores_by_seed(rows: Sequence[Row], name: str) -> list[tuple[Row, dict[int, float]]]:
    """For each choice of options: these options, and the score of each seed that has one."""
    return [
        (group[0]["options"], {row["seed"]: row[name] for row in group if row[name] is not None})
        for group in _groups(rows)
    ]


def difference_lines(rows: Sequence[Row]) -> list[str]:
    """Differences of a score that one option makes, paired by seed.

    Each choice of options is compared with the first that differs from it in one option and shares two seeds or more.
    """
    lines = []
    for name in shown_scores(rows):
        if name == "score" and len({row["metric"] for row in rows if row["metric"]}) > 1:
            continue  # scores by different metrics have no difference
        choices = scores_by_seed(rows, name)
        for number, (options, scores) in enumerate(choices):
            for base, base_scores in choices[:number]:
                changed = [f"{option}={value}" for option, value in base.items() if value != options[option]]
                gains = {seed: scores[seed] - base_scores[seed] for seed in scores if seed in base_scores}
                if len(changed) == 1 and len(gains) > 1:
                    chosen = ", ".join(f"{option}={value}" for option, value in options.items())
                    lines.append(f"{heading(name, rows)}, {chosen} against {changed[0]}: {_paired(gains)}")
                    break
    return lines


def _paired(gains: Mapping[int, float]) -> str:
    """The mean of differences by seed, and its 95 % interval (Student's t)."""
    from scipy import stats  # imported here: it takes over a second

    mean, error = statistics.fmean(gains.values()), statistics.stdev(gains.values()) / math.sqrt(len(gains))
    half = float(stats.t.ppf(0.975, len(gains) - 1)) * error
    shown, low, high = (f"{100 * value:+.2f}" for value in (mean, mean - half, mean + half))
    return f"{shown}, 95 % interval {low} to {high} (paired by seed: {', '.join(map(str, gains))})"


def sweep_table(rows: Sequence[Row], *, box: Box = SIMPLE_HEAD) -> Table:
    """One row per point; with several seeds, the first row of each choice of options also has the means."""
    groups, shown = means(rows), shown_scores(rows)
    several = any(len(group["seeds"]) > 1 for group in groups)
    result = Table(box=box)
    for option in rows[0]["options"]:
        result.add_column(option)
    result.add_column("seed", justify="right")
    for name in shown:
        result.add_column(heading(name, rows), justify="right")
        if several:
            result.add_column("mean ± s.d.", justify="right", no_wrap=True)
    for group in groups:
        for place, row in enumerate(row for row in rows if row["options"] == group["options"]):
            cells = [str(value) for value in (*row["options"].values(), row["seed"])]
            for name in shown:
                cells.append(f"failed ({row['status']})" if row["status"] else hundred(row[name]))
                if several:
                    cells.append("" if place else mean_text(group[name]))
            result.add_row(*cells)
    return result


def shown_scores(rows: Sequence[Row]) -> list[str]:
    """The scores that a table shows: any that some point has, and always the one that chose the checkpoints."""
    return [name for name in SCORES if name == "score" or any(row[name] is not None for row in rows)]


def heading(name: str, rows: Sequence[Row]) -> str:
    """Heading of a score's column."""
    return f"{metric_of(rows) if name == 'score' else 'STS average'} × 100"


def sweep_csv(rows: Sequence[Row]) -> str:
    """One line per point: its scores, in [-1, 1], and their mean and standard deviation over the seeds of its options."""
    text = io.StringIO()
    columns = [*rows[0]["options"], "seed", "status", "metric"]
    columns += [f"{name}{part}" for name in SCORES for part in ("", "_mean", "_sd")]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for summary, group in zip(means(rows), _groups(rows), strict=True):
        of_group = {f"{name}_{part}": value for name in SCORES for part, value in (summary[name] or {}).items()}
        writer.writerows(row["options"] | row | of_group for row in group)
    return text.getvalue()


def hundred(score: float | None) -> str:
    """A score × 100 as text; `-` for a missing one."""
    return "-" if score is None else hundredfold(score)


def mean_text(mean: dict[str, float | None] | None) -> str:
    """`78.22 ± 0.10`; without a deviation for a single value."""
    if mean is None:
        return "-"
    return hundred(mean["mean"]) + (f" ± {hundred(mean['sd'])}" if mean["sd"] is not None else "")


def metric_of(rows: Sequence[Row]) -> str:
    """The metric of the scores if all points share one, otherwise `dev score`."""
    names = {row["metric"] for row in rows if row["metric"]}
    return names.pop() if len(names) == 1 else "dev score"


def axis_of(values: Sequence[Any]) -> str:
    """Scale of an axis for these values: `linear`, `log` or `category`."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "category"
    return "log" if min(values) > 0 and max(values) > LOG_AXIS_FROM * min(values) else "linear"


def score_lines(rows: Sequence[Row]) -> dict[str, list[tuple[Any, dict[int, float]]]]:
    """Maps labels of the plot's lines to points of (first option, score by seed).

    There is one line per choice of the other options, or a single line if the first option determines the others, as in a
    list of teachers with their pooling.
    """
    groups = [(options, scores) for options, scores in scores_by_seed(rows, "score") if scores]
    firsts = [next(iter(options.values()), "") for options, _ in groups]
    one = len({str(first) for first in firsts}) == len(groups)
    lines: dict[str, list[tuple[Any, dict[int, float]]]] = {}
    for first, (options, scores) in zip(firsts, groups, strict=True):
        label = "" if one else ", ".join(f"{name}={value}" for name, value in list(options.items())[1:])
        lines.setdefault(label, []).append((first, scores))
    return lines


def sweep_plot(rows: Sequence[Row], out_png: pathlib.Path, *, title: str) -> None:
    """Plots the mean of the best scores against the first option, with their range over seeds; thin lines join a seed's."""
    figure, (panel,) = canvas(height=4.8)
    figure.suptitle(title, fontweight="bold")
    drawn = score_lines(rows)
    firsts = [first for points in drawn.values() for first, _ in points]
    axis, categories = axis_of(firsts), list(dict.fromkeys(map(str, firsts)))
    for color, (label, points) in zip(itertools.cycle((LOSS_COLOR, *METRIC_COLORS)), drawn.items(), strict=False):
        placed = [(categories.index(str(x)) if axis == "category" else x, scores) for x, scores in points]
        x, by_seed = zip(*sorted(placed, key=itemgetter(0)), strict=True)
        for seed in dict.fromkeys(seed for scores in by_seed for seed in scores):
            of_seed = [(at, 100 * scores[seed]) for at, scores in zip(x, by_seed, strict=True) if seed in scores]
            panel.plot(*zip(*of_seed, strict=True), color=color, alpha=0.35, linewidth=1.0)
        hundreds = [[100 * score for score in scores.values()] for scores in by_seed]
        mean, low, high = (np.array([of(values) for values in hundreds]) for of in (statistics.fmean, min, max))
        panel.errorbar(
            x,
            mean,
            yerr=np.abs([mean - low, high - mean]),  # rounding may make them negative
            color=color,
            label=label,
            linestyle="none" if axis == "category" else "-",
            marker="o",
            capsize=4,
        )
    if axis == "category":
        labels = [name if len(name) < 40 else f"{name[:18]}...{name[-18:]}" for name in categories]
        panel.set_xticks(range(len(labels)), labels)
        if max(map(len, labels)) > 12:
            panel.tick_params(axis="x", labelrotation=20)
    elif axis == "log":
        panel.set_xscale("log")
        panel.set_xticks(sorted(set(firsts)), [f"{value:g}" for value in sorted(set(firsts))])
        panel.minorticks_off()
    panel.set_xlabel(next(iter(rows[0]["options"]), "configuration"))
    panel.set_ylabel(f"best {metric_of(rows)} × 100")
    if len(drawn) > 1:
        panel.legend(frameon=False, fontsize=9)
    figure.savefig(out_png, dpi=130)


def write_sweep(report: Mapping[str, Any], rows: Sequence[Row], folder: pathlib.Path) -> None:
    """Writes `sweep.json` atomically."""
    content = {**report, "points": rows, "means": means(rows)}
    write_atomic(folder / "sweep.json", json.dumps(content, indent=2) + "\n")


def show_sweep(report: Mapping[str, Any], rows: Sequence[Row], folder: pathlib.Path) -> None:
    """Prints the table, differences and failures, writes `sweep.md` and `.csv`, and draws the plot if there is a score."""
    failures = [f"{row['point']} {row['failure']}" for row in rows if row["failure"]]
    tabulated, differences = as_text(sweep_table(rows, box=MARKDOWN), width=1000).strip(), difference_lines(rows)
    parts = [f"`{report['command']}`", tabulated, "s.d.: over seeds, n - 1.", *differences, *failures]
    write_atomic(folder / "sweep.md", "\n\n".join(parts) + "\n")
    write_atomic(folder / "sweep.csv", sweep_csv(rows))
    print("\n".join([as_text(sweep_table(rows), width=160), *differences, *failures]))
    print(f"table: {folder / 'sweep.md'} and sweep.csv; numbers: {folder / 'sweep.json'}")
    if any(row["score"] is not None for row in rows):
        sweep_plot(rows, folder / "sweep.png", title=folder.resolve().name)
        print(f"plot: {folder / 'sweep.png'}")
