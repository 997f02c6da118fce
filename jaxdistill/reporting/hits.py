"""Shows the hits of a search: as tables on the terminal, JSON lines, or a TREC run file."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jaxdistill.core import InputError
from jaxdistill.files import write_atomic

LINE_WIDTH = 120
"""Width of the tables in characters; longer sentences are truncated, passages wrap."""
ID_WIDTH = 32
"""Most characters of an id per line of the tables."""
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
"""Characters that end a line, or that a terminal obeys."""
TAG = "jaxdistill"
"""Name of the system in a run file."""


class Hit(NamedTuple):
    """A sentence or passage that was found."""

    cosine: float
    """The dot product instead, for a model whose checkpoint compares by it."""
    row: int
    """Row of its vector, from 0."""
    sentence: str
    id: str = ""
    """Id of its text in the corpus; the text's row number, from 1, if the corpus has no ids."""
    span: tuple[int, int] | None = None
    """Start and end of a passage in its text, in characters; None for a whole text."""


def hits_table(query: str, hits: Sequence[Hit]) -> Table:
    """The table printed for a query."""
    named = any(hit.id not in ("", str(hit.row + 1)) for hit in hits)
    in_passages = any(hit.span for hit in hits)
    table = Table(title=CONTROLS.sub(" ", query), box=SIMPLE_HEAD, title_justify="left", expand=True)
    for name in ("rank", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("id" if named else "row", justify="right", overflow="fold", max_width=ID_WIDTH)
    if in_passages:
        table.add_column("characters", justify="right", no_wrap=True)
        table.add_column("passage", overflow="fold", ratio=1)
    else:
        table.add_column("sentence", no_wrap=True, overflow="ellipsis", ratio=1)  # numbers keep their width
    for rank, hit in enumerate(hits, start=1):
        span = [f"{hit.span[0]:,}-{hit.span[1]:,}"] if hit.span else []
        name = CONTROLS.sub(" ", hit.id) if named else f"{hit.row + 1:,}"
        table.add_row(str(rank), f"{hit.cosine:.4f}", name, *span, CONTROLS.sub(" ", hit.sentence))
    return table


def write_hits(path: Path, queries: Mapping[str, str], answers: Sequence[Sequence[Hit]]) -> None:
    """Writes the hits of each query, in the format of the file's extension.

    Args:
      path: a `.jsonl` file, with an object per hit, or a `.trec` file of lines `query Q0 document rank score tag`.
      queries: maps ids to texts.
      answers: the hits of each query.

    Raises:
      InputError: an unknown extension; for `.trec`, an id that is not a single word, or that a query finds twice.
    """
    lines = _FORMATS[checked_format(path)](queries, answers)
    write_atomic(path, "".join(f"{line}\n" for line in lines))


def checked_format(path: Path) -> str:
    """The extension; raises `InputError` for an unknown one."""
    if path.suffix not in _FORMATS:
        raise InputError(f"--output={path} must end in {' or '.join(_FORMATS)}.")
    return path.suffix


def _json_lines(queries: Mapping[str, str], answers: Sequence[Sequence[Hit]]) -> Iterator[str]:
    for (name, query), hits in zip(queries.items(), answers, strict=True):
        for rank, hit in enumerate(hits, start=1):
            fields = {"query_id": name, "query": query, "rank": rank, "score": hit.cosine, "id": hit.id}
            span = dict(zip(("start", "end"), hit.span or (), strict=False))
            yield json.dumps(fields | span | {"text": hit.sentence}, ensure_ascii=False)


def _trec_lines(queries: Mapping[str, str], answers: Sequence[Sequence[Hit]]) -> Iterator[str]:
    for name, hits in zip(queries, answers, strict=True):
        counts = Counter(hit.id for hit in hits)
        for one in (name, *counts):
            if len(one.split()) != 1 or counts[one] > 1:
                fault = "appears twice in the corpus" if counts[one] > 1 else "is not one word"
                raise InputError(f"the id {one!r:.60} {fault}, which a .trec file cannot express; write a .jsonl file.")
        for rank, hit in enumerate(hits, start=1):
            yield f"{name} Q0 {hit.id} {rank} {hit.cosine:.8f} {TAG}"


_FORMATS = {".jsonl": _json_lines, ".trec": _trec_lines}
