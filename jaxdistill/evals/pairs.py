"""Measures how well similarities correlate with the scores of graded sentence pairs, the user's own or a published set's.

A file of graded pairs is `.tsv` (no quoting) or `.csv` (standard quoting), plain or `.gz`, in UTF-8, with the columns
`score`, `sentence1`, `sentence2`. With a header line the columns may have any order, and other columns are ignored;
without one the file has exactly these three. The scale of the scores does not matter: only their order is used.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.evals.evaluation import Absent, Evaluation, Model, Shown, Sources, Unit, absent, records_digest
from jaxdistill.evals.read_table import table_rows, table_suffix
from jaxdistill.evals.similarity import area_under_roc, similarities, spearman

COLUMNS = ("score", "sentence1", "sentence2")
SUBSET = "subset"
METRIC = "pairs/spearman"
AUC_METRIC = "pairs/auc"
"""Metric of pairs with the scores 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class GradedPairs:
    """Sentence pairs with similarity scores by humans (or another model); higher is more similar."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: Float[np.ndarray, " n"]
    subsets: tuple[str, ...] = ()
    """The subset of each pair, if the file has a column `subset`."""


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Pairs with their gold scores and a model's similarities, for a scatter plot."""

    name: str
    gold: Sequence[float]
    similarities: Sequence[float]
    pairs: Sequence[Sequence[str]]


def is_binary(pairs: GradedPairs) -> bool:
    """Whether the scores are binary labels: only 0 and 1, both present."""
    return set(pairs.scores.tolist()) == {0.0, 1.0}


def pairs_spearman(embed: Embed | Scorer, pairs: GradedPairs) -> float:
    """Spearman's correlation of the model's similarities and the scores, in [-1, 1]."""
    return spearman(pairs.scores, similarities(embed, pairs.first, pairs.second), what=pairs.name)


def correlation(pairs: GradedPairs, metric: str, embed: Embed | Scorer) -> Mapping[str, float]:
    """`pairs_spearman`, named `metric`."""
    return {metric: pairs_spearman(embed, pairs)}


def scored_pairs(pairs: GradedPairs, similarities: Float[np.ndarray, " n"]) -> ScoredPairs:
    """The pairs with a model's similarities, rounded to four decimals."""
    return ScoredPairs(
        name=pairs.name,
        gold=pairs.scores.tolist(),
        similarities=np.round(similarities.astype(np.float64), 4).tolist(),
        pairs=list(zip(pairs.first, pairs.second, strict=True)),
    )


def read_pairs(path: str | Path) -> GradedPairs:
    """Reads a file of graded pairs; raises `InputError` with file and line for a bad row."""
    path = Path(path)
    scores, first, second, subsets = [], [], [], []
    for line, (score, sentence1, sentence2, *subset) in _graded_rows(path):
        subsets += subset
        scores.append(_number(score, path, line))
        for sentence, into in ((sentence1, first), (sentence2, second)):
            if not sentence.strip():
                raise InputError(f"{path}:{line}: an empty sentence; each line needs a score and two sentences.")
            into.append(sentence.strip())
    if len(scores) < 2:
        raise InputError(f"{path}: {len(scores)} graded pairs; a correlation needs at least 2.")
    return GradedPairs(
        name=path.name, first=tuple(first), second=tuple(second), scores=np.array(scores), subsets=tuple(subsets)
    )


def _graded_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields (line, [score, sentence1, sentence2]) of each row, followed by the subset if there is such a column."""
    order, width = (0, 1, 2), 3
    for index, (line, fields) in enumerate(table_rows(path)):
        names = [field.strip().lower() for field in fields]
        if index == 0 and set(COLUMNS) <= set(names):
            known = (*COLUMNS, SUBSET) if SUBSET in names else COLUMNS
            if repeated := [column for column in known if names.count(column) > 1]:
                raise InputError(f"{path}:{line}: the header has the column {repeated[0]!r} twice; rename one of them.")
            order, width = tuple(names.index(column) for column in known), len(fields)
            continue
        if len(fields) != width:
            raise InputError(
                f"{path}:{line}: {len(fields)} fields, {width} are expected ({', '.join(COLUMNS)}, "
                f"separated by {'a tab' if table_suffix(path) == '.tsv' else 'commas'})."
            )
        yield line, [fields[place] for place in order]


def _number(text: str, path: Path, line: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not np.isfinite(score):
        names = ", ".join(COLUMNS)
        raise InputError(f"{path}:{line}: {text!r} is not a score; a finite number is needed (a header names {names}).")
    return score


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    """The unit of the user's own pairs, or its absence if neither these nor a data folder are given."""
    path = Path(sources.pairs)
    if sources.pairs:
        yield absent("pairs", [path]) or own_unit(path)
    elif not sources.data:
        yield Absent(
            "task pairs needs --pairs=FILE with score, sentence1, sentence2, or --data=FOLDER with QQP, QNLI and MRPC."
        )


def own_unit(known: Path | GradedPairs) -> Unit:
    """The unit of the user's own pairs, in a file or in memory."""
    is_file = isinstance(known, Path)
    return Unit(
        name="pairs",
        protocol="Spearman of cosine similarity and score; AUC where all scores are 0 or 1",
        files=(known,) if is_file else (),
        content="" if is_file else records_digest([known.first, known.second, known.scores.tolist()]),
        run=partial(_values, known),
    )


def _values(known: Path | GradedPairs, model: Model) -> dict[str, Any]:
    pairs = read_pairs(known) if isinstance(known, Path) else known
    predicted = similarities(model.embed, pairs.first, pairs.second)
    scores = {"pairs": spearman(pairs.scores, predicted, what=pairs.name)}
    if is_binary(pairs):
        scores[AUC_METRIC] = area_under_roc(pairs.scores, predicted)
    return {"scores": scores, "scored_pairs": asdict(scored_pairs(pairs, predicted))}


def _headings(measured: Iterable[str]) -> Mapping[str, str]:
    return {name: "graded pairs, AUC" if name.endswith("/auc") else "graded pairs" for name in measured}


EVALUATION = Evaluation(
    group="pairs", scores=("pairs",), units=_units, shown=Shown(headings=_headings, drawn=("pairs",))
)
