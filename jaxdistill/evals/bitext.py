"""Measures retrieval of translations: recall at 1 of a sentence's own translation among all, in both directions, by cosine.

The protocol follows LASER's Tatoeba test (Artetxe and Schwenk, TACL 2019, https://arxiv.org/abs/1812.10464), which reports the
error rate, one minus recall. The sets come from a data folder (`multilingual/tatoeba.en-de.test.tsv.gz` and so on), or are the
user's own tables with one column per language. The name of a file ends in these columns: `[NAME.]en-de[.test].tsv` or `.csv`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, InputError
from jaxdistill.data.sources import files_of
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_of
from jaxdistill.evals.read_table import read_table
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1 of the nearest neighbour by cosine similarity (LASER's Tatoeba test)"
PUBLISHED = (
    *("multi30k2016.en-de", "multi30k2016.en-fr"),
    *(f"tatoeba.en-{language}" for language in ("de", "fr", "es", "tr", "ar")),
)
FILE_NAME = re.compile(r"((?:.*\.)?(\w+)-(?!\2\.)\w+)(?:\.(?:test|dev))?\.[ct]sv(?:\.gz)?")


def score_names(name: str) -> tuple[str, str]:
    """Names of a set's two scores: from its first language to the second, and back."""
    first, second = name.rpartition(".")[2].split("-")
    begin = name if name in PUBLISHED else f"bitext/{name}"
    return f"{begin}/{first}-{second} recall@1", f"{begin}/{second}-{first} recall@1"


def recalls(name: str, pairs: Sequence[tuple[str, str]], embed: Embed) -> Mapping[str, float]:
    """`tatoeba.en-de/en-de recall@1` and `tatoeba.en-de/de-en recall@1`, in [0, 1]; equal translations are one candidate."""
    if len(pairs) < 2:
        raise InputError(f"{name}: {len(pairs)} pair of sentences; retrieval needs at least 2.")
    sentences = list(dict.fromkeys([*(one for one, _ in pairs), *(other for _, other in pairs)]))
    vectors = dict(zip(sentences, unit_vectors(embed, sentences), strict=True))
    scores = {}
    for score, both in zip(score_names(name), (pairs, [(other, one) for one, other in pairs]), strict=True):
        candidates = list(dict.fromkeys(translation for _, translation in both))
        index = np.stack([vectors[text] for text in candidates])
        refuse_same_vectors(index, candidates, f"the model finds all {len(candidates):,} sentences")
        _, found = nearest(np.stack([vectors[query] for query, _ in both]), [index], count=1)
        scores[score] = float(np.mean([candidates[row] == text for (row,), (_, text) in zip(found, both, strict=True)]))
    return scores


def _sets(sources: Sources) -> Iterable[TestSet]:
    named: dict[str, Path] = {}
    for path in files_of("bitext", [f"{spec}/*-*.[ct]sv*" if Path(spec).is_dir() else spec for spec in sources.bitext]):
        match = FILE_NAME.fullmatch(path.name)
        if not match or match[1] in named:
            raise InputError(
                f"bitext={path} must be called NAME.en-de.tsv or .csv by its two languages, as no other file."
            )
        named[match[1]] = path
    if not named:
        named = {name: sources.part("multilingual", "bitext") / f"{name}.test.tsv.gz" for name in PUBLISHED}
    for name, path in named.items():
        yield TestSet(name=f"bitext/{name}", protocol=PROTOCOL, files=(path,), content=name)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    languages = test_set.content.rpartition(".")[2].lower().split("-")
    table = read_table(test_set.file, languages)
    pairs = list(zip(*(table[language] for language in languages), strict=True))
    return recalls(test_set.content, pairs, model.embed)


AVERAGE = "bitext/average recall@1"
EVALUATION = Evaluation(
    task="retrieval",
    names=("bitext",),
    scores=("bitext", *PUBLISHED),
    sets=_sets,
    run=_run,
    averages=average_of(AVERAGE, [score for name in PUBLISHED for score in score_names(name)]),
    headings={AVERAGE: "translations, recall@1"},
)
