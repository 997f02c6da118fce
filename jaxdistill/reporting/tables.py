"""What came of a distillation: one table of teacher, student before and student after."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of one model; None where it was not."""

    agreement: float | None = None
    """Spearman with the teacher's similarities, in [-1, 1]."""
    pairs: float | None = None
    """Spearman with the graded pairs, in [-1, 1]."""
    auc: float | None = None
    """Area under the ROC curve on the dev pairs, in [0, 1], where that chose the best checkpoint."""
    sts: float | None = None
    """Average of the seven STS tests, in [-1, 1]."""
    parameters: int | None = None
    size_bytes: int | None = None
    """Size of the weights file."""
    sentences_per_s: float | None = None


def hundredfold(score: float) -> str:
    """A score in [-1, 1] as the papers print it."""
    return f"{100 * score:.2f}"


ROWS = (
    ("agreement with the teacher (Spearman × 100)", "agreement", hundredfold),
    ("graded pairs (Spearman × 100)", "pairs", hundredfold),
    ("dev pairs (AUC × 100)", "auc", hundredfold),
    ("STS average of 7 (Spearman × 100)", "sts", hundredfold),
    ("parameters", "parameters", lambda value: f"{value:,}"),
    ("weights file (MB)", "size_bytes", lambda value: f"{value / 1e6:.1f}"),
    ("encoding (sentences/s)", "sentences_per_s", lambda value: f"{value:,.0f}"),
)


def comparison_table(rows: Mapping[str, Measured], *, title: str = "") -> Table:
    """A column for each model (`teacher`, `student before`, `student after`), a line for what any of them has.

    A rich table: print its `as_text`.
    """
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    for model in rows:
        table.add_column(model, justify="right")
    for label, field, shown in ROWS:
        values = [getattr(measured, field) for measured in rows.values()]
        if any(value is not None for value in values):
            table.add_row(label, *("-" if value is None else shown(value) for value in values))
    return table


@dataclass(frozen=True, kw_only=True)
class StageRow:
    """What a stage of a chain of trainings came to; scores in [-1, 1], None where there is none."""

    number: int
    form: str
    """`bi` or `cross`; empty for objectives that train one form alone."""
    student: str
    """What its student began as."""
    metric: str
    """Which evaluation chose its best checkpoint."""
    before: float | None
    after: float | None
    sts: float | None
    """Average of the seven STS tests."""
    no_gain: str = ""
    """See the function of that name."""


def no_gain(metric: str, before: float, after: float, *, step: int) -> str:
    """A line about a training whose best checkpoint, that of `step`, is no better than what it began with, or nothing."""
    if after > before:
        return ""
    exported = "the untrained student" if step == 0 else "the best of what was trained"
    return (
        f"NO GAIN: {metric} was {hundredfold(before)} before training and is {hundredfold(after)} at its best after it; "
        f"the export is {exported}"
    )


def stage_table(rows: Sequence[StageRow]) -> Table:
    """A line for each stage."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("stage", "form", "student", "metric"):
        table.add_column(name, overflow="fold")
    for name in ("before", "after", "gain", "STS"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        before, after, sts = (
            "-" if score is None else hundredfold(score) for score in (row.before, row.after, row.sts)
        )
        gain = "-" if None in (row.before, row.after) else f"{100 * (row.after - row.before):+.2f}"
        gain = "NO GAIN" if row.no_gain else gain
        table.add_row(str(row.number), row.form or "-", row.student, row.metric, before, after, gain, sts)
    return table


def plain(value: float) -> str:
    """A value with a unit of its own: four decimals below 10, one below 100, none of a larger one."""
    decimals = 4 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:,.{decimals}f}"


def score_table(
    scores: Mapping[str, Mapping[str, float]],
    columns: Sequence[str],
    *,
    what: str = "Spearman × 100",
    shown: Callable[[float], str] = hundredfold,
) -> Table:
    """A line for each model, a column for each score; `what` they are stands in the corner."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column(what, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for model, named in scores.items():
        table.add_row(model, *(shown(named[column]) if column in named else "-" for column in columns))
    return table


def as_text(table: Table, *, width: int = 100) -> str:
    """The table as plain text, the same on a terminal, in a file and in a log. Brackets and colons in cells are no mark-up."""
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False)
    console.print(table)
    return console.file.getvalue().rstrip("\n")
