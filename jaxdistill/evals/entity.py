"""Does a model find the entity that a query means in a catalogue?

Entity resolution of SimTDE (Xie et al., SIGIR 2023, section 4.2 and Table 3): every query is compared with every entity
of its language; recall at `k` is the share of queries with a right entity among the `k` nearest by cosine similarity.
SimTDE's radio stations are not public: the files are the user's own, one for each language, named by what stands before
the suffix (`de.tsv`, `stations.de.csv.gz`), with the columns `query`, `entity`, `label` (1: the entity is meant, 0: not).
The catalogue is made of all entities of a file; a query without any right one is not asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, InputError
from jaxdistill.evals.read_table import labelled
from jaxdistill.evals.similarity import unit_vectors
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1, 5, 10 among all entities of the file (SimTDE, Table 3)"
RANKS = (1, 5, 10)


@dataclass(frozen=True, kw_only=True)
class EntitySet:
    """Queries and the catalogue of one language."""

    language: str
    queries: tuple[str, ...]
    entities: tuple[str, ...]
    """The catalogue, each entity once."""
    meant: tuple[frozenset[int], ...]
    """The entities that each query means, by their place in the catalogue."""


@dataclass(frozen=True, kw_only=True)
class EntityTask:
    """The evaluation on a file that was read."""

    catalogue: EntitySet
    index: Embed | None = None
    """Makes the vectors of entities, where the model that is asked does not (LEAF, arXiv 2509.12539)."""

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`entity/LANGUAGE recall@1` and so on, in [0, 1]."""
        found = self.catalogue
        queries, entities = unit_vectors(embed, found.queries), unit_vectors(self.index or embed, found.entities)
        _, rows = nearest(queries, [entities], count=RANKS[-1])
        right = np.array([[row in meant for row in ranked] for ranked, meant in zip(rows, found.meant, strict=True)])
        return {f"entity/{found.language} recall@{rank}": float(np.mean(right[:, :rank].any(axis=1))) for rank in RANKS}


def read_entities(path: str | Path) -> EntitySet:
    """Reads a file of `query`, `entity`, `label`; InputError with file and line for a bad row."""
    labels, pairs = labelled(path, ("query", "entity"), ("0", "1"))
    catalogue = {entity: place for place, entity in enumerate(dict.fromkeys(entity for _, entity in pairs))}
    meant: dict[str, set[int]] = {}
    for (query, entity), label in zip(pairs, labels, strict=True):
        if label == 1:
            meant.setdefault(query, set()).add(catalogue[entity])
    if not meant:
        raise InputError(f"{path}: no row has the label 1; a query needs an entity that it means.")
    return EntitySet(
        language=language(path),
        queries=tuple(meant),
        entities=tuple(catalogue),
        meant=tuple(map(frozenset, meant.values())),
    )


def language(path: str | Path) -> str:
    """`de` of `de.tsv` and of `stations.de.csv.gz`."""
    return Path(Path(path).name.removesuffix(".gz")).stem.rpartition(".")[2]


def entity_task(path: str | Path, index: Embed | None = None) -> EntityTask:
    """The evaluation on the file of a language; InputError with file and line for a bad row."""
    return EntityTask(catalogue=read_entities(path), index=index)
