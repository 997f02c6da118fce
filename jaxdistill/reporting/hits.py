"""Shows what a search found: the tables on the terminal."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdistill.data.resumable import one_line

LINE_WIDTH = 120
"""Width of the tables in characters; longer sentences are truncated."""


class Hit(NamedTuple):
    """A sentence that was found."""

    cosine: float
    row: int
    """In the corpus, from 0."""
    sentence: str


def hits_table(query: str, hits: Sequence[Hit]) -> Table:
    """The table printed for a query."""
    table = Table(title=one_line(query), box=SIMPLE_HEAD, title_justify="left", expand=True)
    for name in ("rank", "cosine", "row"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sentence", no_wrap=True, overflow="ellipsis", ratio=1)  # numbers keep their width
    for rank, hit in enumerate(hits, start=1):
        table.add_row(str(rank), f"{hit.cosine:.4f}", f"{hit.row + 1:,}", one_line(hit.sentence))
    return table
