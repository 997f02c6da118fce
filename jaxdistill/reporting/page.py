"""Writes the report of a training or an evaluation: one HTML page with tables and figures, without scripts, to mail and archive."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from jaxdistill.files import write_atomic, writing
from jaxdistill.reporting.plots import Curves, images
from jaxdistill.reporting.tables import Entry, ScoreRow, score_rows
from jaxdistill.reporting.templates import filled

PAGE = "index.html"


def write_page(
    path: Path,
    entries: Sequence[Entry],
    *,
    title: str,
    sections: Mapping[str, Mapping[str, str]],
    warning: str = "",
    teacher: str = "",
    curves: Curves | None = None,
) -> Path:
    """Writes the page; returns its path. Names and sentences are escaped.

    Args:
      sections: maps headings at the end of the page to terms with their lines.
      warning: a prominent line below the title.
      teacher: name of the entry with which others are compared.
      curves: of the training that the report is about.

    Raises:
      InputError: the page cannot be written.
    """
    main, costs, others = score_rows(entries)
    page = filled(
        "report.html",
        title=title,
        warning=warning,
        models=[entry.name for entry in entries],
        teacher=teacher,
        main=[(row, _shares(row, entries, teacher)) for row in main] + [(row, None) for row in costs],
        others=[(row, None) for row in others],
        images=images(entries, teacher=teacher, curves=curves),
        sections=sections,
    )
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, page)
    return path


def _shares(row: ScoreRow, entries: Sequence[Entry], teacher: str) -> list[str] | None:
    """Each other model's value as a percentage of the teacher's; None without a positive one."""
    of_models = list(zip(entries, row.values, strict=True))
    whole = next((value for entry, value in of_models if entry.name == teacher), None)
    if not whole or whole < 0 or row.is_plain:
        return None
    return [
        "" if value is None or entry.name == teacher or entry.is_cited else f"{value / whole:.1%}"
        for entry, value in of_models
    ]


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
