"""Defines an evaluation: its name in `tasks`, its sets, how a set is read and scored, and how scores are shown.

`evals/suite.py` lists the package's evaluations. A module named by `parts` lists its own in `EVALUATIONS`.
"""

import csv
import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Integer

from jaxdistill.core import Embed, InputError, Split

ASYMMETRIC = "asymmetric "
"""Prefix of scores of retrieval in another model's index."""
PREFIXES = ("", ASYMMETRIC)


class MissingSet(InputError):
    """A set that was not given; its evaluation is skipped."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as evaluations see it."""

    embed: Embed
    embed_in_batches: Callable[[int], Embed]
    """Returns an `embed` with this batch size."""
    parameters: int
    size_bytes: int
    """Size of the weights files."""
    query: Embed | None = None
    document: Embed | None = None
    """The model with its prompts for queries and for documents."""
    similarity: str = "cosine"
    """How documents are ranked: by `cosine` or `dot`."""
    index: Embed | None = None
    index_similarity: str = "cosine"
    """The model that makes the index of asymmetric retrieval, with its prompt for documents."""
    teacher: Embed | None = None
    """The model whose neighbours are compared with this model's."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where sets are: the arguments of `jaxdistill.evaluate` of the same names, with files found."""

    tasks: tuple[str, ...] = ()
    data: str = ""
    """Empty: STS comes from the hub, and no other set is available."""
    pairs: str = ""
    entities: tuple[str, ...] = ()
    bitext: tuple[str, ...] = ()
    retrieval: tuple[str, ...] = ()
    split: Split = "test"
    text: tuple[Path, ...] = ()
    """Empty without a teacher."""
    asymmetric: bool = False
    """Whether to measure retrieval also in another model's index."""

    def part(self, part: str, task: str) -> Path:
        """A subfolder of the data folder; raises `MissingSet` without a data folder."""
        if not self.data:
            raise MissingSet(f"{task} needs data=FOLDER with {part}/, or JAXDISTILL_DATA.")
        return part_of(self.data, part)


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """A set that succeeds or fails as a whole."""

    __test__ = False  # not a test of pytest

    name: str
    protocol: str = ""
    files: tuple[Path, ...] = ()
    """All files that it reads; empty if it comes from the hub."""
    content: Any = None
    """What else `Evaluation.run` needs to know of it."""
    prefix: str = ""
    """One of `PREFIXES`, with which names of scores begin."""
    uses: tuple[str, ...] = ()
    """Other models on which the result depends: `index_model`, `teacher`."""
    is_repeatable: bool = True
    """Whether the same model always gets the same result, so that it can be cached."""
    is_averaged: bool = True
    """Whether averages include its scores."""
    source: str = ""
    """Digest of the code of an evaluation from outside the package."""

    @property
    def file(self) -> Path:
        """The only file."""
        return self.files[0]

    def digest(self) -> str:
        """SHA-256 of the name, the protocol, the code, and the names and contents of the files."""
        sha = hashlib.sha256(f"{self.name}\n{self.protocol}{self.source}".encode())
        for path in self.files:
            sha.update(path.name.encode(errors="surrogateescape"))
            sha.update(hashlib.sha256(path.read_bytes()).digest())
        return sha.hexdigest()


class Result(NamedTuple):
    """Result of a set: plain (JSON) data, which is cached."""

    scores: Mapping[str, float]
    scored_pairs: Mapping[str, Any] | None = None
    """Graded pairs to plot: the fields of a `pairs.ScoredPairs`."""
    details: Mapping[str, Sequence[float] | Mapping[str, float]] = MappingProxyType({})
    """What scores are computed from, for paired tests: the similarity of each pair in the file's order, or the value of each query."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """An evaluation: what it measures, and how tables show it."""

    task: str
    """Its name in `tasks`, which several evaluations may share."""
    names: tuple[str, ...] = ()
    """Further names in `tasks` that select it or some of its sets."""
    scores: tuple[str, ...]
    """Prefixes of its scores' names, up to the first slash."""
    sets: Callable[[Sources], Iterable[TestSet]]
    """Its sets; raises `MissingSet` if they were not given."""
    run: Callable[[Model, TestSet], Mapping[str, float] | Result]
    """Reads a set and scores a model."""
    averages: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda scores: {}
    """Averages of its scores, if all scores that they need were measured."""
    is_plain: bool = False
    """Whether its scores have units of their own, and are not shown × 100."""
    headings: Mapping[str, str] = field(default_factory=dict)
    """Columns of a report's first table: maps scores to headings, the most informative first."""
    is_main: Callable[[str], bool] = lambda name: True
    """Whether a score has a column, under its own name, if none of `headings` was measured."""
    dev_headings: Mapping[str, str] = field(default_factory=dict)
    """Like `headings`, for scores that choose checkpoints; their columns come last."""

    def owns(self, score: str) -> bool:
        """Whether a score of this name belongs to this evaluation."""
        return score.removeprefix(ASYMMETRIC).partition("/")[0] in self.scores


def average_of(average: str, scores: Sequence[str]) -> Callable[[Mapping[str, float]], Mapping[str, float]]:
    """The mean of these scores, named `average`, if all were measured."""
    return lambda measured: (
        {average: float(np.mean([measured[name] for name in scores]))} if {*scores} <= measured.keys() else {}
    )


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it is that part."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def cells(path: Path) -> list[list[str]]:
    """All rows of a `.tsv` without quoting or a `.csv` with standard quoting, plain or `.gz`, in UTF-8, a header among them.

    Leaves out outer white space and blank rows; all rows have the same number of cells.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix.lower()
    if kind not in (".tsv", ".csv"):
        raise InputError(f"{path}: a table is read from .tsv or .csv, plain or .gz; got {kind or 'no suffix'!r}.")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            split = csv.reader(file, strict=True) if kind == ".csv" else (line.split("\t") for line in file)
            rows = [row for row in ([cell.strip() for cell in row] for row in split) if any(row)]
    except (ValueError, OSError, csv.Error) as error:
        raise InputError(f"{path} is not a table in UTF-8: {error}") from error
    for number, row in enumerate(rows, 1):
        if len(row) != len(rows[0]):
            raise InputError(f"{path}: row {number} has {len(row)} cells, the first {len(rows[0])}: {row!r:.60}.")
    return rows


def read_table(path: str | Path, names: Sequence[str], *, needs_header: bool = True) -> dict[str, tuple[str, ...]]:
    """The columns of a table with a header, by name.

    Args:
      names: the columns that the table must have, in any case; their cells must not be empty.
      needs_header: False: a table without these names has no header, and exactly these columns.
    """
    rows = cells(Path(path))
    header = [name.lower() for name in rows[0]] if rows else []
    if {*names} <= {*header}:
        del rows[0]
    elif not needs_header and len(header) == len(names):
        header = list(names)
    else:
        raise InputError(
            f"{path}: the columns are {', '.join(header) or 'none':.200}; {' and '.join(names)} are needed."
        )
    if not rows:
        raise InputError(f"{path}: the table has no rows; at least one is needed.")
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name in names:
        if "" in table[name]:
            raise InputError(f"{path}: row {table[name].index('') + 1} has an empty cell in the column {name}.")
    return table


def labelled(
    path: str | Path, sentences: Sequence[str], classes: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], list[tuple[str, ...]]]:
    """Class numbers and sentences of the rows of a table.

    Args:
      sentences: names of the sentences' columns.
      classes: names in the column `label`; a class's number is its index.
    """
    table = read_table(path, ("label", *sentences))
    if wrong := [name for name in table["label"] if name not in classes]:
        raise InputError(f"{path}: label {wrong[0]!r:.40} is not one of {', '.join(classes)}.")
    labels = np.array([classes.index(name) for name in table["label"]])
    return labels, list(zip(*(table[name] for name in sentences), strict=True))
