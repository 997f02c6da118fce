"""Defines an evaluation: its name in `tasks`, its sets, how a set is read and scored, and how scores are shown.

`evals/suite.py` lists the package's evaluations; a user's module lists its own in `EVALUATIONS`.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Integer, Real

from jaxdistill.core import Embed, InputError, Split
from jaxdistill.data.text import content_digest, prefix, read
from jaxdistill.models.vectors import unit_rows


class MissingSet(InputError):
    """Raised if an evaluation has no set; the evaluation is then skipped."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, or an ensemble of several, as evaluations see it."""

    embed: Embed
    name: str = ""
    digest: str = ""
    """Digest of everything that determines its scores."""
    width: int = 0
    """Width of its vectors; 0 if it only scores pairs, or if the vectors are whitened."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How it reads texts (`pooling`, `max_length` and so on), or the `members` of an ensemble; for the results file."""
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
    index_model: "Model | None" = None
    """The model that makes the index of asymmetric retrieval."""
    teacher: "Model | None" = None
    """The model whose neighbours are compared with this model's."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where sets are: the arguments of `jaxdistill.evaluate` of the same names."""

    tasks: Sequence[str] = ()
    data: str = ""
    """Empty: STS comes from the hub, and no other set is available."""
    pairs: str = ""
    entities: Sequence[str] = ()
    bitext: Sequence[str] = ()
    retrieval: Sequence[str] = ()
    split: Split = "test"
    index_model: str = ""
    text: Sequence[str] = ()
    teacher: str = ""
    mteb: str = ""
    mteb_folder: Path | None = None
    """Where mteb writes its results; None: in its own cache."""

    def subfolder(self, name: str) -> Path:
        """A subfolder of the data folder; raises `MissingSet` without a data folder."""
        if not self.data:
            raise MissingSet(f"needs data=FOLDER with {name}/, or JAXDISTILL_DATA")
        return Path(self.data) / name


@dataclass(frozen=True, kw_only=True)
class TestSet:
    """A set on which models are scored; it succeeds or fails as a whole."""

    __test__ = False  # not a test of pytest

    name: str
    protocol: str = ""
    files: tuple[str | Path, ...] = ()
    """All files that it reads; `raw:FILE` and `quoted:FILE` say how quotes in a table are read. Empty if it comes from the hub."""
    content: Any = None
    """What else `Evaluation.run` needs to read or score it."""
    references: tuple[str, ...] = ()
    """Fields of `Model` with other models on which the result depends: `index_model`, `teacher`."""
    is_repeatable: bool = True
    """Whether the same model always gets the same result, so that it can be cached."""

    @property
    def file(self) -> str | Path:
        """The only file."""
        return self.files[0]

    @property
    def paths(self) -> list[Path]:
        """The files without their prefixes."""
        return [Path(file.removeprefix(prefix(file))) for file in map(str, self.files)]

    def digest(self) -> str:
        """SHA-256 of the name, the protocol, and the contents of the files."""
        content = content_digest(list(map(str, self.files)))
        return hashlib.sha256(f"{self.name}\n{self.protocol}\n{content}".encode()).hexdigest()


class Result(NamedTuple):
    """A model's result on a set, as plain (JSON) data that can be cached."""

    scores: Mapping[str, float]
    scored_pairs: Mapping[str, Any] | None = None
    """Graded pairs to plot, as `pairs.scored_pairs` returns them."""
    details: Mapping[str, Sequence[float] | Mapping[str, float]] = MappingProxyType({})
    """Maps scores to the values behind them, for paired tests: each pair's similarity in the file's order, or a value for each query id."""


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
    has_units: bool = False
    """Whether its scores have units of their own, and are not shown × 100."""
    headings: Mapping[str, str] = field(default_factory=dict)
    """Rows of a report's first table: maps scores to headings, the most informative first. If none was measured, all of its
    scores × 100 have a row there."""

    def owns(self, score: str) -> bool:
        """Whether a score of this name belongs to this evaluation."""
        return score.partition("/")[0] in self.scores


def average_of(average: str, scores: Sequence[str]) -> Callable[[Mapping[str, float]], Mapping[str, float]]:
    """Makes `Evaluation.averages` for one average, called `average`: the mean of `scores`, if all of them were measured."""

    def averages(measured: Mapping[str, float]) -> Mapping[str, float]:
        values = [measured[name] for name in scores if name in measured]
        return {average: float(np.mean(values))} if len(values) == len(scores) else {}

    return averages


class EmbeddingCache:
    """An `Embed` that embeds each distinct sentence once and keeps its vector in memory, because sets share sentences. All sets of
    `evaluate` have 300,000 sentences: 0.5 GB of vectors for MiniLM. A cached vector may differ from a new one by rounding."""

    def __init__(self, embed: Embed):
        self._embed = embed
        self._vectors: dict[str, np.ndarray] = {}

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            self._vectors.update(zip(new, np.asarray(self._embed(new)), strict=True))
        vectors = [self._vectors[sentence] for sentence in sentences]
        return np.stack(vectors) if vectors else np.asarray(self._embed([]))  # [0, e]: `stack` needs a vector


def read_table(file: str | Path, columns: Sequence[str], *, headerless: bool = False) -> list[tuple[str, ...]]:
    """The cells of a table's rows in some columns, also numbers, as text without outer white space; blank rows are left out. `headerless`:
    the file may lack a header, if it has just these columns in this order. Raises `InputError` for a missing column or an empty cell."""
    rows = []
    for row in read([str(file)], columns, numbers=True, headerless=headerless):
        cells = tuple(map(str.strip, row))
        if all(cells):
            rows.append(cells)
        elif any(cells):
            raise InputError(f"{file}: the row {cells!r:.60} has an empty cell; {', '.join(columns)} are needed.")
    return rows


def labelled(
    file: str | Path, columns: Sequence[str], classes: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], list[tuple[str, ...]]]:
    """Reads a table: for each row, the index of its `label` in `classes`, and its cells in `columns`. Refuses any other label."""
    rows = read_table(file, ("label", *columns))
    if wrong := [label for label, *_ in rows if label not in classes]:
        raise InputError(f"{file}: label {wrong[0]!r:.40} is not one of {', '.join(classes)}.")
    return np.array([classes.index(label) for label, *_ in rows]), [row[1:] for row in rows]


def spearman(reference: Real[np.ndarray, " n"], similarities: Float[np.ndarray, " n"], *, name: str) -> float:
    """Spearman's rank correlation, in [-1, 1]. Raises `InputError` for the pairs called `name` if an array has only one value."""
    refuse_collapsed(reference, f"{name}: the reference finds all {len(reference)} pairs")
    refuse_collapsed(similarities, f"{name}: the model finds all {len(similarities)} pairs")
    return float(np.corrcoef(ranks(reference), ranks(similarities))[1, 0])


def area_under_roc(labels: Real[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> float:
    """Area under the ROC curve: the probability, in [0, 1], that a pair of label 1 scores above one of label 0; ties count half."""
    positives = ranks(scores)[labels == 1]
    least = len(positives) * (len(positives) + 1) / 2  # their sum, if every pair of label 0 scores above them
    return float((positives.sum() - least) / (len(positives) * np.sum(labels == 0)))


def ranks(values: Real[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Ranks from 1; equal values share their mean rank, and NaN makes all NaN. `scipy.stats`, which has it, takes a second to import."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.where(np.isnan(values).any(), np.nan, mean_ranks[inverse])


def refuse_collapsed(values: Real[np.ndarray, " n"], finding: str) -> None:
    """Raises `InputError` if all values are equal. `finding` begins its message, such as `the model finds all 9 pairs`."""
    if np.ptp(values) <= 1e-7 * np.abs(values).max():  # they differ by float32 rounding alone
        raise InputError(f"{finding} equally similar ({values[0]:.4g}): it has collapsed to one vector or one score.")


def refuse_same_vectors(vectors: Float[np.ndarray, "n e"], texts: Sequence[str], kind: str) -> None:
    """Raises `InputError` if all vectors point the same way although texts differ; `kind` names the texts, such as `sentences`."""
    if len(set(texts)) > 1:
        unit = unit_rows(vectors)
        reference = unit[np.argmax(np.any(vectors, axis=1))]  # the first vector that is not zero
        similarities = np.einsum("ne,e->n", unit, reference)
        refuse_collapsed(similarities, f"the model finds all {len(vectors):,} {kind}")
