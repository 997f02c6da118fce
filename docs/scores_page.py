"""Makes the page of the papers' scores from configs/papers, as the site is built (`conf.py`); on its own, prints it."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxdistill.evals import papers


def page() -> str:
    """The page `docs/scores.md`."""
    lines = [
        "# The papers' scores\n",
        "The papers' tables as printed. `evaluate --paper=ROW` shows a row beside any model: ROW is in the last column, where *COLUMN* "
        "stands for the word in italics below a column's heading. [Methods](methods.md) has the command for each row.",
    ]
    for name, paper in papers.papers().items():
        lines.append(f"\n## {name}\n\n{paper['title']}")
        for table in paper["tables"]:
            lines += table_lines(name, table)
    return "\n".join(lines) + "\n"


def table_lines(paper: str, table: Mapping[str, Any]) -> Iterator[str]:
    """A table in Markdown; the last column is what `--paper` takes, where `evaluate` measures a score of the table."""
    named = any(table["scores"])
    yield f"\n**{table['source']}**: {table['title']}." + (f" {table['note']}" if "note" in table else "") + "\n"
    yield row("", *table["columns"], *["`--paper`"] * named)
    yield "|" + "---|" * (len(table["columns"]) + 1 + named)
    if named and "keys" in table:
        yield row(f"*{papers.COLUMN}*", *(key and f"*{key}*" for key in table["keys"]), "")
    for one in table["rows"]:
        yield row(one["row"].replace("|", "\\|"), *one["cells"], *[f"`{paper}:{one['key']}`"] * named)


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    print(page(), end="")
