"""Scores semantic textual similarity: STS12-16, STS-B and SICK-R in English, and the tracks of STS 2017.

The protocol is `all` of SimCSE (Gao et al., EMNLP 2021, appendix B): Spearman's correlation between cosine similarity and gold
score over all pairs of a set together, without a trained regressor. SentEval's mean over a set's subsets differs by several points.

NOTE: the hub's copies have original case and spacing, while a data folder's SentEval files are lower-cased and tokenised: an
uncased model gets nearly the same score on both, a cased one may not. The hub's SICK has 4,906 test pairs, the original file 4,927.

The seven tracks are those of SemEval-2017 task 1 (Cer et al., https://arxiv.org/abs/1708.00055), which reports Pearson's correlation.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError, Scorer
from jaxdistill.core.files import foreign_errors
from jaxdistill.evals.evaluation import EmbeddingCache, Evaluation, Result, Sources, TestSet, average_of, spearman
from jaxdistill.evals.pairs import GradedPairs, pairs_spearman, read_pairs, scored_pairs
from jaxdistill.models.vectors import similarities

PROTOCOL = "Spearman of cosine similarity and gold score, all pairs of a set together (SimCSE)"
DEV_METRIC = "sts-b-dev/spearman"


class StsSet(NamedTuple):
    """A set's file in a data folder, and its name on the hub."""

    file: str
    hub: str
    split: str = "test"
    revision: str | None = None
    columns: tuple[str, str, str] = ("score", "sentence1", "sentence2")


SUBSETS = ("sts12", "sts13", "sts14", "sts15", "sts16")
"""Sets that SentEval also scores by subset (not STS-B and SICK-R)."""
SETS: Mapping[str, StsSet] = {
    **{name: StsSet(f"{name}.test.tsv.gz", f"mteb/{name}-sts") for name in SUBSETS},
    "sts-b": StsSet("stsb.test.tsv.gz", "mteb/stsbenchmark-sts"),
    # The "test" split of mteb/sickr-sts holds all 9,927 pairs of SICK, train and trial among them.
    "sick-r": StsSet(
        "sick.test.tsv.gz", "RobZamp/sick", revision="refs/convert/parquet",
        columns=("relatedness_score", "sentence_A", "sentence_B"),
    ),
    "sts-b-dev": StsSet("stsb.dev.tsv.gz", "mteb/stsbenchmark-sts", split="validation"),
}  # fmt: skip
PLOTTED = ("sts-b-dev", "sts-b", "pairs")
"""Sets whose graded pairs a report may plot: the first that was scored. ConGen's Figure 3 shows STS-B dev."""
TESTS = tuple(name for name in SETS if name != "sts-b-dev")
TRACKS = ("ar-ar", "en-ar", "es-es", "es-en", "es-en-mt", "en-en", "en-tr")
ADDED_TRACKS = ("en-de", "en-fr")
"""By Reimers and Gurevych (EMNLP 2020), and in ConGen's Table 3; scored only if the folder has them."""


def sts_values(embed: Embed | Scorer, graded: Mapping[str, GradedPairs], *, subsets: bool) -> Result:
    """Scores sets of graded pairs by name, and adds the `averages`; with `subsets`, also scores the subsets of sets in `SUBSETS`."""
    if not isinstance(embed, Scorer):
        embed = EmbeddingCache(embed)
        embed([sentence for pairs in graded.values() for sentence in (*pairs.first, *pairs.second)])  # fills the cache
    scores, scored_sets = {}, {}
    for name, pairs in graded.items():
        cosines = similarities(embed, pairs.first, pairs.second)
        scores[name] = spearman(pairs.scores, cosines, name=pairs.name)
        scored_sets[name] = scored_pairs(pairs, cosines)
        if subsets and name in SUBSETS:
            scores |= subset_scores(name, pairs, cosines)
    to_plot = next((scored_sets[name] for name in PLOTTED if name in scored_sets), None)
    details = {name: scored["similarities"] for name, scored in scored_sets.items()}
    return Result(scores | averages(scores), to_plot, details)


def subset_scores(name: str, pairs: GradedPairs, cosines: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Spearman of each subset of the set `name` as `sts12/MSRpar` and so on, their `sts12/mean`, and their `sts12/weighted mean` by
    number of pairs; empty if the file names fewer than two subsets."""
    sizes = Counter(pairs.subsets)
    if len(sizes) < 2:
        return {}
    scores = {}
    for subset in sizes:
        rows = np.array(pairs.subsets) == subset
        scores[f"{name}/{subset}"] = spearman(pairs.scores[rows], cosines[rows], name=f"{pairs.name}, subset {subset}")
    values = list(scores.values())
    scores[f"{name}/mean"] = float(np.mean(values))
    scores[f"{name}/weighted mean"] = float(np.average(values, weights=list(sizes.values())))
    return scores


def averages(scores: Mapping[str, float]) -> dict[str, float]:
    """The `average` of the seven tests; if subsets were scored, also `average/mean` and `average/weighted mean`, in which a set without
    subsets, such as STS-B, counts by its only score. Empty if a test was not scored."""
    if not set(TESTS) <= set(scores):
        return {}
    means = {"average": float(np.mean([scores[name] for name in TESTS]))}
    for mean in ("mean", "weighted mean"):
        if any(f"{name}/{mean}" in scores for name in SUBSETS):
            means[f"average/{mean}"] = float(np.mean([scores.get(f"{name}/{mean}", scores[name]) for name in TESTS]))
    return means


def digest(folder: str | Path) -> str:
    """SHA-256 of the protocol and of all existing files of the sets; raises `InputError` like `sts_folder`."""
    paths = [sts_folder(folder) / source.file for source in SETS.values()]
    contents = b"".join(path.read_bytes() for path in paths if path.is_file())
    return hashlib.sha256(PROTOCOL.encode() + contents).hexdigest()


def sts_folder(folder: str | Path) -> Path:
    """The folder `sts` of a data folder; raises `InputError` if it has none of the sets."""
    subfolder = Path(folder) / "sts"
    if not any((subfolder / source.file).is_file() for source in SETS.values()):
        raise InputError(f"{folder}: not a data folder; it must contain sts/{SETS['sts-b-dev'].file} and so on.")
    return subfolder


def read_set(name: str, folder: str | Path | None) -> GradedPairs:
    """The graded pairs of a set, from the data folder or, without one, from the hub."""
    source = SETS[name]
    if folder is not None:
        return read_pairs(sts_folder(folder) / source.file)
    import datasets  # imported here: it takes two seconds, and only hub users need it

    with foreign_errors(f"{source.hub} cannot be loaded from the hub; give a data folder with STS (JAXDISTILL_DATA)"):
        rows = datasets.load_dataset(source.hub, split=source.split, revision=source.revision)
    score, first, second = (rows[column] for column in source.columns)
    return GradedPairs(name=source.hub, first=tuple(first), second=tuple(second), scores=np.array(score, np.float64))


def test_set_of(sts_name: str, name: str, protocol: str, sources: Sources, *, is_repeatable: bool = True) -> TestSet:
    """A test set called `name` with the pairs of `SETS[sts_name]`; its `content` has the arguments of `read_set`."""
    source = SETS[sts_name]
    folder = sources.data or None
    files = (Path(folder) / "sts" / source.file,) if folder else ()
    if not files:
        protocol = f"{protocol}; pairs of {source.hub} on the Hugging Face hub"
        is_repeatable = False  # the hub's copy may change
    return TestSet(name=name, protocol=protocol, files=files, content=(sts_name, folder), is_repeatable=is_repeatable)


def _sets(sources: Sources) -> Iterator[TestSet]:
    """The sets that the user's tasks name; the task `sts` names all."""
    by_subset = "; also each subset, their mean, and their mean weighted by pairs (SentEval)"
    names = [name for name in SETS if "sts" in sources.tasks or name in sources.tasks]
    if names and not sources.data:
        read_set(names[0], None)  # without a network, an error at once instead of one for each set, after minutes
    for name in names:
        yield test_set_of(name, name, f"{PROTOCOL}{by_subset if name in SUBSETS else ''}", sources)


EVALUATION = Evaluation(
    task="sts",
    names=tuple(SETS),
    scores=(*SETS, "average"),
    sets=_sets,
    run=lambda model, test_set: sts_values(model.embed, {test_set.name: read_set(*test_set.content)}, subsets=True),
    averages=averages,
    headings={"average": "STS, average of 7", "sts-b-dev": "STS-B dev", DEV_METRIC: "STS-B dev"},
)


def _tracks(sources: Sources) -> Iterator[TestSet]:
    """The tracks of STS 2017, those in `ADDED_TRACKS` only if their files exist."""
    for track in (*TRACKS, *ADDED_TRACKS):
        path = sources.subfolder("multilingual") / f"sts17.{track}.test.tsv.gz"
        if track in TRACKS or path.is_file():
            yield TestSet(name=f"sts17/{track}", protocol="Spearman of cosine similarity and gold score", files=(path,))


MULTILINGUAL = Evaluation(
    task="multilingual",
    scores=("sts17",),
    sets=_tracks,
    run=lambda model, track: {track.name: pairs_spearman(model.embed, read_pairs(track.file))},
    averages=average_of("sts17/average", [f"sts17/{track}" for track in TRACKS]),
    headings={"sts17/average": "STS 2017"},
)
