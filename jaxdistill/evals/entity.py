"""Measures entity resolution: recall of the entity in a catalogue that a query refers to.

The task is SimTDE's (Xie et al., SIGIR 2023, section 4.2 and Table 3): every query is compared with every entity of its
language; recall at `k` is the share of queries with a right entity among the `k` nearest by cosine similarity. SimTDE's
radio stations are not public, so the files are the user's own. There is one file per language, which is the last part of its
name before the suffix (`de.tsv`, `stations.de.csv.gz`). Its columns are `query`, `entity` and `label` (1: the query refers to
the entity, 0: it does not). All entities of a file form the catalogue; queries without a right entity are ignored.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Absent, Evaluation, Shown, Sources, Unit, search_units
from jaxdistill.evals.read_table import labelled
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1, 5, 10 among all entities of the file (SimTDE, Table 3)"
RANKS = (1, 5, 10)
METRIC = "entities/recall@1"


@dataclass(frozen=True, kw_only=True)
class EntitySet:
    """Queries and the catalogue of one language."""

    language: str
    queries: tuple[str, ...]
    entities: tuple[str, ...]
    """The catalogue, each entity once."""
    meant: tuple[frozenset[int], ...]
    """The entities that each query refers to, as indices of the catalogue."""


def recalls(known: EntitySet, embed: Embed, *, index: Embed | None = None) -> Mapping[str, float]:
    """`entity/LANGUAGE recall@1` and so on, in [0, 1].

    Args:
      index: another model that embeds the entities (LEAF, arXiv 2509.12539); None: the evaluated model.
    """
    queries, entities = unit_vectors(embed, known.queries), unit_vectors(index or embed, known.entities)
    refuse_same_vectors(entities, known.entities, f"the model finds all {len(entities):,} entities")
    _, rows = nearest(queries, [entities], count=RANKS[-1])
    right = np.array([[row in meant for row in ranked] for ranked, meant in zip(rows, known.meant, strict=True)])
    return {f"entity/{known.language} recall@{rank}": float(np.mean(right[:, :rank].any(axis=1))) for rank in RANKS}


def mean_recall(catalogues: Sequence[EntitySet], embed: Embed | Scorer) -> Mapping[str, float]:
    """`entities/recall@1`, the mean over languages, which can choose the best checkpoint."""
    shares = [recalls(one, cast(Embed, embed))[f"entity/{one.language} recall@1"] for one in catalogues]
    return {METRIC: float(np.mean(shares))}


def read_entities(path: str | Path) -> EntitySet:
    """Reads a file of `query`, `entity`, `label`; raises `InputError` with file and line for a bad row."""
    labels, pairs = labelled(path, ("query", "entity"), ("0", "1"))
    catalogue = {entity: place for place, entity in enumerate(dict.fromkeys(entity for _, entity in pairs))}
    meant: dict[str, set[int]] = {}
    for (query, entity), label in zip(pairs, labels, strict=True):
        if label == 1:
            meant.setdefault(query, set()).add(catalogue[entity])
    if not meant:
        raise InputError(f"{path}: no row has the label 1; a query needs an entity that it refers to.")
    return EntitySet(
        language=language(path),
        queries=tuple(meant),
        entities=tuple(catalogue),
        meant=tuple(map(frozenset, meant.values())),
    )


def language(path: str | Path) -> str:
    """The language in a file's name: `de` for `de.tsv` and `stations.de.csv.gz`."""
    return Path(Path(path).name.removesuffix(".gz")).stem.rpartition(".")[2]


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    languages = [language(path) for path in sources.entities]
    twice = [name for name in languages if languages.count(name) > 1]
    if twice:
        raise InputError(
            f"--entities has two files for {twice[0]!r}; the last part of a name before its suffix is the language."
        )
    for path, name in zip(map(Path, sources.entities), languages, strict=True):
        yield from search_units(sources, f"entity/{name}", PROTOCOL, path, values=partial(_values, path))


def _values(path: Path, embed: Embed, index: Embed | None) -> dict[str, Any]:
    return {"scores": recalls(read_entities(path), embed, index=index)}


def _headings(measured: Collection[str]) -> Mapping[str, str]:
    return {name: name for name in measured if name.endswith(f" recall@{RANKS[0]}")}


EVALUATION = Evaluation(
    group="retrieval",
    names=("entities",),
    scores=("entity",),
    units=_units,
    shown=Shown(measure="recall × 100", headings=_headings),
)
