"""Scores STS 2017: ranking of pairs of Spanish, Arabic and mixed sentences.

The seven tracks come from SemEval-2017 task 1 (Cer et al., https://arxiv.org/abs/1708.00055), 250 pairs each. English
with German and with French, which Reimers and Gurevych (EMNLP 2020) added and ConGen's Table 3 includes, are scored if the
folder has them. The score is Spearman's correlation of cosine similarity and gold score, as for English STS (the task itself
reports Pearson's). The sets come from a data folder: `multilingual/sts17.es-en.test.tsv.gz` and so on.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from jaxdistill.core import Task
from jaxdistill.evals.evaluation import Absent, Evaluation, Shown, Sources, Unit, average_heading, average_of, set_units
from jaxdistill.evals.pairs import correlation, read_pairs
from jaxdistill.evals.read_table import part_of

PROTOCOL = "Spearman of cosine similarity and gold score"
TRACKS = ("ar-ar", "en-ar", "es-es", "es-en", "es-en-mt", "en-en", "en-tr")
ADDED = ("en-de", "en-fr")
"""Tracks that are scored only if the folder has them."""


def files(folder: str | Path, track: str) -> tuple[Path, ...]:
    """The file of a track."""
    return (part_of(folder, "multilingual") / f"sts17.{track}.test.tsv.gz",)


def _task(folder: str | Path, track: str) -> Task:
    return partial(correlation, read_pairs(*files(folder, track)), f"sts17/{track}")


def _units(sources: Sources) -> Iterable[Unit | Absent]:
    added = [track for track in ADDED if sources.data and files(sources.data, track)[0].is_file()]
    return set_units(sources, "sts17", [*TRACKS, *added], files=files, protocol=lambda track: PROTOCOL, task=_task)


EVALUATION = Evaluation(
    group="multilingual",
    scores=("sts17",),
    units=_units,
    averages=average_of("sts17/average", [f"sts17/{track}" for track in TRACKS]),
    shown=Shown(headings=average_heading("sts17/average", "STS 2017")),
)
