"""Does a model find the translation of a sentence among those of all others?

Recall at 1: the share of sentences whose nearest neighbour on the other side, by cosine similarity, is their own
translation; in both directions. The protocol is that of the Tatoeba test of LASER (Artetxe and Schwenk, TACL 2019,
https://arxiv.org/abs/1812.10464), which reports the error rate, one minus it.

The sets come from a data folder (`multilingual/tatoeba.en-de.test.tsv.gz` and so on; the folder or its `multilingual` may
be named): tables with one column for each language, whose rows are translations of each other.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from jaxdistill.core import Embed, InputError
from jaxdistill.evals.pairs import table_rows
from jaxdistill.evals.similarity import unit_vectors

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
"""Names of sets, with the columns of their files behind the point."""
BLOCK_ROWS = 1024
"""Sentences that are compared with all others at a time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Bitext:
    """Sentences of two languages; those with the same number are translations of each other."""

    name: str
    languages: tuple[str, str]
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BitextTask:
    """The evaluation on sets that were read."""

    sets: tuple[Bitext, ...]

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`tatoeba.en-de/en-de recall@1`, `tatoeba.en-de/de-en recall@1` and so on, in [0, 1].

        Each distinct sentence is embedded once, also when several sets share it, in one call of `embed`.
        """
        sentences = list(dict.fromkeys(text for bitext in self.sets for text in (*bitext.first, *bitext.second)))
        vectors = dict(zip(sentences, unit_vectors(embed, sentences), strict=True))
        scores = {}
        for bitext in self.sets:
            a, b = bitext.languages
            scores[f"{bitext.name}/{a}-{b}{METRIC}"] = retrieval(vectors, bitext.first, bitext.second)
            scores[f"{bitext.name}/{b}-{a}{METRIC}"] = retrieval(vectors, bitext.second, bitext.first)
        return scores


def retrieval(
    vectors: Mapping[str, Float[np.ndarray, " e"]], queries: Sequence[str], translations: Sequence[str]
) -> float:
    """Share of `queries` that are nearest to their own translation, in [0, 1]; equal translations are one candidate."""
    candidates = {text: number for number, text in enumerate(dict.fromkeys(translations))}
    own = np.array([candidates[text] for text in translations])
    found = nearest(np.stack([vectors[text] for text in queries]), np.stack([vectors[text] for text in candidates]))
    return float(np.mean(found == own))


def nearest(
    queries: Float[np.ndarray, "n e"], candidates: Float[np.ndarray, "k e"], *, block_rows: int = BLOCK_ROWS
) -> Int[np.ndarray, " n"]:
    """The row of `candidates` with the largest inner product with each query; the first of several."""
    blocks = [queries[start : start + block_rows] for start in range(0, len(queries), block_rows)]
    return np.concatenate([np.argmax(block @ candidates.T, axis=1) for block in blocks])


def bitext_task(folder: str | Path) -> BitextTask:
    """The evaluation on all sets of a data folder; one that is not there is left out and named in the log."""
    inside = Path(folder) / "multilingual"
    inside = inside if inside.is_dir() else Path(folder)
    paths = {name: inside / f"{name}.test.tsv.gz" for name in SETS}
    absent = [name for name, path in paths.items() if not path.is_file()]
    if len(absent) == len(SETS):
        raise InputError(
            f"{folder}: no bitext is there; multilingual/{paths[SETS[0]].name} and the like are looked for."
        )
    if absent:
        log.warning("bitext sets that are not in %s are left out: %s", inside, ", ".join(absent))
    return BitextTask(sets=tuple(read_bitext(path, name) for name, path in paths.items() if name not in absent))


def read_bitext(path: str | Path, name: str) -> Bitext:
    """Reads `NAME.en-de`: a table with the columns `en` and `de`; InputError with file and line for a bad row."""
    first, second = languages = tuple(name.rpartition(".")[2].split("-"))
    rows = table_rows(Path(path))
    header = [field.strip() for field in next(rows, (0, []))[1]]
    if not {first, second} <= set(header):
        raise InputError(f"{path}: the columns are {', '.join(header) or 'none'}; {first} and {second} are needed.")
    places = [header.index(language) for language in languages]
    pairs = []
    for line, fields in rows:
        if len(fields) != len(header):
            raise InputError(f"{path}:{line}: {len(fields)} fields, {len(header)} are expected ({', '.join(header)}).")
        pairs.append(tuple(fields[place].strip() for place in places))
        if not all(pairs[-1]):
            raise InputError(f"{path}:{line}: an empty sentence; each line needs one in {first} and in {second}.")
    if len(pairs) < 2:
        raise InputError(f"{path}: {len(pairs)} pairs of sentences; retrieval needs at least 2.")
    one, other = zip(*pairs, strict=True)
    return Bitext(name=name, languages=languages, first=one, second=other)
