"""Defines an evaluation: its name for `--tasks`, its units, and how its scores are shown.

Each file of `evals/` that measures models has an `EVALUATION`, which `evals/suite.py` finds. A module named by `--parts` lists
its own in `EVALUATIONS`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, Scorer, Split

Scoring = Callable[[Embed], Mapping[str, float]]
"""Maps `embed` to named scores: a `core.Task`, or a task that needs vectors."""
Searching = Callable[[Embed, Embed | None], dict[str, Any]]
"""Maps a model and the index model (None: the model makes its own index) to a result of `Unit.run`."""
SPEARMAN = "Spearman × 100"
PLAIN = "measure"
"""Heading of scores with their own units, which are not multiplied by 100."""
ASYMMETRIC = "asymmetric "
"""Prefix of scores of retrieval in another model's index."""
RERANKED = "reranked "
"""Prefix of scores of retrieval after a cross-encoder has reordered the first documents."""
Ranking = tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]
"""Scores and indices of the best documents for each query, best first; a score of minus infinity means no document."""


class InRoles(NamedTuple):
    """A model with its prompt for queries, and with its prompt for documents."""

    query: Embed
    document: Embed


class IndexModel(NamedTuple):
    """The model that makes an index: without a role, and with its prompt for documents."""

    embed: Embed
    document: Embed


@dataclass(frozen=True, kw_only=True)
class Model:
    """The interface of a model for units."""

    embed: Embed
    embed_in_batches: Callable[[int], Embed]
    """Returns an `embed` with this batch size."""
    parameters: int
    size_bytes: int
    """Size of the weights files."""
    in_roles: InRoles | None = None
    """The model with its prompts; None: it has no vectors."""
    similarity: str = "cosine"
    """How documents are ranked: by `cosine` or `dot`."""
    index: IndexModel | None = None
    """The model that makes the index of asymmetric retrieval."""
    index_similarity: str = "cosine"
    rank: Callable[[Sequence[str], Sequence[str], int], Ranking] | None = None
    """Ranks documents directly, for a model without vectors: (queries, documents, number of documents to return)."""
    reranker: Scorer | None = None
    """A cross-encoder that reorders the first documents of each query."""
    teacher: Embed | None = None
    """The model whose neighbours are compared with this model's."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of an evaluation that succeeds or fails as a whole."""

    name: str
    protocol: str
    files: tuple[Path, ...]
    """All files that it reads; empty if its set comes from the hub."""
    run: Callable[[Model], dict[str, Any]]
    """Reads the files and evaluates a model. Returns plain data, which is cached as JSON: `scores` by name and, optionally,
    `neighbours` (sentences to show), `scored_pairs` (graded pairs to plot) and `note` (a line to print)."""
    is_repeatable: bool = True
    """Whether the same model always gets the same result, so that it can be cached."""
    asks: tuple[Literal["index", "reranker", "teacher"], ...] = ()
    """Other models that the result depends on."""
    is_averaged: bool = True
    """Whether averages include its scores."""
    content: str = ""
    """Digest of what it reads besides files; for evaluations from outside the package, after one of their code."""

    def digest(self) -> str:
        """SHA-256 of the name, the protocol, the content, and the names and contents of the files."""
        sha = hashlib.sha256(f"{self.name}\n{self.protocol}{self.content}".encode())
        for path in self.files:
            sha.update(path.name.encode(errors="surrogateescape"))
            sha.update(hashlib.sha256(path.read_bytes()).digest())
        return sha.hexdigest()


@dataclass(frozen=True)
class Absent:
    """A part of an evaluation whose set is missing."""

    reason: str
    """A line that says what is missing."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The requested tasks, and where their sets are."""

    data: str = ""
    """The data folder; empty: STS comes from the hub, and no other set is available."""
    pairs: str = ""
    """The user's graded pairs."""
    entities: tuple[str, ...] = ()
    """The user's files of `query, entity, label`."""
    bitext: tuple[str, ...] = ()
    """The user's files of translations, or folders of them; empty: the data folder's."""
    retrieval: tuple[str, ...] = ()
    """Sets of documents in BEIR's form; empty: the data folder's."""
    split: Split = "test"
    """Split of these sets' judgements."""
    text: tuple[Path, ...] = ()
    """Files of sentences on which models are compared with a teacher; empty without a teacher."""
    asymmetric: bool = False
    """Whether to measure retrieval also in another model's index."""
    reranked: bool = False
    """Whether to measure retrieval also after a cross-encoder has reordered the first documents."""
    tasks: tuple[str, ...] = ()
    """The names in `--tasks`."""


def records_digest(content: Any) -> str:
    """SHA-256 of plain (JSON) data."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def own_names(measured: Collection[str]) -> Mapping[str, str]:
    """One column per score, headed by its name."""
    return {name: name for name in measured}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How tables and reports show the scores of an evaluation."""

    measure: str = SPEARMAN
    """Heading of the printed table; `PLAIN` if the scores have units of their own."""
    headings: Callable[[Collection[str]], Mapping[str, str]] = own_names
    """Columns of a report's first table: maps scores to headings, the most informative first; scores that were not measured have none."""
    dev_headings: Mapping[str, str] = field(default_factory=dict)
    """The same for scores that choose checkpoints; their columns come last."""
    drawn: tuple[str, ...] = ()
    """Units whose `scored_pairs` a report may plot; it plots the first one that was measured."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation: what it measures, and how that is shown."""

    group: str = ""
    """Its name for `--tasks`, which several evaluations may share; empty: only trainings run it."""
    names: tuple[str, ...] = ()
    """Further names for `--tasks` that select it or some of its sets."""
    scores: tuple[str, ...]
    """Prefixes of its scores' names, up to the first slash."""
    units: Callable[[Sources], Iterable[Unit | Absent]] = lambda sources: ()
    """Its units, with an `Absent` for each missing set; none if only trainings run it."""
    averages: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda scores: {}
    """Averages of its scores, if all scores that they need were measured; a failed unit's score is NaN."""
    shown: Shown = Shown()

    def owns(self, score: str) -> bool:
        """Whether a score of this name belongs to this evaluation."""
        return score.removeprefix(RERANKED).removeprefix(ASYMMETRIC).partition("/")[0] in self.scores


def average_of(average: str, scores: Sequence[str]) -> Callable[[Mapping[str, float]], Mapping[str, float]]:
    """The mean of these scores, named `average`, if all were measured; likewise for asymmetric retrieval."""

    def averages(measured: Mapping[str, float]) -> Mapping[str, float]:
        return {
            f"{prefix}{average}": float(np.mean([measured[f"{prefix}{name}"] for name in scores]))
            for prefix in ("", ASYMMETRIC)
            if all(f"{prefix}{name}" in measured for name in scores)
        }

    return averages


def average_heading(average: str, heading: str) -> Callable[[Collection[str]], Mapping[str, str]]:
    """A column for the average; if it was not measured, one column per score."""

    def headings(measured: Collection[str]) -> Mapping[str, str]:
        averages = {f"{prefix}{average}": f"{prefix}{heading}" for prefix in ("", ASYMMETRIC)}
        return {name: averages[name] for name in averages if name in measured} or own_names(measured)

    return headings


def task_unit(name: str, protocol: str, files: Sequence[Path], make: Callable[[Model], Scoring]) -> Unit | Absent:
    """A unit that runs one task; `Absent` if a file is missing.

    Args:
      make: makes the task, which reads the files; called when the unit runs.
    """

    def run(model: Model) -> dict[str, Any]:
        return {"scores": dict(make(model)(model.embed))}

    return absent(name, files) or Unit(name=name, protocol=protocol, files=tuple(files), run=run)


def search_units(
    sources: Sources, name: str, protocol: str, path: Path, *, values: Searching
) -> Iterator[Unit | Absent]:
    """The units of a file that is searched: by the model alone and, if there is an index model, in that model's vectors.

    Names of the second unit and its scores begin with `ASYMMETRIC`.

    Args:
      values: reads the file and searches.
    """
    for prefix in ("", ASYMMETRIC) if sources.asymmetric else ("",):
        yield absent(f"{prefix}{name}", [path]) or Unit(
            name=f"{prefix}{name}",
            protocol=protocol,
            files=(path,),
            run=partial(_search_values, values, prefix),
            asks=("index",) if prefix else (),
        )


def _search_values(values: Searching, prefix: str, model: Model) -> dict[str, Any]:
    result = values(model.embed, model.index.embed if prefix and model.index else None)
    return result | {"scores": {f"{prefix}{name}": value for name, value in result["scores"].items()}}


def set_units(
    sources: Sources,
    prefix: str,
    names: Sequence[str],
    *,
    files: Callable[[str, str], Sequence[Path]],
    protocol: Callable[[str], str],
    task: Callable[[str, str], Scoring],
) -> Iterator[Unit | Absent]:
    """A unit `PREFIX/NAME` for each named set of the data folder.

    Args:
      files: maps the data folder and the name of a set to its files; `task` maps them to its task.
    """
    for name in names:
        if sources.data:
            make = partial(task, sources.data, name)
            yield task_unit(
                f"{prefix}/{name}", protocol(name), files(sources.data, name), lambda model, make=make: make()
            )
        else:
            yield no_folder(f"{prefix}/{name}")


def absent(name: str, files: Sequence[Path]) -> Absent | None:
    """`Absent` if one of the files does not exist."""
    missing = [path for path in files if not path.is_file()]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return Absent(f"{name}: {missing[0]} is not there{more}.") if missing else None


def no_folder(name: str) -> Absent:
    """The `Absent` of a set that needs a data folder."""
    return Absent(f"{name} needs --data=FOLDER with multilingual/, transfer/ and so on, or JAXDISTILL_DATA.")
