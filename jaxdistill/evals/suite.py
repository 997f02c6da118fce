"""Which evaluations do the names on a command line mean, and are their sets there?

A name such as `transfer` stands for a list of units, of which each has its own files, protocol and scores: what cannot be
read, or is not there, costs its own unit only.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxdistill.cli import did_you_mean
from jaxdistill.core import Embed, InputError, Task
from jaxdistill.evals import auc, bitext, entity, geometry, multilingual, neighbours, nli, probe, speed, sts, transfer
from jaxdistill.evals.pairs import GradedPairs, read_pairs, scored_pairs
from jaxdistill.evals.read_table import part_of
from jaxdistill.evals.score_cache import cached_scores
from jaxdistill.evals.similarity import similarities, spearman

GROUPS = ("sts", "multilingual", "transfer", "nli", "pairs", "retrieval", "geometry", "speed")
TASKS = (*GROUPS, "bitext", *sts.SETS)
SPEARMAN, PLAIN = "Spearman × 100", "measure"
MEASURES: Mapping[str, str] = {
    "transfer": "accuracy, F1 × 100",
    "nli": "accuracy, F1 × 100",
    "auc": "AUC × 100",
    "entity": "recall × 100",
    "nearest": "cosine, overlap × 100",
    "geometry": PLAIN,
    "speed": PLAIN,
}
"""What scores are by the first part of their name; bitext is recall, all others are Spearman's. `PLAIN` has units of its own."""
ASYMMETRIC = "asymmetric "
"""Before the names of scores of retrieval in an index that another model made."""
AVERAGES: Mapping[str, Sequence[str]] = {
    "transfer": tuple(transfer.SETS),
    "sts17": multilingual.TRACKS,
    "auc": tuple(auc.SETS),
}
"""Prefix of score names to the sets whose mean is their `average`, where all were scored."""
DRAWN = (*sts.DRAWN, "pairs")
"""Units with graded pairs to draw; the first of those that were scored is drawn."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What a unit may know of a model."""

    embed: Embed
    embed_in_batches: Callable[[int], Embed]
    """An `embed` that computes this many sentences together."""
    parameters: int
    size_bytes: int
    """Of its weights files."""
    index: Embed | None = None
    """The model that makes the index of asymmetric retrieval."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """An evaluation that succeeds or fails as a whole."""

    name: str
    protocol: str
    files: tuple[Path, ...]
    """All that it reads; none where the sets come from the hub."""
    run: Callable[[Model], dict[str, Any]]
    """`scores`, name to value; `neighbours` where it has sentences to show, `scored_pairs` where it has graded pairs to draw.
    Plain data, which can be remembered as JSON. Reads its files."""
    is_repeatable: bool = True
    """Whether the same model has the same values every time, so that they can be remembered."""
    asks_index: bool = False
    """Whether its values depend on the index model too."""

    def digest(self) -> str:
        """SHA-256 of the protocol and the files, with their names, by which they are read and spoken of."""
        sha = hashlib.sha256(f"{self.name}\n{self.protocol}".encode())
        for path in self.files:
            sha.update(path.name.encode(errors="surrogateescape"))
            sha.update(hashlib.sha256(path.read_bytes()).digest())
        return sha.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What will be measured, and what is not there."""

    units: tuple[Unit, ...]
    absent: tuple[str, ...]
    """A line for each set that was asked for and is not there."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where sets come from."""

    data: str = ""
    """The data folder; empty: STS comes from the hub, and no other set is there."""
    pairs: str = ""
    """The user's graded pairs."""
    entities: tuple[str, ...] = ()
    """The user's files of `query, entity, label`."""
    asymmetric: bool = False
    """Whether retrieval is also in an index that another model made."""


def planned(names: Sequence[str], sources: Sources) -> Suite:
    """The units of task names.

    Raises:
      InputError: an unknown name, or a data folder that is none.
    """
    for name in names:
        if name not in TASKS:
            raise InputError(f"task {name!r} is unknown; there are {', '.join(TASKS)}.{did_you_mean(name, TASKS)}")
    if sources.data and not Path(sources.data).is_dir():
        raise InputError(f"{sources.data}: not a data folder; give one with sts/, transfer/ and the like.")
    wanted = list(_wanted(names, sources))
    return Suite(
        units=tuple(unit for unit in wanted if isinstance(unit, Unit)),
        absent=tuple(line for line in wanted if isinstance(line, str)),
    )


def unit_values(unit: Unit, model: Model, digests: Sequence[str], cache: Path) -> dict[str, Any]:
    """What the unit finds of the model, from the cache folder where it was found before.

    Args:
      digests: of the models that the unit asks.
    """
    if not unit.is_repeatable:
        return unit.run(model)
    return cached_scores(cache / "scores", [unit.digest(), *digests], partial(unit.run, model))


def measure(score: str) -> str:
    """What a score is, by its name: the heading of the table that it is printed in."""
    if bitext.METRIC in score:
        return MEASURES["entity"]
    return MEASURES.get(score.removeprefix(ASYMMETRIC).partition("/")[0], SPEARMAN)


def with_averages(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores with those of `sts.averages` behind STS, and at the end `transfer/average` and the like, of the groups
    whose sets were all scored."""
    of_sts = {name: score for name, score in scores.items() if name.partition("/")[0] in sts.SETS}
    of_groups = {
        f"{prefix}/average": float(np.mean([scores[f"{prefix}/{name}"] for name in names]))
        for prefix, names in AVERAGES.items()
        if all(f"{prefix}/{name}" in scores for name in names)
    }
    return of_sts | sts.averages(of_sts) | dict(scores) | of_groups


def _wanted(names: Sequence[str], sources: Sources) -> Iterator[Unit | str]:
    """Units in a fixed order, and a line for what is not there."""
    sets = tuple(sts.SETS) if "sts" in names else tuple(name for name in names if name in sts.SETS)
    if sets:
        yield from _sts(sets, sources)
    if "multilingual" in names:
        tracks = multilingual.tracks(sources.data)
        yield from _each(sources, "sts17", tracks, multilingual, multilingual.multilingual_task)
    if "transfer" in names:
        yield from _each(sources, "transfer", tuple(transfer.SETS), transfer, transfer.transfer_task)
    if "nli" in names:
        yield from _each(sources, "nli", tuple(nli.SPLITS), nli, nli.nli_task)
    if "pairs" in names:
        yield from _pairs(sources)
    if "bitext" in names or "retrieval" in names:
        yield from _bitext(sources)
    if "retrieval" in names:
        yield from _entities(sources)
        yield from _neighbours(sources)
    if "geometry" in names:
        yield from _on_sts_b("geometry", "sts-b-dev", geometry.PROTOCOL, sources, _geometry_values)
    if "speed" in names:
        yield from _on_sts_b("speed", "sts-b", speed.PROTOCOL, sources, _speed_values, is_repeatable=False)


class _Sets(Protocol):
    """A module with sets by name."""

    def files(self, folder: str | Path, name: str) -> tuple[Path, ...]: ...

    def protocol(self, name: str) -> str: ...


def _each(
    sources: Sources, prefix: str, names: Sequence[str], sets: _Sets, task: Callable[[str, str], Task]
) -> Iterator[Unit | str]:
    """A unit for each named set of the data folder."""
    for name in names:
        if not sources.data:
            yield _no_folder(f"{prefix}/{name}")
            continue
        make = partial(task, sources.data, name)
        yield _unit(
            f"{prefix}/{name}", sets.protocol(name), sets.files(sources.data, name), lambda model, make=make: make()
        )


def _unit(
    name: str, protocol: str, files: Sequence[Path], make: Callable[[Model], Task], *, asymmetric: bool = False
) -> Unit | str:
    """A unit whose task is made, and so its files are read, when it runs; a line when a file is not there."""
    return _absent(name, files) or Unit(
        name=name,
        protocol=protocol,
        files=tuple(files),
        run=lambda model: {"scores": _named(make(model)(model.embed), asymmetric)},
        asks_index=asymmetric,
    )


def _absent(name: str, files: Sequence[Path]) -> str:
    """A line when one of the files is not there."""
    missing = [path for path in files if not path.is_file()]
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{name}: {missing[0]} is not there{more}." if missing else ""


def _no_folder(name: str) -> str:
    return f"{name} needs --data=FOLDER with multilingual/, transfer/ and so on, or JAXDISTILL_DATA."


def _named(scores: Mapping[str, float], asymmetric: bool) -> dict[str, float]:
    return {f"{ASYMMETRIC}{name}" if asymmetric else name: value for name, value in scores.items()}


def _sts(sets: Sequence[str], sources: Sources) -> Iterator[Unit | str]:
    folder = part_of(sources.data, "sts") if sources.data else None
    for name in sets:
        files = (folder / sts.SETS[name].file,) if folder else ()
        yield _absent(name, files) or Unit(
            name=name,
            protocol=sts.protocol(name),
            files=files,
            run=lambda model, name=name: sts.sts_values(model.embed, folder, [name], subsets=True),
            is_repeatable=folder is not None,
        )


def _pairs(sources: Sources) -> Iterator[Unit | str]:
    """The user's graded pairs where they are given, else the published sets."""
    if sources.pairs:
        path = Path(sources.pairs)
        yield _absent("pairs", [path]) or Unit(
            name="pairs",
            protocol="Spearman of cosine similarity and score",
            files=(path,),
            run=partial(_graded_found, path),
        )
    elif sources.data:
        yield from _each(sources, "auc", tuple(auc.SETS), auc, auc.auc_task)
    else:
        yield "task pairs needs --pairs=FILE with score, sentence1, sentence2, or --data=FOLDER with QQP, QNLI and MRPC."


def _graded_found(path: Path, model: Model) -> dict[str, Any]:
    pairs = read_pairs(path)
    found = similarities(model.embed, pairs.first, pairs.second)
    scores = {"pairs": spearman(pairs.scores, found, what=pairs.name)}
    return {"scores": scores, "scored_pairs": asdict(scored_pairs(pairs, found))}


def _bitext(sources: Sources) -> Iterator[Unit | str]:
    if not sources.data:
        yield _no_folder("bitext")
        return
    for asymmetric in _ways(sources):
        for name, path in bitext.files(sources.data).items():
            yield _unit(
                f"{ASYMMETRIC if asymmetric else ''}bitext/{name}",
                bitext.PROTOCOL,
                [path],
                partial(_bitext_task, sources.data, name, asymmetric),
                asymmetric=asymmetric,
            )


def _bitext_task(data: str, name: str, asymmetric: bool, model: Model) -> Task:
    return bitext.bitext_task(data, [name], model.index if asymmetric else None)


def _entities(sources: Sources) -> Iterator[Unit | str]:
    languages = [entity.language(path) for path in sources.entities]
    twice = [language for language in languages if languages.count(language) > 1]
    if twice:
        raise InputError(f"two files of entities are for {twice[0]}; what stands before the suffix names the language.")
    for path, language in zip(map(Path, sources.entities), languages, strict=True):
        for asymmetric in _ways(sources):
            yield _unit(
                f"{ASYMMETRIC if asymmetric else ''}entity/{language}",
                entity.PROTOCOL,
                [path],
                partial(_entity_task, path, asymmetric),
                asymmetric=asymmetric,
            )


def _entity_task(path: Path, asymmetric: bool, model: Model) -> Task:
    return entity.entity_task(path, model.index if asymmetric else None)


def _neighbours(sources: Sources) -> Iterator[Unit | str]:
    if not sources.data:
        yield _no_folder("nearest")
        return
    path = neighbours.file(sources.data)
    for asymmetric in _ways(sources):
        name = f"{ASYMMETRIC if asymmetric else ''}nearest"
        yield _absent(name, [path]) or Unit(
            name=name,
            protocol=neighbours.PROTOCOL,
            files=(path,),
            run=partial(_found_neighbours, path, asymmetric),
            asks_index=asymmetric,
        )


def _found_neighbours(path: Path, asymmetric: bool, model: Model) -> dict[str, Any]:
    study = neighbours.neighbours_study(path, seed=probe.SEED, index=model.index if asymmetric else None)
    scores, examples = study(model.embed)
    return {"scores": _named(scores, asymmetric), "neighbours": list(examples)}


def _ways(sources: Sources) -> tuple[bool, ...]:
    """Symmetric retrieval, and asymmetric where there is an index model."""
    return (False, True) if sources.asymmetric else (False,)


def _on_sts_b(
    name: str,
    source: str,
    protocol: str,
    sources: Sources,
    values: Callable[[GradedPairs, Model], Mapping[str, float]],
    *,
    is_repeatable: bool = True,
) -> Iterator[Unit | str]:
    """A unit on a part of STS-B."""
    folder = part_of(sources.data, "sts") if sources.data else None
    files = (folder / sts.SETS[source].file,) if folder else ()
    yield _absent(name, files) or Unit(
        name=name,
        protocol=protocol,
        files=files,
        run=lambda model: {"scores": dict(values(sts.read_set(source, folder), model))},
        is_repeatable=is_repeatable and folder is not None,
    )


def _geometry_values(pairs: GradedPairs, model: Model) -> Mapping[str, float]:
    return geometry.GeometryTask(pairs=pairs)(model.embed)


def _speed_values(pairs: GradedPairs, model: Model) -> Mapping[str, float]:
    task = speed.SpeedTask(
        sentences=(*pairs.first, *pairs.second), parameters=model.parameters, size_bytes=model.size_bytes
    )
    return task(model.embed_in_batches(speed.BATCH_SIZE))
