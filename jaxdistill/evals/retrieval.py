"""Measures how well cosine similarity retrieves translations of sentences, and entities in a catalogue.

Translations: recall at 1 of a sentence's translation among all, in both directions. The protocol follows LASER's Tatoeba test
(Artetxe and Schwenk, TACL 2019, https://arxiv.org/abs/1812.10464), which reports the error rate, one minus recall.

Entities: the share of queries with a right entity among the `k` nearest (SimTDE, Xie et al., SIGIR 2023, section 4.2 and Table 3).
SimTDE's radio stations are not public, so the files are the user's own, one per language. All entities of a file form the catalogue;
queries without a right entity are ignored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.core.ops.nearest import nearest
from jaxdistill.data.text import files_of
from jaxdistill.evals import evaluation
from jaxdistill.evals.evaluation import Evaluation, MissingSet, Model, Sources, TestSet
from jaxdistill.models.vectors import unit_vectors, vectors_of_pairs

PUBLISHED = (
    *("multi30k2016.en-de", "multi30k2016.en-fr"),
    *(f"tatoeba.en-{language}" for language in ("de", "fr", "es", "tr", "ar")),
)
"""Sets of translations in the data folder."""
FILE_NAME = re.compile(r"((?:.*\.)?(\w+)-(?!\2\.)\w+)(?:\.(?:test|dev))?\.[ct]sv(?:\.gz)?")
"""Name of a file of translations; the first group is the name of the set, which ends in two different languages."""
RANKS = (1, 5, 10)
METRIC = "entities/recall@1"
"""The mean over languages of the recall of entities, which can choose the best checkpoint."""


def score_names(name: str) -> tuple[str, str]:
    """Names of the two scores of a set of translations: from its first language to the second, and back."""
    first, second = name.rpartition(".")[2].split("-")
    prefix = name if name in PUBLISHED else f"bitext/{name}"
    return f"{prefix}/{first}-{second} recall@1", f"{prefix}/{second}-{first} recall@1"


def translation_recalls(name: str, pairs: Sequence[tuple[str, ...]], embed: Embed) -> Mapping[str, float]:
    """Recall at 1 in both directions, in [0, 1], by the names in `score_names`; each distinct translation is one candidate."""
    vectors, first_rows, second_rows = vectors_of_pairs(embed, *zip(*pairs, strict=True))
    recalls = []
    for query_rows, translation_rows in ((first_rows, second_rows), (second_rows, first_rows)):
        candidate_rows = np.array(list(dict.fromkeys(translation_rows)))
        # Each distinct sentence has one row of `vectors`, so the numbers of the rows stand for the texts here.
        evaluation.refuse_same_vectors(vectors[candidate_rows], list(map(str, candidate_rows)), "sentences")
        _, found = nearest(vectors[query_rows], [vectors[candidate_rows]], count=1)
        recalls.append(float(np.mean(candidate_rows[found[:, 0]] == translation_rows)))
    return dict(zip(score_names(name), recalls, strict=True))


def _bitext_sets(sources: Sources) -> Iterator[TestSet]:
    """The user's tables of translations, or without them, the published ones in the data folder."""
    specs = [f"{spec}/*-*.[ct]sv*" if Path(spec).is_dir() else spec for spec in sources.bitext]
    files = files_of("bitext", specs)
    if not files:
        files = [sources.subfolder("multilingual") / f"{name}.test.tsv.gz" for name in PUBLISHED]
    protocol = "recall at 1 of the nearest neighbour by cosine similarity (LASER's Tatoeba test)"
    for file in files:
        match = FILE_NAME.fullmatch(Path(file).name)
        if not match:
            raise InputError(f"bitext={file} must be called NAME.en-de.tsv or .csv by its two languages.")
        yield TestSet(name=f"bitext/{match[1]}", protocol=protocol, files=(file,), content=match[1])


def _run_bitext(model: Model, test_set: TestSet) -> Mapping[str, float]:
    columns = test_set.content.rpartition(".")[2].split("-")  # the two languages
    return translation_recalls(test_set.content, evaluation.read_table(test_set.file, columns), model.embed)


BITEXT = Evaluation(
    task="retrieval",
    names=("bitext",),
    scores=("bitext", *PUBLISHED),
    sets=_bitext_sets,
    run=_run_bitext,
    averages=evaluation.average_of(
        "bitext/average recall@1", [score for name in PUBLISHED for score in score_names(name)]
    ),
    headings={"bitext/average recall@1": "translations, recall@1"},
)


class EntitySet(NamedTuple):
    """Queries and the catalogue of one language."""

    language: str
    catalogue: list[str]
    """All entities, each once."""
    answers: Mapping[str, set[str]]
    """Maps queries to the entities to which they refer."""


def entity_recalls(entities: EntitySet, embed: Embed) -> Mapping[str, float]:
    """Scores `entity/LANGUAGE recall@1` and so on, in [0, 1], one for each of the `RANKS`."""
    queries = unit_vectors(embed, list(entities.answers))
    catalogue = unit_vectors(embed, entities.catalogue)
    evaluation.refuse_same_vectors(catalogue, entities.catalogue, "entities")
    _, found = nearest(queries, [catalogue], count=RANKS[-1])  # of all ranks, the largest
    results = zip(found, entities.answers.values(), strict=True)
    is_hit = np.array([[entities.catalogue[row] in answers for row in rows] for rows, answers in results])
    return {f"entity/{entities.language} recall@{rank}": float(np.mean(is_hit[:, :rank].any(axis=1))) for rank in RANKS}


def mean_recall(entity_sets: Sequence[EntitySet], embed: Embed | Scorer) -> Mapping[str, float]:
    """Maps `METRIC` to the recall of entities at 1, averaged over the sets. The model must be a sentence encoder."""
    recalls = []
    for entities in entity_sets:
        recalls.append(entity_recalls(entities, cast(Embed, embed))[f"entity/{entities.language} recall@1"])
    return {METRIC: float(np.mean(recalls))}


def read_entities(file: str | Path) -> EntitySet:
    """Reads a file of `query`, `entity`, `label` (1: the query refers to the entity); raises `InputError` for a bad row."""
    labels, pairs = evaluation.labelled(file, ("query", "entity"), ("0", "1"))
    answers: dict[str, set[str]] = {}
    for (query, entity), label in zip(pairs, labels, strict=True):
        if label == 1:
            answers.setdefault(query, set()).add(entity)
    if not answers:
        raise InputError(f"{file}: no row has the label 1; a query needs an entity that it refers to.")
    return EntitySet(_language(file), list(dict.fromkeys(entity for _, entity in pairs)), answers)


def _language(file: str | Path) -> str:
    """The language of a file of entities: the last part of its name before the suffixes, such as `de` of `radio.de.tsv.gz`."""
    return Path(Path(file).name.removesuffix(".gz")).stem.rpartition(".")[2]


def _entity_sets(sources: Sources) -> Iterator[TestSet]:
    """One set per file of entities. Only the task `entities` needs a file, because the task `retrieval` also has translations."""
    if not sources.entities and "entities" in sources.tasks:
        raise MissingSet("needs entities=FILE with query, entity, label.")
    protocol = "recall at 1, 5, 10 among all entities of the file (SimTDE, Table 3)"
    for file in files_of("entities", sources.entities):
        yield TestSet(name=f"entity/{_language(file)}", protocol=protocol, files=(file,))


ENTITIES = Evaluation(
    task="retrieval",
    names=("entities",),
    scores=("entity",),
    sets=_entity_sets,
    run=lambda model, test_set: entity_recalls(read_entities(test_set.file), model.embed),
    headings={METRIC: "entities, recall@1"},
)
