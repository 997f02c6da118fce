"""Reads published scores of papers, which programs show beside measured ones.

`configs/papers/NAME.toml` holds a paper's tables with the cells as printed, such as (without the tables' `source`, `title` and `columns`):

    [presets]                                     # the rows that a preset's stages repeat in turn; the first name that matches counts
    "kd.py:paper:*" = ["kd:*", "distilcse-kd:*"]  # `*` matches the preset's argument, and stands for it in rows; "" or []: no row
    [[tables]]
    scores = ["", "sts12"]                        # each column's score, as `jaxdistill.evaluate` names it; "": not measured here
    rows = [{ key = "kd:bert-base", cells = ["110M", 75.6] }]  # has the reference `distilcse:kd:bert-base` in distilcse.toml
    [[tables]]
    scores = ["average", "average"]
    keys = ["bert-tiny", "bert-base"]             # only if columns are models: each stands for `COLUMN` in turn
    rows = [{ key = "kd:COLUMN", cells = [73.32, 77.03] }]
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from jaxdistill.core import InputError, did_you_mean
from jaxdistill.core.paths import configs_folder

COLUMN = "COLUMN"


@dataclass(frozen=True, kw_only=True)
class Cited:
    """The scores of one row of a paper."""

    reference: str
    """`PAPER:ROW`."""
    scores: dict[str, float]
    """Maps names of scores to the paper's values, in [-1, 1]."""
    sources: dict[str, str]
    """Maps names of scores to their tables in the paper."""

    @property
    def label(self) -> str:
        """Name of the row in tables."""
        return f"paper, {self.reference}"

    @property
    def tables(self) -> str:
        """The tables of the scores, in one line."""
        return ", ".join(dict.fromkeys(self.sources[name] for name in self.scores))

    def only(self, names: Iterable[str]) -> "Cited":
        """The row with only these scores, in this order."""
        return replace(self, scores={name: self.scores[name] for name in names if name in self.scores})


@functools.cache
def papers() -> Mapping[str, Mapping[str, Any]]:
    """Maps papers to the content of their files; cells are strings or whole numbers, as printed."""
    files = sorted((configs_folder() / "papers").glob("*.toml"))
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8"), parse_float=str) for path in files}


@functools.cache
def rows() -> Mapping[str, Cited]:
    """Maps references to rows, of all papers. If two tables of a paper disagree, the first one counts."""
    by_reference: dict[str, Cited] = {}
    tables = [(paper, table) for paper, content in papers().items() for table in content["tables"]]
    for paper, table in tables:
        keys = table.get("keys", [""] * len(table["columns"]))
        for row in table["rows"]:
            for key, score, cell in zip(keys, table["scores"], row["cells"], strict=True):
                if score:  # something here measures the column
                    reference = f"{paper}:{row['key'].replace(COLUMN, key)}"
                    cited_row = by_reference.setdefault(reference, Cited(reference=reference, scores={}, sources={}))
                    cited_row.scores.setdefault(score, float(cell) / 100)  # keeps the value of an earlier table
                    cited_row.sources.setdefault(score, table["source"])
    return by_reference


def cited(reference: str, option: str) -> Cited:
    """The row of a paper's table that a reference names; an unknown reference raises an `InputError` that names `option`."""
    if reference not in rows():
        raise InputError(
            f"{option}={reference} is not a row of {', '.join(papers())}; give PAPER:ROW, such as congen:tinybert-l4 "
            f"(configs/papers/ has all).{did_you_mean(reference, list(rows()))}"
        )
    return rows()[reference]


def references_of(preset: str, stages: int) -> list[str]:
    """For each stage of a preset (`FILE.py:PRESET:ARGUMENT`), the reference to the paper's row that it reproduces; an empty text if
    none. More stages than rows begin with the first row again, as Trans-Encoder's forms alternate."""
    for paper, content in papers().items():
        for pattern, row_keys in content["presets"].items():
            if match := re.fullmatch(re.escape(pattern).replace(r"\*", "(?P<argument>[^:]+)"), preset):
                argument = match.groupdict().get("argument", "")  # a pattern without `*` has none
                references = [f"{paper}:{key.replace('*', argument)}" for key in row_keys]
                # A paper need not have a row for every argument.
                existing = [reference if reference in rows() else "" for reference in references or [""]]
                return [existing[stage % len(existing)] for stage in range(stages)]
    return [""] * stages
