"""Makes the figures of a report, as plain data in Plotly's JSON form.

They are dictionaries, because Plotly's Python classes would only wrap them and its JavaScript checks them anyway. All text
from the user is escaped, because Plotly interprets some HTML in labels.
"""

import html
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from jaxdistill.evals.pairs import ScoredPairs
from jaxdistill.evals.ranking import NDCG
from jaxdistill.reporting.plots import Curves
from jaxdistill.reporting.tables import Costs

COLORS = ("#c2573a", "#3b6ea5", "#4f8a4c", "#7b5aa6", "#b8862d", "#3f9aa0", "#b5507f", "#6b5b4b", "#2f4b7c", "#8f9a3b")
TEACHER_COLOR = "#4a4a4a"
BINS = 40
"""Number of bins of the histogram, from the lowest to the highest similarity of any model."""
LOG_TICKS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 2, 5), (1,))
"""Digits of the ticks of a logarithmic axis; the first choice that leaves room for the labels is used."""
MOST_TICKS = 7
HEIGHT, LEGEND_ROW = 340, 19
"""Height in pixels of a plot with up to four models, and of the legend row of each further one."""
HOVER_WIDTH = 60
"""Characters per line of a sentence shown at a point."""
HOVER_LINES = 4
"""Most lines of such a sentence; the rest is cut off."""
ALIGNMENT, UNIFORMITY = "geometry/alignment", "geometry/uniformity"
DOCUMENTS = "documents/"
"""Prefix of a retrieval score; the set's name and the measure follow."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """What a report shows of a model besides numbers. None or an empty collection means unknown."""

    scored_pairs: ScoredPairs | None = None
    neighbours: Mapping[str, Sequence[Mapping[str, Any]]] | None = None
    """Maps studies to their examples, each with `query` and `found` sentences as in `evals/neighbours.py`."""
    curves: Curves | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model in a report. None or an empty collection means unknown."""

    name: str
    scores: Mapping[str, float]
    """Maps names of scores to values, in [-1, 1] or in their own units."""
    costs: Costs = Costs()
    vector_bytes: int | None = None
    """Size of a stored vector."""
    examples: Examples = Examples()
    failed: Mapping[str, str] | None = None
    """Maps failed evaluations to the reasons."""
    is_cited: bool = False
    """Whether the scores are quoted from a paper, not measured."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plot with its title and a note on how to read it."""

    id: str
    title: str
    note: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]


def figures(entries: Sequence[Entry], *, teacher: str = "", score: str = "", heading: str = "") -> list[Figure]:
    """All figures that have data.

    Args:
      teacher: name of the entry to draw in grey.
      score: name of the score to plot against size and speed; empty: none was measured.
      heading: the score's readable name.
    """
    colors = _colors(entries, teacher)
    scored = {entry.name: pairs for entry in entries if (pairs := entry.examples.scored_pairs)}
    drawn = [
        *_gold_scatters(scored, colors),
        _histogram(scored, colors),
        _loss(entries, colors),
        _dev(entries, colors),
        *_score_against(entries, colors, score, heading),
        _alignment_uniformity(entries, colors),
        _documents(entries, colors),
    ]
    return [figure for figure in drawn if figure is not None]


def _colors(entries: Sequence[Entry], teacher: str) -> dict[str, str]:
    others = [entry.name for entry in entries if entry.name != teacher]
    colors = {name: COLORS[number % len(COLORS)] for number, name in enumerate(others)}
    return colors | {teacher: TEACHER_COLOR}


def _gold_scatters(scored: Mapping[str, ScoredPairs], colors: Mapping[str, str]) -> Iterator[Figure]:
    """One figure per model, because the clouds would hide each other; they share their axes."""
    every = [similarity for pairs in scored.values() for similarity in pairs.similarities]
    axis = {"range": [min(every, default=0.0) - 0.05, max(every, default=1.0) + 0.05]}
    for number, (name, pairs) in enumerate(scored.items()):
        trace = {
            "type": "scatter",
            "mode": "markers",
            "x": list(pairs.gold),
            "y": list(pairs.similarities),
            "text": [f"{_folded(first)}<br>—<br>{_folded(second)}" for first, second in pairs.pairs],
            "hovertemplate": "gold %{x}, cosine %{y}<br>%{text}<extra></extra>",
            "marker": {"color": colors[name], "size": 4, "opacity": 0.4},
        }
        yield Figure(
            id=f"gold-{number}",
            title=f"Gold score and similarity: {name}",
            note=f"{len(pairs.gold):,} pairs of {pairs.name}. A good model's points rise from left to right in a narrow band.",
            data=[trace],
            layout=_layout("gold score", "cosine similarity", y_axis=axis) | {"showlegend": False},
        )


def _histogram(scored: Mapping[str, ScoredPairs], colors: Mapping[str, str]) -> Figure | None:
    every = [similarity for pairs in scored.values() for similarity in pairs.similarities]
    edges = np.linspace(min(every, default=-1.0), max(every, default=1.0), BINS + 1)
    traces = []
    for name, pairs in scored.items():
        counts, _ = np.histogram(pairs.similarities, edges)
        trace = _trace(name, colors, (edges[:-1] + edges[1:]) / 2, counts, mode="lines")
        traces.append(trace | {"fill": "tozeroy", "fillcolor": f"{colors[name]}22"})
        traces[-1]["line"] |= {"shape": "hvh"}
    return _figure(
        "similarities",
        "Histogram of similarities",
        "The same pairs. A good student has its teacher's shape; a narrow peak near 1 means collapse.",
        traces,
        layout=_layout("cosine similarity", "pairs"),
    )


def _loss(entries: Sequence[Entry], colors: Mapping[str, str]) -> Figure | None:
    curves = {
        entry.name: entry.examples.curves.loss
        for entry in entries
        if entry.examples.curves is not None and entry.examples.curves.loss
    }
    return _figure(
        "loss",
        "Learning curve: loss",
        "The mean over the steps since the previous point. Lower is better; losses of different objectives are not comparable.",
        [_trace(name, colors, *zip(*points, strict=True), mode="lines+markers") for name, points in curves.items()],
        layout=_layout("step", "loss"),
    )


def _dev(entries: Sequence[Entry], colors: Mapping[str, str]) -> Figure | None:
    traces = []
    for entry in entries:
        for number, (metric, points) in enumerate(
            entry.examples.curves.metrics.items() if entry.examples.curves else ()
        ):
            steps, values = zip(*points, strict=True)
            trace = _trace(entry.name, colors, steps, [100 * value for value in values], mode="lines+markers")
            dash = ("solid", "dot", "dash", "dashdot")[number % 4]
            traces.append(trace | {"name": _plain(f"{entry.name}, {metric}")})
            traces[-1]["line"] = {"color": colors[entry.name], "dash": dash}
    return _figure(
        "dev",
        "Learning curve: dev evaluation",
        "The scores that can choose the best checkpoint. Higher is better.",
        traces,
        layout=_layout("step", "dev score × 100"),
    )


def _score_against(
    entries: Sequence[Entry], colors: Mapping[str, str], score: str, heading: str
) -> Iterator[Figure | None]:
    """Figures of the score against size, speed and bytes per vector, if these differ; one trace per model, for the legend."""
    speed_note = "Better models are higher, faster ones further right. Measured on the machine that ran the evaluation."
    for id, note, axis, of in (
        ("size", "Better models are higher, smaller ones further left.", "parameters", attrgetter("costs.parameters")),
        ("speed", speed_note, "sentences/s", attrgetter("costs.sentences_per_s")),
        (
            "bytes",
            "Better forms are higher, smaller ones further left.",
            "bytes of a vector",
            attrgetter("vector_bytes"),
        ),
    ):
        known = [(entry, of(entry)) for entry in entries if score in entry.scores and of(entry)]
        if id == "bytes" and len({value for _, value in known}) < 2:
            continue
        yield _figure(
            id,
            f"Score and {id}",
            note,
            [_trace(e.name, colors, [value], [100 * e.scores[score]], mode="markers") for e, value in known],
            layout=_layout(axis, f"{heading} × 100", log_x=[value for _, value in known]),
        )


def _alignment_uniformity(entries: Sequence[Entry], colors: Mapping[str, str]) -> Figure | None:
    known = [entry for entry in entries if {ALIGNMENT, UNIFORMITY} <= set(entry.scores)]
    return _figure(
        "geometry",
        "Alignment and uniformity",
        "Wang and Isola's losses on STS-B dev; lower is better in both, so the best model is at the bottom left.",
        [_trace(e.name, colors, [e.scores[UNIFORMITY]], [e.scores[ALIGNMENT]], mode="markers") for e in known],
        layout=_layout("uniformity", "alignment"),
    )


def _documents(entries: Sequence[Entry], colors: Mapping[str, str]) -> Figure | None:
    """A group of bars for each set; asymmetric and reranked scores have separate groups."""
    traces = []
    for entry in entries:
        scores = {name: value for name, value in entry.scores.items() if DOCUMENTS in name and name.endswith(NDCG)}
        sets = [_plain(name.replace(DOCUMENTS, "").removesuffix(f" {NDCG}")) for name in scores]
        if sets:
            bars = {"type": "bar", "name": _plain(entry.name), "marker": {"color": colors[entry.name]}}
            traces.append(bars | {"x": sets, "y": [100 * value for value in scores.values()]})
    return _figure(
        "documents",
        "Retrieval of documents",
        "nDCG@10 of each set; higher is better.",
        traces,
        layout=_layout("", "nDCG@10 × 100") | {"barmode": "group"},
    )


def _figure(
    id: str, title: str, note: str, data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]
) -> Figure | None:
    layout = {**layout, "height": layout["height"] + LEGEND_ROW * max(0, len(data) - 4)}
    return Figure(id=id, title=title, note=note, data=data, layout=layout) if data else None


Values = Sequence[float] | np.ndarray


def _trace(name: str, colors: Mapping[str, str], x: Values, y: Values, *, mode: str) -> dict[str, Any]:
    """A named line or cloud; lone points are large enough to tap."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": _plain(name),
        "x": np.asarray(x).tolist(),
        "y": np.asarray(y).tolist(),
        "line": {"color": colors[name], "simplify": False},
        "marker": {"color": colors[name], "size": 13 if mode == "markers" else 5},
    }


def _layout(x: str, y: str, *, log_x: Sequence[float] = (), y_axis: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Axes with titles, and a legend above the plot, which keeps the full width on a phone.

    Args:
      log_x: the points' x values if the x axis is logarithmic.
      y_axis: further properties of the y axis, such as its range.
    """
    axis = {"gridcolor": "#e6e6e6", "zeroline": False, "automargin": True}
    ticks = {"type": "log", "tickvals": _log_ticks(log_x), "tickformat": "~s"} if log_x else {}
    return {
        "xaxis": axis | {"title": {"text": _plain(x)}} | ticks,
        "yaxis": axis | {"title": {"text": _plain(y)}} | dict(y_axis or {}),
        "height": HEIGHT,
        "margin": {"l": 50, "r": 15, "t": 10, "b": 40},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "maxheight": 0.7},
        "showlegend": True,
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
    }


def _log_ticks(values: Sequence[float]) -> list[float]:
    """Round numbers for the ticks. NOTE: Plotly's own ticks between powers of ten show bare digits."""
    powers = range(int(np.log10(min(values))) - 1, int(np.log10(max(values))) + 2)
    for digits in LOG_TICKS:
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        shown = [tick for tick in ticks if min(values) / 1.5 <= tick <= 1.5 * max(values)]
        if len(shown) <= MOST_TICKS:
            break
    return shown


def _plain(text: str) -> str:
    """Escapes a text for Plotly, which does not decode the entities of quotes."""
    return html.escape(text, quote=False)


def _folded(sentence: str) -> str:
    return "<br>".join(map(_plain, textwrap.wrap(sentence, HOVER_WIDTH, max_lines=HOVER_LINES, placeholder=" …")))
