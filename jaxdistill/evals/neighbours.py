"""Finds the nearest neighbours of random captions, as sentences to read and as mean cosines.

ConGen's qualitative study (section 5, Table 12, after SimCSE) searches all Flickr30k captions for the neighbours of random
ones. Here 20,000 random captions are searched, because encoding all 150,000 takes longer than all other evaluations together.
There is no gold answer; the cosine of each neighbour is reported.

If another model made the index (asymmetric search, LEAF, arXiv 2509.12539), its own neighbours are the gold answers:
`overlap` is the share of them that the model's queries find.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from jaxdistill.core import Embed, InputError
from jaxdistill.evals import probe
from jaxdistill.evals.evaluation import (
    ASYMMETRIC,
    Absent,
    Evaluation,
    Shown,
    Sources,
    Unit,
    no_folder,
    search_units,
)
from jaxdistill.evals.read_table import part_of, text_lines
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.ops.nearest import nearest_others, overlap

Examples = Sequence[Mapping[str, Any]]
"""For each query, `query` and `found`: a list of `[cosine, sentence]`, nearest first."""
QUERIES = 100
SHOWN = 5
"""Number of queries whose neighbours are reported as sentences."""
CAPTIONS = 20_000
RANKS = (1, 5, 10)
PROTOCOL = f"{QUERIES} of {CAPTIONS:,} random Flickr30k captions, looked for among the others (ConGen, Table 12)"


def neighbours(
    captions: Sequence[str], embed: Embed, *, queries: int = QUERIES, index: Embed | None = None
) -> tuple[Mapping[str, float], Examples]:
    """Scores in [-1, 1], and the captions that are found for the first queries.

    Scores: `nearest/cosine@k`, the mean cosine of the neighbours up to rank `k`; with another model's index, also
    `nearest/overlap@k`.

    Args:
      queries: number of captions, the first ones, whose neighbours are searched.
      index: another model that embeds the index; None: the evaluated model.
    """
    indexed = unit_vectors(index or embed, captions)
    refuse_same_vectors(indexed, captions, f"the model finds all {len(indexed):,} captions")
    asked = unit_vectors(embed, captions[:queries]) if index else indexed[:queries]
    cosines, others = nearest_others(asked, indexed, count=RANKS[-1])
    scores = {f"nearest/cosine@{rank}": float(np.mean(cosines[:, :rank])) for rank in RANKS}
    if index:
        _, own = nearest_others(indexed[:queries], indexed, count=RANKS[-1])
        scores |= {f"nearest/overlap@{rank}": overlap(own[:, :rank], others[:, :rank]) for rank in RANKS}
    examples = [
        {
            "query": captions[query],
            "found": [
                [round(float(cosine), 4), captions[row]]
                for row, cosine in zip(others[query], cosines[query], strict=True)
            ],
        }
        for query in range(min(SHOWN, queries))
    ]
    return scores, examples


def drawn_captions(path: str | Path, *, seed: int) -> list[str]:
    """Random sentences of a text file, each once."""
    captions = list(dict.fromkeys(text for _, text in text_lines(Path(path)) if text.strip()))
    if len(captions) <= QUERIES:
        raise InputError(f"{path}: {len(captions)} different sentences; more than {QUERIES} are needed.")
    chosen = np.random.default_rng(seed).permutation(len(captions))[:CAPTIONS]
    return [captions[row] for row in chosen]


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    if not sources.data:
        yield no_folder("nearest")
        return
    path = part_of(sources.data, "text") / "captions_flickr30k.txt.gz"
    yield from search_units(sources, "nearest", PROTOCOL, path, values=partial(_values, path))


def _values(path: Path, embed: Embed, index: Embed | None) -> dict[str, Any]:
    scores, examples = neighbours(drawn_captions(path, seed=probe.SEED), embed, index=index)
    return {"scores": scores, "neighbours": list(examples)}


HEADINGS = {f"{ASYMMETRIC}nearest/overlap@{RANKS[-1]}": f"overlap@{RANKS[-1]} with the index model"}
"""The score of a report's first table; cosines alone say nothing about quality."""
EVALUATION = Evaluation(
    group="retrieval",
    scores=("nearest",),
    units=_units,
    shown=Shown(measure="cosine, overlap × 100", headings=lambda measured: HEADINGS),
)
