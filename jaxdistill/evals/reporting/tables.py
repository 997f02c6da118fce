"""Tables of scores, which programs print and reports show: one row per score, one column per model."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxdistill.evals import suite
from jaxdistill.evals.pairs import ScoredPairs

HEADING_WIDTH = 10
"""Characters in a line of a column's heading; a longer name is broken after slashes, colons, hyphens and spaces."""
COSTS = {
    "parameters": ("parameters", "{:,}".format),
    "size_bytes": ("weights file (MB)", lambda size: f"{size / 1e6:.1f}"),
    "vector_bytes": ("bytes per vector", "{:,}".format),
    "sentences_per_s": ("encoding (sentences/s)", "{:,.0f}".format),
}
"""Maps costs of a model to their labels and forms."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model, or a row of a paper, in a table or report."""

    name: str
    scores: Mapping[str, float]
    """Maps names of scores to values, in [-1, 1] or in their own units."""
    costs: Mapping[str, float | None] = field(default_factory=dict)
    """Values of `COSTS`; missing or None: not measured."""
    scored_pairs: ScoredPairs | None = None
    """Graded pairs with the model's similarities, to plot."""
    is_cited: bool = False
    """Whether the scores are quoted from a paper, not measured."""


class ScoreRow(NamedTuple):
    """A score of all models."""

    label: str
    values: list[float | None]
    cells: list[str]
    is_plain: bool
    """Whether its values have their own unit."""


def score_rows(entries: Sequence[Entry]) -> tuple[list[ScoreRow], list[ScoreRow], list[ScoreRow]]:
    """Rows of the main scores, of costs, and of all other scores; only those that some model has."""
    names = list(dict.fromkeys(name for entry in entries for name in entry.scores))
    main = suite.headings(names)
    scores = {}
    for name in names:
        is_plain, values = suite.is_plain(name), [entry.scores.get(name) for entry in entries]
        cells = _cells(values, plain_number if is_plain else hundredfold)
        scores[name] = ScoreRow(main.get(name, name), values, cells, is_plain)
    costs = []
    for name, (label, shown) in COSTS.items():
        values = [entry.costs.get(name) for entry in entries]
        costs.append(ScoreRow(label, values, _cells(values, shown), is_plain=True))
    others = [scores[name] for name in names if name not in main]
    return [scores[name] for name in main], [row for row in costs if any(row.values)], others


def _cells(values: Sequence[float | None], shown: Callable[[float], str]) -> list[str]:
    return ["–" if value is None else shown(value) for value in values]


def score_table(entries: Sequence[Entry]) -> Table:
    """The table that trainings and evaluations print: main scores first, then costs, then all other scores."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("scores × 100", no_wrap=True)
    for entry in entries:
        table.add_column(_heading(entry.name), justify="right")
    for section in score_rows(entries):
        table.add_section()
        for row in section:
            table.add_row(row.label, *row.cells)
    return table


def _heading(name: str) -> str:
    lines = [""]
    for piece in re.findall("[^/: -]*[/: -]|[^/: -]+", name):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > HEADING_WIDTH:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


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
    decimals = 4 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """Result of one stage; scores are in [-1, 1], None if not measured."""

    number: int
    form: str
    """`bi` or `cross`; empty for objectives that train only one form."""
    student: str
    """Origin of the student's weights."""
    metric: str
    """The dev score that compares its checkpoints."""
    before: float | None
    after: float | None
    no_gain: str
    """A warning if the export is no better than the untrained student; otherwise empty."""
    sts: float | None
    """Average of the seven STS tests."""
    paper: float | None = None
    """A paper's `sts`, if the stage repeats a row of the paper."""

    @property
    def gain(self) -> str:
        """The gain × 100 with its sign, `NO GAIN`, or `-` where a score is missing."""
        if self.no_gain or self.before is None or self.after is None:
            return "NO GAIN" if self.no_gain else "-"
        return f"{100 * (self.after - self.before):+.2f}"


def stage_table(rows: Sequence[StageRow]) -> Table:
    """One row per stage, with a column for the paper's STS if any stage repeats a paper."""
    cites = any(row.paper is not None for row in rows)
    table = Table(box=SIMPLE_HEAD)
    for name in ("stage", "form", "student", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("before", "after", "gain", "STS", *["paper's STS"] * cites):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        before, after, sts, paper = (
            "-" if score is None else hundredfold(score) for score in (row.before, row.after, row.sts, row.paper)
        )
        shown = [str(row.number), row.form or "-", row.student, row.metric, before, after, row.gain, sts]
        table.add_row(*shown, *[paper] * cites)
    return table
