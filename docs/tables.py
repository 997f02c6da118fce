"""Writes the tables of configs/papers into docs/methods.md, between its marks: python docs/tables.py"""

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from jaxdistill.reporting import papers

PAGE = pathlib.Path(__file__).with_name("methods.md")
MARKS = re.compile(r"(<!-- tables of (\w+), by docs/tables.py -->\n).*?(<!-- end -->)", re.S)


def with_tables(page: str) -> str:
    """The page with the present tables between its marks."""
    return MARKS.sub(lambda found: found[1] + as_markdown(found[2]) + found[3], page)


def as_markdown(paper: str) -> str:
    """A paper's tables; the last column is what `--paper` takes, where `evaluate` measures a score of the table."""
    return "".join(line + "\n" for table in papers.papers()[paper]["tables"] for line in _table(paper, table))


def _table(paper: str, table: Mapping[str, Any]) -> Iterator[str]:
    named = any(table["scores"])
    yield f"\n**{table['source']}**: {table['title']}." + (f" {table['note']}" if "note" in table else "") + "\n"
    yield _line("", *table["columns"], *["`--paper`"] * named)
    yield "|" + "---|" * (len(table["columns"]) + 1 + named)
    if named and "keys" in table:
        yield _line(f"*{papers.COLUMN}*", *(key and f"*{key}*" for key in table["keys"]), "")
    for row in table["rows"]:
        yield _line(row["row"].replace("|", "\\|"), *row["cells"], *[f"`{paper}:{row['key']}`"] * named)


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
