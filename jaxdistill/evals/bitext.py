"""Measures retrieval of translations: recall at 1 of a sentence's own translation among all translations.

Recall at 1 is the share of sentences whose nearest neighbour in the other language, by cosine similarity, is their own
translation; it is measured in both directions. The protocol follows LASER's Tatoeba test (Artetxe and Schwenk,
TACL 2019, https://arxiv.org/abs/1812.10464), which reports the error rate, one minus recall.

The sets come from a data folder (`multilingual/tatoeba.en-de.test.tsv.gz` and so on; `--data` may name the folder or its
`multilingual`), or are the user's own: tables with one column per language, whose rows are translations of each other. The name of
a file ends in its languages, which are the names of the columns: `[NAME.]en-de[.test|.dev].tsv` or `.csv`, plain or `.gz`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxdistill.core import Embed, InputError
from jaxdistill.data.sources import files_of
from jaxdistill.evals.evaluation import Evaluation, Model, Sources, TestSet, average_heading, average_of
from jaxdistill.evals.read_table import columns
from jaxdistill.evals.similarity import refuse_same_vectors, unit_vectors
from jaxdistill.files import matching
from jaxdistill.ops.nearest import nearest

PROTOCOL = "recall at 1 of the nearest neighbour by cosine similarity (LASER's Tatoeba test)"
METRIC = "recall@1"
PUBLISHED = (
    "multi30k2016.en-de",
    "multi30k2016.en-fr",
    *(f"tatoeba.en-{one}" for one in ("de", "fr", "es", "tr", "ar")),
)
"""Names of the data folder's sets; the part after the dot names the file's columns."""
FILE_NAME = re.compile(r"((?:.*\.)?(\w+)-(?!\2\.)\w+)(?:\.(?:test|dev))?\.[ct]sv(?:\.gz)?")


def languages(name: str) -> tuple[str, str]:
    """`("en", "de")` of `tatoeba.en-de`."""
    first, second = name.rpartition(".")[2].split("-")
    return first, second


def score_names(name: str) -> tuple[str, str]:
    """Names of a set's two scores: from its first language to the second, and back."""
    first, second = languages(name)
    begin = name if name in PUBLISHED else f"bitext/{name}"
    return f"{begin}/{first}-{second} {METRIC}", f"{begin}/{second}-{first} {METRIC}"


def recalls(name: str, pairs: Sequence[tuple[str, str]], embed: Embed) -> Mapping[str, float]:
    """`tatoeba.en-de/en-de recall@1` and `tatoeba.en-de/de-en recall@1`, in [0, 1]; equal translations are one candidate."""
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


def read_bitext(path: str | Path, name: str) -> list[tuple[str, str]]:
    """Reads `NAME.en-de`: a table with the columns `en` and `de`; raises `InputError` with file and line for a bad row."""
    pairs = [(one, other) for _, (one, other) in columns(path, languages(name))]
    if len(pairs) < 2:
        raise InputError(f"{path}: {len(pairs)} pairs of sentences; retrieval needs at least 2.")
    return pairs


def own_files(specs: Sequence[str]) -> dict[str, Path]:
    """Maps names of sets to files, for files, globs and folders; ignores a folder's other files."""
    files: dict[str, Path] = {}
    for spec in specs:
        folder = Path(spec).expanduser()
        for path in matching(folder, "*-*") if folder.is_dir() else files_of("--bitext", [spec]):
            named = FILE_NAME.fullmatch(path.name)
            if named and named[1] in files:
                raise InputError(f"--bitext has {files[named[1]]} and {path}; rename one of them.")
            if named:
                files[named[1]] = path
            elif not folder.is_dir():
                raise InputError(f"--bitext={path} does not name its two languages; call it NAME.en-de.tsv or .csv.")
    if not files:
        raise InputError(f"--bitext={','.join(specs)} has no file of translations, NAME.en-de.tsv.")
    return files


def _sets(sources: Sources) -> Iterable[TestSet]:
    if sources.bitext:
        files = own_files(sources.bitext)
    else:
        files = {name: sources.part("multilingual", "bitext") / f"{name}.test.tsv.gz" for name in PUBLISHED}
    for name, path in files.items():
        yield TestSet(name=f"bitext/{name}", protocol=PROTOCOL, files=(path,), content=name)


def _run(model: Model, test_set: TestSet) -> Mapping[str, float]:
    return recalls(test_set.content, read_bitext(test_set.file, test_set.content), model.embed)


AVERAGE = f"bitext/average {METRIC}"
EVALUATION = Evaluation(
    task="retrieval",
    names=("bitext",),
    scores=("bitext", *PUBLISHED),
    sets=_sets,
    run=_run,
    averages=average_of(AVERAGE, [score for name in PUBLISHED for score in score_names(name)]),
    measure="recall × 100",
    headings=average_heading(AVERAGE, "translations, recall@1"),
)
