"""Finds the files of retrieval sets in BEIR's format, in folders and on the hub; `beir.py` describes the format."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import get_args

from jaxdistill.core import InputError, Split
from jaxdistill.files import matching
from jaxdistill.files.reading import foreign_errors

CORPUS = ("corpus.jsonl", "corpus.jsonl.gz", "corpus.tsv", "corpus.tsv.gz", "corpus/*.parquet")
QUERIES = ("queries.jsonl", "queries.jsonl.gz", "queries.tsv", "queries.tsv.gz", "queries/*.parquet")
SPLITS: tuple[Split, ...] = get_args(Split)
WITHOUT_SPLIT = ("qrels.tsv", "qrels.tsv.gz")
"""Files of judgements without a split, which count as test."""
BESIDE = "-qrels"
"""Suffix of the name of a data set that holds another one's judgements."""


@dataclass(frozen=True, kw_only=True)
class SetFiles:
    """The files of a set."""

    name: str
    corpus: Sequence[Path]
    """One file, or the parts of a Parquet table; likewise `queries`."""
    queries: Sequence[Path]
    qrels: Path
    split: Split
    """The split of the judgements in `qrels`."""
    asked_corpus: Sequence[Path] = ()
    """For `A+B`, the documents of A, which show which queries are documents themselves; empty if A has none."""

    def __iter__(self) -> Iterator[Path]:
        return iter((*self.corpus, *self.queries, self.qrels, *self.asked_corpus))


def is_set(folder: Path) -> bool:
    """Whether a folder holds a corpus in one of the formats."""
    return bool(_found(folder, CORPUS))


def is_crossing(spec: str) -> bool:
    """Whether a spec runs the queries of one set on the documents of another (`A+B`)."""
    return len(_parts(spec)) > 1


def set_files(spec: str, *, split: Split, option: str = "--split") -> SetFiles:
    """The files of a set, downloaded from the hub if needed; raises `InputError` if the folder or a file does not exist.

    Args:
      spec: a folder, the name `ORG/NAME` of a data set on the hub, or `A+B`: the queries and judgements of A, the documents
        of B.
      split: split of the judgements, `qrels/SPLIT.tsv`; a set need not have the other splits.
      option: the option that names the split, for errors.
    """
    parts = _parts(spec)
    folders = [_folder(part, spec) for part in parts]
    return SetFiles(
        name=_names(spec)[0],
        corpus=_files(folders[-1], CORPUS),
        queries=_files(folders[0], QUERIES),
        qrels=_qrels(parts[0], folders[0], spec, split, option=option),
        split=split,
        asked_corpus=_found(folders[0], CORPUS) if len(parts) > 1 else (),
    )


def named_sets(specs: Sequence[str]) -> dict[str, str]:
    """Maps each distinct set to its name: its folder's, with as many parent folders as make it unique."""
    different: dict[tuple[str, ...], str] = {}
    for spec in specs:
        different.setdefault(tuple(map(os.path.realpath, _parts(spec))), spec)
    names = {spec: _names(spec) for spec in different.values()}
    return {
        spec: next((name for name in own if sum(name in others for others in names.values()) == 1), spec)
        for spec, own in names.items()
    }


def _parts(spec: str) -> list[str]:
    """Splits `A+B` into the folders or hub names of queries and documents; a path itself may contain `+`."""
    if Path(spec).is_dir():
        return [spec]
    cuts = [[spec[:place], spec[place + 1 :]] for place, letter in enumerate(spec) if letter == "+"]
    return next((cut for cut in cuts if all(Path(part).is_dir() for part in cut)), spec.split("+", 1))


def _names(spec: str) -> list[str]:
    """Names for a set, shortest first: its folder's name, the same with the parent folder, and so on."""
    folders = [PurePath(os.path.abspath(part)).parts for part in _parts(spec)]
    depths = range(1, 1 + max(map(len, folders)))
    return ["+".join(str(PurePath(*parts[-depth:])) for parts in folders) for depth in depths]


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that match the first pattern with any match."""
    return next(filter(None, (matching(folder, pattern) for pattern in patterns)), [])


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    files = _found(folder, patterns)
    if not files:
        raise InputError(f"{folder} is not a retrieval set in BEIR's format: it has none of {', '.join(patterns)}.")
    return files


def _qrels(name: str, folder: Path, spec: str, split: Split, option: str) -> Path:
    """The judgements of a split, in a set's folder or in the folder `NAME-qrels` beside it."""
    splits, wanted = _splits(folder, "qrels/"), f"qrels/{split}.tsv"
    beside = folder.resolve().parent / f"{folder.resolve().name}{BESIDE}"
    if not splits and not Path(name).is_dir():
        lacking = f"retrieval set {spec}: {name} has no judgements ({wanted}), and"
        beside = _fetched(f"{name}{BESIDE}", ("*.tsv", "*.tsv.gz"), lacking)
    splits = _splits(beside, "") | splits
    if not splits:
        raise InputError(
            f"{folder} is not a retrieval set in BEIR's format: it has no judgements ({wanted}), and neither has {beside}."
        )
    if split not in splits:
        others = ", ".join(f"{other} ({path.name})" for other, path in splits.items())
        raise InputError(
            f"{folder} has no judgements of the split {split} ({wanted}), only of {others}; add them, or give "
            f"{option}={next(iter(splits))}."
        )
    return splits[split]


def _splits(folder: Path, inside: str) -> dict[Split, Path]:
    """Maps the splits that a folder has to their files."""
    splits: dict[Split, Path] = {}
    for split in SPLITS:
        without = WITHOUT_SPLIT if inside and split == "test" else ()
        if paths := _found(folder, (f"{inside}{split}.tsv", f"{inside}{split}.tsv.gz", *without)):
            splits[split] = paths[0]
    return splits


def _folder(name: str, spec: str) -> Path:
    """The folder of a set, downloaded from the hub if it is not a local one."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(
            f"retrieval set {spec}: {name or 'nothing'} is neither a folder nor a name ORG/SET on the hub."
        )
    return _fetched(name, (*CORPUS, *QUERIES, *WITHOUT_SPLIT, "qrels/*"), f"retrieval set {spec}:")


def _fetched(name: str, patterns: Sequence[str], begin: str) -> Path:
    """Downloads the files of a hub's data set that match these patterns; returns the folder. `begin` starts errors."""
    from huggingface_hub import snapshot_download

    with foreign_errors(f"{begin} {name} cannot be fetched from the hub"):
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=list(patterns)))
