"""Bitext retrieval, by hand and on files, with embeddings that need no model."""

from functools import partial

import pytest

from jaxdistill.core import InputError
from jaxdistill.evals import retrieval, suite
from jaxdistill.evals.evaluation import Model, Sources

from eval_cases import on_a_circle, write

EN, DE = ("one", "two", "three", "four"), ("eins", "zwei", "drei", "vier")
ANGLES = {"one": 0, "two": 30, "three": 60, "four": 90, "eins": 5, "zwei": 50, "drei": 65, "vier": 70}
EMBED = on_a_circle(ANGLES)
PAIRS = list(zip(EN, DE, strict=True))


def table(first=EN, second=DE, header="en\tde"):
    return [header, *("\t".join(pair) for pair in zip(first, second, strict=True))]


def test_recall_by_hand():
    """Each English word is nearest to its own; `zwei` (at 50) and `vier` (at 70) are nearest to `three` (at 60)."""
    task = partial(retrieval.translation_recalls, "x.en-de", PAIRS)
    assert task(EMBED) == {"bitext/x.en-de/en-de recall@1": 1.0, "bitext/x.en-de/de-en recall@1": 0.5}


def test_equal_sentences_are_one_candidate_and_each_is_embedded_once():
    calls = []

    def embed(sentences):
        calls.append(list(sentences))
        return EMBED(sentences)

    scores = retrieval.translation_recalls("x.en-de", [("one", "eins"), ("two", "eins")], embed)
    assert scores["bitext/x.en-de/en-de recall@1"] == 1.0
    assert scores["bitext/x.en-de/de-en recall@1"] == 0.5  # `eins` is nearer to `one`, and is asked for both
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) == 3


def test_own_translations_are_scored_in_place_of_the_data_folders(tmp_path):
    """A folder's other files are ignored."""
    for name in ("news.en-de.tsv", "law.en-de.test.csv.gz", "notes.txt", "en.tsv"):
        write(tmp_path / "own" / name, [line.replace("\t", "," if "csv" in name else "\t") for line in table()])
    plan = suite.planned(["bitext"], Sources(data=str(tmp_path), bitext=(str(tmp_path / "own"),)))
    assert [test_set.name for _, test_set in plan.sets] == ["bitext/law.en-de", "bitext/news.en-de"] and not plan.absent
    scores = {}
    model = Model(embed=EMBED, embed_in_batches=lambda size: EMBED, parameters=0, size_bytes=0)
    for evaluation, test_set in plan.sets:
        scores |= evaluation.run(model, test_set)
    assert scores["bitext/law.en-de/en-de recall@1"] == 1.0 and len(scores) == 4
    for name, words in (("en.tsv", "must be called NAME.en-de.tsv"), ("x.en-en.tsv", "must be called NAME.en-de.tsv")):
        with pytest.raises(InputError, match=words):
            suite.planned(["bitext"], Sources(bitext=(str(write(tmp_path / "wrong" / name, table())),)))
    write(tmp_path / "own" / "news.en-de.tsv", table(header="en\tfr"))
    with pytest.raises(InputError, match="the columns are en, fr; en and de are needed"):
        plan.sets[1][0].run(model, plan.sets[1][1])
