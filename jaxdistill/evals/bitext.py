"""Measures retrieval of translations: recall at 1 of a sentence's own translation among all translations.

Recall at 1 is the share of sentences whose nearest neighbour in the other language, by cosine similarity, is their own
translation; it is measured in both directions. The protocol follows LASER's Tatoeba test (Artetxe and Schwenk,
TACL 2019, https://arxiv.org/abs/1812.10464), which reports the error rate, one minus recall.

The sets come from a data folder (`multilingual/tatoeba.en-de.test.tsv.gz` and so on; `--data` may name the folder or its
`multilingual`), or are the user's own. They are tables with one column per language, whose rows are translations of each
other. The name of a user's file ends in its languages, which are the names of the columns: `[NAME.]en-de[.test|.dev].tsv` or
`.csv`, plain or `.gz`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError
from jaxdistill.data.sources import files_of
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    Absent,
    Evaluation,
    Shown,
    Sources,
    Unit,
    average_heading,
    average_of,
    no_folder,
    search_units,
)
from jaxdistill.evals.read_table import columns, part_of
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.files import matching
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1 of the nearest neighbour by cosine similarity (LASER's Tatoeba test)"
METRIC = " recall@1"
SETS = (
    "multi30k2016.en-de",
    "multi30k2016.en-fr",
    "tatoeba.en-de",
    "tatoeba.en-fr",
    "tatoeba.en-es",
    "tatoeba.en-tr",
    "tatoeba.en-ar",
)
"""Names of sets; the part after the dot names the file's columns."""
OWN = re.compile(r"(?P<name>(?:.*\.)?(?P<first>\w+)-(?!(?P=first)\.)\w+)(?:\.(?:test|dev))?\.[ct]sv(?:\.gz)?")
"""Name of a file of translations."""
OWN_PREFIX = "bitext/"
"""Prefix of the scores of the user's own sets."""


@dataclass(frozen=True, kw_only=True)
class Bitext:
    """Sentences in two languages; sentences with the same index are translations of each other."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]


def recalls(bitext: Bitext, embed: Embed, *, index: Embed | None = None) -> Mapping[str, float]:
    """`tatoeba.en-de/en-de recall@1` and `tatoeba.en-de/de-en recall@1`, in [0, 1].

    Each distinct sentence is embedded once, in one call of `embed`.

    Args:
      index: another model that embeds the sentences to search; None: the evaluated model.
    """
    sentences = list(dict.fromkeys([*bitext.first, *bitext.second]))
    asked = dict(zip(sentences, unit_vectors(embed, sentences), strict=True))
    indexed = dict(zip(sentences, unit_vectors(index, sentences), strict=True)) if index else asked
    there, back = score_names(bitext.name)
    return {
        there: retrieval(asked, indexed, bitext.first, bitext.second),
        back: retrieval(asked, indexed, bitext.second, bitext.first),
    }


def retrieval(
    asked: Mapping[str, Float[np.ndarray, " e"]],
    indexed: Mapping[str, Float[np.ndarray, " e"]],
    queries: Sequence[str],
    translations: Sequence[str],
) -> float:
    """Share of `queries` that are nearest to their own translation, in [0, 1]; equal translations are one candidate.

    Args:
      asked: unit vectors of queries.
      indexed: unit vectors of translations.
    """
    candidates = {text: number for number, text in enumerate(dict.fromkeys(translations))}
    own = np.array([candidates[text] for text in translations])
    vectors_of_candidates = np.stack([indexed[text] for text in candidates])
    refuse_same_vectors(vectors_of_candidates, list(candidates), f"the model finds all {len(candidates):,} sentences")
    _, rows = nearest(np.stack([asked[text] for text in queries]), [vectors_of_candidates], count=1)
    return float(np.mean(rows[:, 0] == own))


def languages(name: str) -> tuple[str, str]:
    """`("en", "de")` of `tatoeba.en-de`."""
    first, second = name.rpartition(".")[2].split("-")
    return first, second


def score_names(name: str) -> tuple[str, str]:
    """Names of a set's two scores: from its first language to the second, and back."""
    first, second = languages(name)
    begin = name if name in SETS else f"{OWN_PREFIX}{name}"
    return f"{begin}/{first}-{second}{METRIC}", f"{begin}/{second}-{first}{METRIC}"


def files(folder: str | Path) -> dict[str, Path]:
    """Maps names of sets to files in a data folder."""
    return {name: part_of(folder, "multilingual") / f"{name}.test.tsv.gz" for name in SETS}


def own_files(specs: Sequence[str]) -> dict[str, Path]:
    """Maps names of sets to files, for files, globs and folders; ignores a folder's other files.

    Raises:
      InputError: a path does not exist, a file's name lacks the languages, a folder has no such file, or a name repeats.
    """
    files: dict[str, Path] = {}
    for spec in specs:
        folder = Path(spec).expanduser()
        if not folder.is_dir():
            paths = files_of("--bitext", [spec])
        elif not (paths := [path for path in matching(folder, "*-*") if OWN.fullmatch(path.name)]):
            raise InputError(f"--bitext={spec} has no file of translations, NAME.en-de.tsv.")
        for path in paths:
            named = OWN.fullmatch(path.name)
            if named is None:
                raise InputError(f"--bitext={path} does not name its two languages; call it NAME.en-de.tsv or .csv.")
            if named["name"] in files:
                raise InputError(f"--bitext has {files[named['name']]} and {path}; rename one of them.")
            files[named["name"]] = path
    return files


def read_bitext(path: str | Path, name: str) -> Bitext:
    """Reads `NAME.en-de`: a table with the columns `en` and `de`; raises `InputError` with file and line for a bad row."""
    pairs = [cells for _, cells in columns(path, languages(name))]
    if len(pairs) < 2:
        raise InputError(f"{path}: {len(pairs)} pairs of sentences; retrieval needs at least 2.")
    one, other = zip(*pairs, strict=True)
    return Bitext(name=name, first=one, second=other)


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    if not sources.data and not sources.bitext:
        yield no_folder("bitext")
        return
    paths = own_files(sources.bitext) if sources.bitext else files(sources.data)
    for name, path in paths.items():
        yield from search_units(sources, f"bitext/{name}", PROTOCOL, path, values=partial(_values, path, name))


def _values(path: Path, name: str, embed: Embed, index: Embed | None) -> dict[str, Any]:
    return {"scores": recalls(read_bitext(path, name), embed, index=index)}


def _averages(measured: Mapping[str, float]) -> Mapping[str, float]:
    """The mean over the data folder's sets if all were measured, or over the user's own sets if there are several."""
    published = [score for name in SETS for score in score_names(name)]
    averages = dict(average_of(AVERAGE, published)(measured))
    for prefix in ("", ASYMMETRIC):
        own = [value for name, value in measured.items() if name.startswith(f"{prefix}{OWN_PREFIX}")]
        if len(own) > 2 and not any(f"{prefix}{name}" in measured for name in published):
            averages[f"{prefix}{AVERAGE}"] = float(np.mean(own))
    return averages


AVERAGE = f"bitext/average{METRIC}"
EVALUATION = Evaluation(
    group="retrieval",
    names=("bitext",),
    scores=("bitext", *SETS),
    units=_units,
    averages=_averages,
    shown=Shown(measure="recall × 100", headings=average_heading(AVERAGE, "translations, recall@1")),
)
