"""Tables that programs print: comparisons of teacher and student, stages, and scores of models."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from jaxdistill.evals import suite
from jaxdistill.evals.evaluation import PLAIN, SPEARMAN

HEADING = 28
"""Most characters in a line of a column's heading, if the name has slashes at which to break it."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Size and speed of a model; None: not measured."""

    parameters: int | None = None
    size_bytes: int | None = None
    """Size of the weights files."""
    sentences_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of one model; None: not measured."""

    agreement: float | None = None
    """Spearman correlation with the teacher's similarities, in [-1, 1]."""
    teacher_recall_1: float | None = None
    """Share of sentences whose nearest by the teacher is also the model's nearest, in [0, 1]."""
    teacher_recall_10: float | None = None
    """Mean share of the teacher's ten nearest sentences that are among the model's ten nearest, in [0, 1]."""
    pairs: float | None = None
    """Spearman correlation with the scores of graded pairs, in [-1, 1]."""
    auc: float | None = None
    """Area under the ROC curve on dev pairs, in [0, 1], if it chose the best checkpoint."""
    retrieval: float | None = None
    """Mean nDCG@10 of the user's retrieval sets, in [0, 1]."""
    recall: float | None = None
    """Mean recall@1 of the user's entities, in [0, 1]."""
    sts: float | None = None
    """Average of the seven STS tests, in [-1, 1]."""
    costs: Costs = Costs()

    def as_plain(self) -> dict[str, float | None]:
        """All measurements side by side, as `results.json` has them."""
        values = asdict(self)
        return values | values.pop("costs")


def hundredfold(score: float) -> str:
    """A score in [-1, 1], times 100, as papers print it."""
    return f"{100 * score:.2f}"


ROWS = (
    ("agreement with the teacher (Spearman × 100)", "agreement", hundredfold),
    ("teacher's nearest sentence found (%)", "teacher_recall_1", hundredfold),
    ("teacher's ten nearest found (%)", "teacher_recall_10", hundredfold),
    ("graded pairs (Spearman × 100)", "pairs", hundredfold),
    ("dev pairs (AUC × 100)", "auc", hundredfold),
    ("retrieval (nDCG@10 × 100)", "retrieval", hundredfold),
    ("entities (recall@1 × 100)", "recall", hundredfold),
    ("STS average of 7 (Spearman × 100)", "sts", hundredfold),
    ("parameters", "parameters", lambda value: f"{value:,}"),
    ("weights file (MB)", "size_bytes", lambda value: f"{value / 1e6:.1f}"),
    ("encoding (sentences/s)", "sentences_per_s", lambda value: f"{value:,.0f}"),
)


def comparison_table(rows: Mapping[str, Measured], *, title: str = "") -> Table:
    """A rich table with one column per model and one row per measurement that any model has; print its `as_text`.

    Args:
      rows: maps `teacher`, `student before` and `student after` to their measurements.
    """
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for model in rows:
        table.add_column(model, justify="right")
    for label, field, shown in ROWS:
        values = [measured.as_plain()[field] for measured in rows.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else shown(value) for value in values))
    return table


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a training gained by the metric that compares its checkpoints; None: not measured."""

    metric: str
    before: float | None
    after: float | None
    warning: str = ""
    """The line of `no_gain`."""

    @property
    def shown(self) -> str:
        """The gain × 100 with its sign, `NO GAIN`, or `-` where a score is missing."""
        if self.warning or self.before is None or self.after is None:
            return "NO GAIN" if self.warning else "-"
        return f"{100 * (self.after - self.before):+.2f}"


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """Result of one stage; scores are in [-1, 1], None if not measured."""

    number: int
    form: str
    """`bi` or `cross`; empty for objectives that train only one form."""
    student: str
    """Origin of the student's weights."""
    dev: Gain
    sts: float | None
    """Average of the seven STS tests."""
    paper: float | None = None
    """A paper's `sts`, if the stage repeats a row of the paper."""


def no_gain(
    metric: str, before: float, after: float, *, step: int, averaged: Sequence[int] = (), last: bool = False
) -> str:
    """A warning if the export is no better than the untrained student; otherwise empty.

    Args:
      step: step of the best checkpoint, which is the export unless steps are `averaged` or the `last` one is exported.
    """
    if after > before:
        return ""
    best = "the best trained checkpoint" if step else "the untrained student"
    best = "the last checkpoint" if last else best
    exported = f"the mean of the checkpoints of steps {', '.join(map(str, averaged))}" if averaged else best
    return (
        f"NO GAIN: {metric} was {hundredfold(before)} before training and is {hundredfold(after)} {'' if averaged or last else 'at its best '}"
        f"after it; the export is {exported}"
    )


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
            "-" if score is None else hundredfold(score)
            for score in (row.dev.before, row.dev.after, row.sts, row.paper)
        )
        shown = [str(row.number), row.form or "-", row.student, row.dev.metric, before, after, row.dev.shown, sts]
        table.add_row(*shown, *[paper] * cites)
    return table


def plain_number(value: float) -> str:
    """A value that has its own unit: four decimals below 10, one below 100, none above."""
    decimals = 4 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{decimals}f}"


def score_table(
    scores: Mapping[str, Mapping[str, float]],
    columns: Sequence[str],
    *,
    what: str = "Spearman × 100",
    shown: Callable[[float], str] = hundredfold,
) -> Table:
    """One row per model and one column per score; `what` heads the first column."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(what, overflow="fold")
    for column in columns:
        table.add_column(_heading(column), justify="right", overflow="fold", min_width=6)
    for model, named in scores.items():
        table.add_row(model, *(shown(named[column]) if column in named else "-" for column in columns))
    return table


def _heading(name: str) -> str:
    """The name in lines that end at its slashes, so that long paths leave room for the first column."""
    lines = [""]
    for piece in re.findall("[^/]*/|[^/]+", name):
        if lines[-1] and len(lines[-1] + piece) > HEADING:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def as_text(table: Table, *, width: int = 100) -> str:
    """The table as plain text, the same on a terminal, in a file and in a log. Cells are not parsed as markup."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, markup=False, emoji=False).print(table)
    return text.getvalue().rstrip("\n")


def result_tables(scores: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """The printed tables: one line per model for correlations on whole sets, and one line for each other score."""
    measured = list(dict.fromkeys(name for named in scores.values() for name in named))
    whole = [name for name in measured if "/" not in name and suite.measure(name) == SPEARMAN]
    tables = [score_table(scores, whole)] if whole else []
    for what in dict.fromkeys(suite.measure(name) for name in measured if name not in whole):
        rows = {
            name: {model: named[name] for model, named in scores.items() if name in named}
            for name in measured
            if name not in whole and suite.measure(name) == what
        }
        shown = plain_number if what == PLAIN else hundredfold
        tables.append(score_table(rows, list(scores), what=what, shown=shown))
    return tables
