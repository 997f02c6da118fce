"""Defines an evaluation: its name in `tasks`, its sets, how a set is read and scored, and how scores are shown.

`evals/suite.py` lists the package's evaluations; a user's module lists its own in `EVALUATIONS`. Evaluations share the readers of
tables, rank correlation and the area under the ROC curve at the end of this file. Vectors that are all the same are an error.
"""

import csv
import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, Real

from jaxdistill.core import Embed, InputError, Split
from jaxdistill.core.files import foreign_errors
from jaxdistill.data.text import looks_quoted
from jaxdistill.models.vectors import unit_rows

LONGEST_CELL = 2**31 - 1
"""Most characters of a quoted cell; Python's own limit, 131,072, is less than a long document has."""
CONSTANT = 1e-7
"""Similarities that span at most this fraction of the largest differ by float32 rounding alone, so they do not rank anything."""


class MissingSet(InputError):
    """Raised if an evaluation has no set; the evaluation is then skipped."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as evaluations see it."""

    embed: Embed
    name: str = ""
    """Its name in results."""
    digest: str = ""
    """Digest of everything that determines its scores."""
    parameters: int = 0
    size_bytes: int = 0
    """Size of the weights files."""
    timed: Embed | None = None
    """The model for measuring speed: without a cache, on this process's own devices."""
    query: Embed | None = None
    document: Embed | None = None
    """The model with its prompts for queries and for documents."""
    similarity: str = "cosine"
    """How documents are ranked: by `cosine` or `dot`."""
    index: Embed | None = None
    """The model that makes the index of asymmetric retrieval, with its prompt for documents."""
    index_similarity: str = "cosine"
    """How documents in that index are ranked."""
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
    mteb: str = ""
    mteb_folder: Path | None = None
    """Where mteb writes its results; None: in its own cache."""
    asymmetric: bool = False
    """Whether to measure retrieval also in another model's index."""

    def part(self, part: str) -> Path:
        """A subfolder of the data folder; raises `MissingSet` without a data folder."""
        if not self.data:
            raise MissingSet(f"needs data=FOLDER with {part}/, or JAXDISTILL_DATA")
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
    uses: tuple[str, ...] = ()
    """Other models on which the result depends: `index_model`, `teacher`."""
    is_repeatable: bool = True
    """Whether the same model always gets the same result, so that it can be cached."""

    @property
    def file(self) -> Path:
        """The only file."""
        return self.files[0]

    def digest(self) -> str:
        """SHA-256 of the name, the protocol, and the names and contents of the files."""
        sha = hashlib.sha256(f"{self.name}\n{self.protocol}".encode())
        for path in self.files:
            sha.update(path.name.encode(errors="surrogateescape"))
            sha.update(hashlib.sha256(path.read_bytes()).digest())
        return sha.hexdigest()


class Result(NamedTuple):
    """Result of a set: plain (JSON) data, which is cached."""

    scores: Mapping[str, float]
    scored_pairs: Mapping[str, Any] | None = None
    """Graded pairs to plot, as `pairs.scored_pairs` returns them."""
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
    """Rows of a report's first table: maps scores to headings, the most informative first. If none was measured, all of its
    scores × 100 have a row there."""

    def owns(self, score: str) -> bool:
        """Whether a score of this name belongs to this evaluation."""
        return score.partition("/")[0] in self.scores


def average_of(average: str, scores: Sequence[str]) -> Callable[[Mapping[str, float]], Mapping[str, float]]:
    """The mean of these scores, named `average`, if all were measured."""
    return lambda measured: (
        {average: float(np.mean([measured[name] for name in scores]))} if {*scores} <= measured.keys() else {}
    )


class EmbeddingCache:
    """An `Embed` that computes each distinct sentence once and keeps its vector in memory.

    Sets share sentences: SST2 has two thirds of MR's, SICK-E most of SICK-R's. A cached vector may differ from a new one by
    rounding. All tasks of `evaluate` together keep 300,000 vectors: 0.5 GB for MiniLM, 1.3 GB for 1,024 dimensions.
    """

    def __init__(self, embed: Embed):
        self._embed, self._vectors = embed, {}

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            self._vectors.update(zip(new, np.asarray(self._embed(new)), strict=True))
        vectors = [self._vectors[sentence] for sentence in sentences]
        return np.stack(vectors) if vectors else np.asarray(self._embed([]))


def part_of(folder: str | Path, part: str) -> Path:
    """`folder/part` of a data folder, or `folder` itself if it has no such subfolder but `.gz` files."""
    inside = Path(folder) / part
    return Path(folder) if not inside.is_dir() and any(Path(folder).glob("*.gz")) else inside


def opened(path: Path) -> IO[str]:
    """Opens a text in UTF-8, plain or `.gz`."""
    return (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="\n")


def table_suffix(path: Path) -> str:
    """The suffix of a table, such as `.csv`, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def cells(path: Path) -> list[list[str]]:
    """All rows of a `.csv`, or of any other table as tab-separated cells, which are read as quoted if they look so; plain or `.gz`.

    Leaves out outer white space and blank rows; a header is a row.
    """
    separator = "," if table_suffix(path) == ".csv" else "\t"
    with foreign_errors(f"{path} is not a table in UTF-8"), opened(path) as file:
        is_quoted = separator == "," or looks_quoted(path)
        csv.field_size_limit(LONGEST_CELL)
        split = csv.reader(file, delimiter=separator, strict=True) if is_quoted else (line.split("\t") for line in file)
        stripped = ([cell.strip() for cell in row] for row in split)
        return [row for row in stripped if any(row)]


def read_table(path: str | Path, names: Sequence[str], *, needs_header: bool = True) -> dict[str, tuple[str, ...]]:
    """The columns of a table with a header, by their lower-case names; raises `InputError` for a missing column, a row of another
    length, or an empty cell.

    Args:
      names: columns that the table must have, in lower case; the header's case does not matter.
      needs_header: False: a table whose first row lacks these names has no header, and exactly these columns.
    """
    if table_suffix(Path(path)) not in (".csv", ".tsv"):
        raise InputError(f"{path} must be a .tsv or .csv table, which may be compressed as .gz.")
    rows = cells(Path(path))
    header = [name.lower() for name in rows[0]] if rows else []
    if {*names} <= {*header}:
        del rows[0]
    elif not needs_header and len(header) == len(names):
        header = list(names)
    if not rows or any(header.count(name) != 1 for name in names):
        raise InputError(
            f"{path}: the columns are {', '.join(header) or 'none':.200}, of {len(rows)} rows; {' and '.join(names)} are needed, "
            "each once, and at least one row."
        )
    if ragged := [row for row in rows if len(row) != len(header)]:
        raise InputError(f"{path}: a row has {len(ragged[0])} cells instead of {len(header)}: {ragged[0]!r:.60}.")
    table = dict(zip(header, zip(*rows, strict=True), strict=True))
    for name in names:
        if "" in table[name]:
            row = rows[table[name].index("")]
            raise InputError(f"{path}: the row {row!r:.60} has an empty cell in the column {name}.")
    return table


def labelled(
    path: str | Path, sentences: Sequence[str], classes: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], list[tuple[str, ...]]]:
    """For each row of a table, the index in `classes` of its `label`, and its cells in the columns `sentences`; raises `InputError`
    for any other label."""
    table = read_table(path, ("label", *sentences))
    if wrong := [name for name in table["label"] if name not in classes]:
        raise InputError(f"{path}: label {wrong[0]!r:.40} is not one of {', '.join(classes)}.")
    labels = np.array([classes.index(name) for name in table["label"]])
    return labels, list(zip(*(table[name] for name in sentences), strict=True))


def spearman(reference: Real[np.ndarray, " n"], similarities: Float[np.ndarray, " n"], *, what: str) -> float:
    """Spearman's rank correlation, in [-1, 1]; ties get their mean rank. Raises `InputError`, which names the pairs as `what`, if a
    side is constant."""
    refuse_collapsed(reference, f"{what}: the reference finds all {len(reference)} pairs")
    refuse_collapsed(similarities, f"{what}: the model finds all {len(similarities)} pairs")
    from scipy import stats  # imported here: it takes over a second

    correlation: Any = stats.spearmanr(reference, similarities)
    return float(correlation.statistic)


def area_under_roc(labels: Real[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Area under the ROC curve: the probability, in [0, 1], that a pair of label 1 scores above one of label 0; ties count half."""
    positives, negatives = scores[labels == 1], scores[labels == 0]
    from scipy import stats  # imported here: it takes over a second

    test: Any = stats.mannwhitneyu(positives, negatives, method="asymptotic")
    return float(test.statistic / (len(positives) * len(negatives)))


def refuse_collapsed(similarities: Real[np.ndarray, " n"], begin: str) -> None:
    """Raises `InputError` if all similarities are the same; `begin` is the start of the message."""
    if np.ptp(similarities) <= CONSTANT * np.abs(similarities).max():
        what = f"equally similar ({similarities[0]:.4g}): it has collapsed to one vector or one score for everything"
        raise InputError(f"{begin} {what}.")


def refuse_same_vectors(vectors: Float[np.ndarray, "n e"], texts: Sequence[str], what: str) -> None:
    """Raises `InputError` if all vectors point the same way although texts differ; `what` names the texts."""
    if len(set(texts)) > 1:
        unit = unit_rows(vectors)
        similarities = np.einsum("ne,e->n", unit, unit[np.argmax(np.any(vectors, axis=1))])
        refuse_collapsed(similarities, f"the model finds all {len(vectors):,} {what}")
