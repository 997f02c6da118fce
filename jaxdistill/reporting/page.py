"""Writes a report: one self-contained HTML page with tables and plots.

The page includes Plotly's JavaScript, nearly 5 MB and most of its size, so that it opens without a network and can be mailed
and archived.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from jaxdistill.evals import agreement, suite
from jaxdistill.files import write_atomic, writing
from jaxdistill.reporting.figures import Entry, figures
from jaxdistill.reporting.tables import hundredfold, plain_number
from jaxdistill.reporting.templates import filled

PAGE = "index.html"
SHOWN_NEIGHBOURS = 5
NOT_SHOWN: Mapping[str, str] = {
    "gold-0": "gold scores and similarities (--tasks=sts)",
    "loss": "learning curves (of an export in the folder of its run)",
    "size": "score and size",
    "speed": "score and speed (--tasks=sts,speed)",
    "bytes": "score and bytes of a vector (--dims, --dtypes)",
    "geometry": "alignment and uniformity (--tasks=geometry)",
    "documents": "retrieval of documents (--tasks=documents)",
    "neighbours": "nearest sentences (--tasks=retrieval)",
}
"""Maps parts of the page to their names and the flags that add them; parts that were not measured are listed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Content of a page."""

    title: str
    entries: Sequence[Entry]
    warning: str = ""
    """A prominent line below the title."""
    teacher: str = ""
    """Name of the entry with which others are compared."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts at the end of the page, such as versions and data."""
    protocols: Mapping[str, str] = field(default_factory=dict)
    """Maps units to their protocols."""
    absent: Sequence[str] = ()
    """Lines about missing sets."""
    forms: Sequence[Mapping[str, str]] = ()
    """Rows of the table of forms for other runtimes: column to cell."""


def write_page(report: Report, path: str | Path) -> Path:
    """Writes the page; returns its path. Raises `InputError` if it cannot be written."""
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, html_page(report))
    return path


def html_page(report: Report) -> str:
    """The page as HTML; names and sentences are escaped."""
    measured = [entry for entry in report.entries if not entry.is_cited]  # a paper may have scores that no model has
    score = next((column for column in _score_columns(measured) if not suite.is_plain(column.name)), None)
    drawn = figures(
        report.entries,
        teacher=report.teacher,
        score=score.name if score else "",
        heading=score.heading if score else "",
    )
    neighbours = _neighbours(report.entries)
    shown = {figure.id for figure in drawn} | ({"neighbours"} if neighbours else set())
    return filled(
        "report.html",
        report=report,
        headline=headline(report.entries, report.teacher),
        everything=everything(report.entries),
        figures=[asdict(figure) for figure in drawn],
        neighbours=neighbours,
        lacking=[how for part, how in NOT_SHOWN.items() if part not in shown],
        plotly=javascript(),
    )


def javascript() -> str:
    """Plotly's JavaScript, escaped for a script element."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs().replace("</script", "<\\/script")


def short_names(specs: Sequence[str]) -> dict[str, str]:
    """Maps models to names in tables: the shortest end of the path that is unique and not just `export` or `model`.

    An ensemble is named by its members.
    """
    members = {member for spec in specs for member in spec.split("+")}
    return {spec: "+".join(_short_name(member, members - {member}) for member in spec.split("+")) for spec in specs}


def _short_name(spec: str, others: Collection[str]) -> str:
    parts = spec.removeprefix("package:").rstrip("/").split("/")
    ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
    alone = (end for end in ends if not any(other.rstrip("/").endswith(end) for other in others))
    return next((end for end in alone if end not in ("export", "model")), spec)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table."""

    text: str
    value: float | None = None
    """The value to sort by; None sorts last."""
    is_best: bool = False
    retention: str = ""
    """The percentage of the teacher's value, as text."""


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """A table whose first column names the rows."""

    headings: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]


@dataclass(frozen=True)
class _Column:
    """A column of the first table."""

    name: str
    heading: str
    value: Callable[[Entry], float | None]
    shown: Callable[[float], str]
    best: Callable[[Sequence[float]], float] = max
    is_retained: bool = False


def headline(entries: Sequence[Entry], teacher: str) -> PageTable:
    """One row per model: its main scores, also as percentages of the teacher's, its size and speed.

    The best of several models is marked in each column.
    """
    columns = [*_score_columns(entries), *_cost_columns(entries)]
    reference = next((entry for entry in entries if entry.name == teacher), None)
    cells = [_column_cells(column, entries, reference) for column in columns]
    return PageTable(
        headings=[column.heading for column in columns],
        rows=[(entry.name, [column[place] for column in cells]) for place, entry in enumerate(entries)],
    )


def everything(entries: Sequence[Entry]) -> PageTable:
    """One row per score, one column per model."""
    names = dict.fromkeys(name for entry in entries for name in entry.scores)
    return PageTable(
        headings=[entry.name for entry in entries],
        rows=[(name, [_score_cell(name, entry.scores.get(name)) for entry in entries]) for name in names],
    )


def _score_columns(entries: Sequence[Entry]) -> list[_Column]:
    """Columns of the main scores that any model has."""
    measured = list(dict.fromkeys(name for entry in entries for name in entry.scores))
    return [
        _Column(
            name=name,
            heading=heading,
            value=lambda entry, name=name: entry.scores.get(name),
            shown=plain_number if suite.is_plain(name) else hundredfold,
            is_retained=name not in agreement.METRICS,
        )
        for name, heading in suite.headings(measured).items()
    ]


def _cost_columns(entries: Sequence[Entry]) -> list[_Column]:
    columns = (
        _Column("parameters", "parameters", attrgetter("costs.parameters"), "{:,}".format, best=min),
        _Column("size", "weights (MB)", attrgetter("costs.size_bytes"), lambda size: f"{size / 1e6:.1f}", best=min),
        _Column("vector", "bytes per vector", attrgetter("vector_bytes"), "{:,}".format, best=min),
        _Column("speed", "sentences/s", attrgetter("costs.sentences_per_s"), "{:,.0f}".format),
    )
    several = len({entry.vector_bytes for entry in entries} - {None}) > 1
    return [
        column
        for column in columns
        if any(column.value(entry) for entry in entries) and (several or column.name != "vector")
    ]


def _column_cells(column: _Column, entries: Sequence[Entry], teacher: Entry | None) -> list[Cell]:
    values = [column.value(entry) for entry in entries]
    measured = [value for entry, value in zip(entries, values, strict=True) if value is not None and not entry.is_cited]
    best = column.shown(column.best(measured)) if len(measured) > 1 else ""
    whole = column.value(teacher) if teacher and column.is_retained else None
    return [
        Cell(text="–")
        if value is None
        else Cell(
            text=column.shown(value),
            value=value,
            # Compares the printed values: models that differ in the third decimal are both best.
            is_best=column.shown(value) == best and not entry.is_cited,
            retention=f"{value / whole:.1%}"
            if whole and whole > 0 and not (entry is teacher or entry.is_cited)
            else "",
        )
        for entry, value in zip(entries, values, strict=True)
    ]


def _score_cell(name: str, value: float | None) -> Cell:
    if value is None:
        return Cell(text="–")
    return Cell(text=(plain_number if suite.is_plain(name) else hundredfold)(value), value=value)


def _neighbours(entries: Sequence[Entry]) -> list[Mapping[str, Any]]:
    """The neighbours that each model finds for each query; all models of an evaluation share the queries."""
    answers: dict[tuple[str, str], list[tuple[str, Sequence[tuple[str, str]]]]] = {}
    for entry in entries:
        for study, examples in (entry.examples.neighbours or {}).items():
            for example in examples:
                nearest = [(f"{cosine:.2f}", sentence) for cosine, sentence in example["found"][:SHOWN_NEIGHBOURS]]
                answers.setdefault((study, example["query"]), []).append((entry.name, nearest))
    return [{"study": study, "query": query, "answers": of_query} for (study, query), of_query in answers.items()]
