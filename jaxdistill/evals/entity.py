"""Measures entity resolution: recall of the entity in a catalogue that a query refers to.

The task is SimTDE's (Xie et al., SIGIR 2023, section 4.2 and Table 3): recall at `k` is the share of queries with a right entity
among the `k` nearest by cosine similarity. Its radio stations are not public, so the files are the user's own, one per language,
which is the last part of its name before the suffix (`stations.de.csv.gz`). The columns are `query`, `entity` and `label` (1: the
query refers to the entity). All entities of a file form the catalogue; queries without a right entity are ignored.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Sources, TestSet
from jaxdistill.evals.read_table import labelled
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1, 5, 10 among all entities of the file (SimTDE, Table 3)"
RANKS = (1, 5, 10)
METRIC = "entities/recall@1"


class EntitySet(NamedTuple):
    """Queries and the catalogue of one language."""

    language: str
    entities: list[str]
    """The catalogue, each entity once."""
    answers: Mapping[str, set[str]]
    """Maps queries to the entities to which they refer."""


def recalls(entities: EntitySet, embed: Embed) -> Mapping[str, float]:
    """`entity/LANGUAGE recall@1` and so on, in [0, 1]."""
    queries, catalogue = unit_vectors(embed, list(entities.answers)), unit_vectors(embed, entities.entities)
    refuse_same_vectors(catalogue, entities.entities, f"the model finds all {len(catalogue):,} entities")
    _, found = nearest(queries, [catalogue], count=RANKS[-1])
    answers = entities.answers.values()
    hits = [[entities.entities[row] in right for row in rows] for rows, right in zip(found, answers, strict=True)]
    shares = {rank: np.mean(np.any(np.array(hits)[:, :rank], axis=1)) for rank in RANKS}
    return {f"entity/{entities.language} recall@{rank}": float(share) for rank, share in shares.items()}


def mean_recall(catalogues: Sequence[EntitySet], embed: Embed | Scorer) -> Mapping[str, float]:
    """`entities/recall@1`, the mean over languages, which can choose the best checkpoint."""
    shares = [recalls(one, cast(Embed, embed))[f"entity/{one.language} recall@1"] for one in catalogues]
    return {METRIC: float(np.mean(shares))}


def read_entities(path: str | Path) -> EntitySet:
    """Reads a file of `query`, `entity`, `label`; raises `InputError` for a bad row."""
    labels, pairs = labelled(path, ("query", "entity"), ("0", "1"))
    answers: dict[str, set[str]] = {}
    for (query, entity), label in zip(pairs, labels, strict=True):
        if label == 1:
            answers.setdefault(query, set()).add(entity)
    if not answers:
        raise InputError(f"{path}: no row has the label 1; a query needs an entity that it refers to.")
    return EntitySet(_language(Path(path)), list(dict.fromkeys(entity for _, entity in pairs)), answers)


def _language(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).stem.rpartition(".")[2]


def _sets(sources: Sources) -> Iterable[TestSet]:
    if not sources.entities and "entities" in sources.tasks:
        raise MissingSet("task entities needs entities=FILE with query, entity, label.")
    for path in map(Path, sources.entities):
        yield TestSet(name=f"entity/{_language(path)}", protocol=PROTOCOL, files=(path,))


EVALUATION = Evaluation(
    task="retrieval",
    names=("entities",),
    scores=("entity",),
    sets=_sets,
    run=lambda model, test_set: recalls(read_entities(test_set.file), model.embed),
    is_main=lambda name: name.endswith(" recall@1"),
)
