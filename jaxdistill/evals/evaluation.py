"""Defines an evaluation: its name for `--tasks`, its units, and how its scores are shown.

Each file of `evals/` that measures models has an `EVALUATION`, which `evals/suite.py` finds. A module that `--parts` names
brings its own in a list, `EVALUATIONS`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Embed, Scorer, Split

Scoring = Callable[[Embed], Mapping[str, float]]
"""A `core.Task`, or one that needs vectors: from `embed` to named scores."""
SPEARMAN = "Spearman × 100"
PLAIN = "measure"
"""Heading of scores in units of their own, which are not multiplied by 100."""
ASYMMETRIC = "asymmetric "
"""Prefix of the scores of retrieval in an index that another model made."""
RERANKED = "reranked "
"""Prefix of the scores of documents whose first ones a cross-encoder put in order."""
Ranking = tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]
"""Scores and places of the best documents for each query, best first; with a score of minus infinity a place is empty."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as units see it."""

    embed: Embed
    embed_in_batches: Callable[[int], Embed]
    """Returns an `embed` that computes this many sentences together."""
    parameters: int
    size_bytes: int
    """Size of the weights files."""
    index: Embed | None = None
    """The model that makes the index of asymmetric retrieval."""
    embed_query: Embed | None = None
    """`embed` with the model's prompt for queries. `embed_document` uses its prompt for documents, and `index_document`
    uses the index model's."""
    embed_document: Embed | None = None
    index_document: Embed | None = None
    rank: Callable[[Sequence[str], Sequence[str], int], Ranking] | None = None
    """Ranks this many documents for each query, of a model that has no vectors."""
    reranker: Scorer | None = None
    """A cross-encoder for the first documents of each query."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of an evaluation that succeeds or fails as a whole."""

    name: str
    protocol: str
    files: tuple[Path, ...]
    """All files that it reads; empty if its set comes from the hub."""
    run: Callable[[Model], dict[str, Any]]
    """Reads the files and evaluates a model. Returns plain data, which is cached as JSON: `scores` by name, `neighbours` if
    there are sentences to show, `scored_pairs` if there are graded pairs to draw."""
    is_repeatable: bool = True
    """Whether the same model always gets the same result, so that it can be cached."""
    asks_index: bool = False
    """Whether the result also depends on the index model."""
    asks_reranker: bool = False
    """Whether the result also depends on the reranker."""
    is_averaged: bool = True
    """Whether its scores are part of averages."""
    content: str = ""
    """Digest of what it reads besides files."""
    source: str = ""
    """Digest of the code, for evaluations from outside the package."""

    def digest(self) -> str:
        """SHA-256 of the name, the protocol, the content, and the names and contents of the files."""
        sha = hashlib.sha256(f"{self.name}\n{self.protocol}{self.source}{self.content}".encode())
        for path in self.files:
            sha.update(path.name.encode(errors="surrogateescape"))
            sha.update(hashlib.sha256(path.read_bytes()).digest())
        return sha.hexdigest()


@dataclass(frozen=True)
class Absent:
    """A part of an evaluation whose set is not there."""

    reason: str
    """What is missing, in a line."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The tasks that are asked for, and where their sets are."""

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
    """Which of their judgements are used."""
    asymmetric: bool = False
    """Whether retrieval is also measured in an index that another model made."""
    reranked: bool = False
    """Whether documents are also measured after a cross-encoder has put the first ones in order."""
    tasks: tuple[str, ...] = ()
    """The names in `--tasks`."""


def content_digest(content: Any) -> str:
    """SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def own_names(measured: Collection[str]) -> Mapping[str, str]:
    """A column for each score, headed by its name."""
    return {name: name for name in measured}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation as the command line and reports see it."""

    group: str = ""
    """Its name for `--tasks`, which evaluations may share; empty: only trainings run it."""
    names: tuple[str, ...] = ()
    """Further names for `--tasks` that choose it or some of its sets."""
    scores: tuple[str, ...]
    """First parts of its score names, up to a slash."""
    measure: str = SPEARMAN
    """Heading of the printed table of its scores; `PLAIN` if they have units of their own."""
    units: Callable[[Sources], Iterable[Unit | Absent]] = lambda sources: ()
    """Its units, with an `Absent` for each set that is not there; none of an evaluation that only trainings run."""
    averages: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda scores: {}
    """Averages of its scores, if every score that they need was measured; units that failed are NaN among the scores."""
    headings: Callable[[Collection[str]], Mapping[str, str]] = own_names
    """Columns of a report's first table: measured score to heading, the most telling first."""
    dev_headings: Mapping[str, str] = field(default_factory=dict)
    """The same for scores that choose checkpoints; their columns come after all evaluations'."""
    drawn: tuple[str, ...] = ()
    """Units whose `scored_pairs` a report may draw; it draws the first that was measured."""

    def owns(self, score: str) -> bool:
        """Whether a score of this name belongs to this evaluation."""
        return score.removeprefix(RERANKED).removeprefix(ASYMMETRIC).partition("/")[0] in self.scores


def average_of(average: str, scores: Sequence[str]) -> Callable[[Mapping[str, float]], Mapping[str, float]]:
    """The mean of these scores, named `average`, if all of them were measured; likewise of asymmetric retrieval."""

    def averages(measured: Mapping[str, float]) -> Mapping[str, float]:
        return {
            f"{prefix}{average}": float(np.mean([measured[f"{prefix}{name}"] for name in scores]))
            for prefix in ("", ASYMMETRIC)
            if all(f"{prefix}{name}" in measured for name in scores)
        }

    return averages


def average_heading(average: str, heading: str) -> Callable[[Collection[str]], Mapping[str, str]]:
    """A column for the average; if it was not measured, a column for each score."""

    def headings(measured: Collection[str]) -> Mapping[str, str]:
        averages = {f"{prefix}{average}": f"{prefix}{heading}" for prefix in ("", ASYMMETRIC)}
        return {name: averages[name] for name in averages if name in measured} or own_names(measured)

    return headings


def task_unit(
    name: str, protocol: str, files: Sequence[Path], make: Callable[[Model], Scoring], *, asymmetric: bool = False
) -> Unit | Absent:
    """A unit that runs one task; `Absent` if a file is.

    Args:
      make: makes the task, and so reads the files, when the unit runs.
      asymmetric: whether the task asks the index model; its unit and its scores then begin with `ASYMMETRIC`.
    """
    name = prefixed(name, asymmetric=asymmetric)
    return absent(name, files) or Unit(
        name=name,
        protocol=protocol,
        files=tuple(files),
        run=partial(_task_values, make, asymmetric),
        asks_index=asymmetric,
    )


def _task_values(make: Callable[[Model], Scoring], asymmetric: bool, model: Model) -> dict[str, Any]:
    scores = make(model)(model.embed)
    return {"scores": {prefixed(name, asymmetric=asymmetric): value for name, value in scores.items()}}


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
      files: data folder and name of a set to its files; likewise `task`.
    """
    for name in names:
        if sources.data:
            make = partial(task, sources.data, name)
            yield task_unit(
                f"{prefix}/{name}", protocol(name), files(sources.data, name), lambda model, make=make: make()
            )
        else:
            yield no_folder(f"{prefix}/{name}")


def index_ways(sources: Sources) -> tuple[bool, ...]:
    """Values of `asymmetric` to measure: also True if there is an index model."""
    return (False, True) if sources.asymmetric else (False,)


def prefixed(name: str, *, asymmetric: bool) -> str:
    """The name of a unit or score of symmetric or asymmetric retrieval."""
    return f"{ASYMMETRIC}{name}" if asymmetric else name


def absent(name: str, files: Sequence[Path]) -> Absent | None:
    """`Absent` if one of the files does not exist."""
    missing = [path for path in files if not path.is_file()]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return Absent(f"{name}: {missing[0]} is not there{more}.") if missing else None


def no_folder(name: str) -> Absent:
    """For a set that needs a data folder."""
    return Absent(f"{name} needs --data=FOLDER with multilingual/, transfer/ and so on, or JAXDISTILL_DATA.")
