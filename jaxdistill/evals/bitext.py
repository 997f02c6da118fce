"""Does a model find the translation of a sentence among those of all others?

Recall at 1: the share of sentences whose nearest neighbour on the other side, by cosine similarity, is their own
translation; in both directions. The protocol is that of the Tatoeba test of LASER (Artetxe and Schwenk, TACL 2019,
https://arxiv.org/abs/1812.10464), which reports the error rate, one minus it.

The sets come from a data folder (`multilingual/tatoeba.en-de.test.tsv.gz` and so on; the folder or its `multilingual` may
be named): tables with one column for each language, whose rows are translations of each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError
from jaxdistill.evals.read_table import columns, part_of
from jaxdistill.evals.similarity import unit_vectors
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
"""Names of sets, with the columns of their files behind the point."""


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
    index: Embed | None = None
    """Makes the vectors of the sentences that are looked through, where the model that is asked does not."""

    def __call__(self, embed: Embed) -> Mapping[str, float]:
        """`tatoeba.en-de/en-de recall@1`, `tatoeba.en-de/de-en recall@1` and so on, in [0, 1].

        Each distinct sentence is embedded once, also when several sets share it, in one call of `embed`.
        """
        sentences = list(dict.fromkeys(text for bitext in self.sets for text in (*bitext.first, *bitext.second)))
        asked = dict(zip(sentences, unit_vectors(embed, sentences), strict=True))
        indexed = dict(zip(sentences, unit_vectors(self.index, sentences), strict=True)) if self.index else asked
        scores = {}
        for bitext in self.sets:
            a, b = bitext.languages
            scores[f"{bitext.name}/{a}-{b}{METRIC}"] = retrieval(asked, indexed, bitext.first, bitext.second)
            scores[f"{bitext.name}/{b}-{a}{METRIC}"] = retrieval(asked, indexed, bitext.second, bitext.first)
        return scores


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
    _, rows = nearest(np.stack([asked[text] for text in queries]), [vectors_of_candidates], count=1)
    return float(np.mean(rows[:, 0] == own))


def files(folder: str | Path) -> dict[str, Path]:
    """Set name to file, in a data folder."""
    return {name: part_of(folder, "multilingual") / f"{name}.test.tsv.gz" for name in SETS}


def bitext_task(folder: str | Path, names: Sequence[str] = SETS, index: Embed | None = None) -> BitextTask:
    """The evaluation on the named sets of a data folder."""
    paths = files(folder)
    return BitextTask(sets=tuple(read_bitext(paths[name], name) for name in names), index=index)


def read_bitext(path: str | Path, name: str) -> Bitext:
    """Reads `NAME.en-de`: a table with the columns `en` and `de`; InputError with file and line for a bad row."""
    languages = tuple(name.rpartition(".")[2].split("-"))
    pairs = [cells for _, cells in columns(path, languages)]
    if len(pairs) < 2:
        raise InputError(f"{path}: {len(pairs)} pairs of sentences; retrieval needs at least 2.")
    one, other = zip(*pairs, strict=True)
    return Bitext(name=name, languages=languages, first=one, second=other)
