"""Bitext retrieval, by hand and on files, with embeddings that need no model."""

from functools import partial

import pytest

from jaxdistill.core import InputError
from jaxdistill.evals import bitext, suite
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
    task = partial(bitext.recalls, "x.en-de", PAIRS)
    assert task(EMBED) == {"bitext/x.en-de/en-de recall@1": 1.0, "bitext/x.en-de/de-en recall@1": 0.5}


def test_equal_sentences_are_one_candidate_and_each_is_embedded_once():
    calls = []

    def embed(sentences):
        calls.append(list(sentences))
        return EMBED(sentences)

    scores = bitext.recalls("x.en-de", [("one", "eins"), ("two", "eins")], embed)
    assert scores["bitext/x.en-de/en-de recall@1"] == 1.0
    assert scores["bitext/x.en-de/de-en recall@1"] == 0.5  # `eins` is nearer to `one`, and is asked for both
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) == 3


def test_own_translations_are_files_whose_names_end_in_their_languages(tmp_path):
    names = ("news.en-de.tsv", "en-fr.dev.csv.gz", "tatoeba.en-tr.test.tsv.gz", "x.en-en.tsv", "notes.txt", "en.tsv")
    for name in names:
        write(tmp_path / "own" / name, table())
    alone = write(tmp_path / "law.pt_BR-zh.csv", table(header="zh,pt_BR"))
    for spec in (alone, alone.with_name("law.*")):
        found = bitext.own_files([str(tmp_path / "own"), str(spec)])
        assert {name: path.name for name, path in found.items()} == {
            "en-fr": "en-fr.dev.csv.gz", "news.en-de": "news.en-de.tsv", "tatoeba.en-tr": "tatoeba.en-tr.test.tsv.gz",
            "law.pt_BR-zh": "law.pt_BR-zh.csv",
        }  # fmt: skip
    (tmp_path / "empty").mkdir()
    for colon, spec, words in (
        ("=", "own/en.tsv", "does not name its two languages; call it NAME.en-de.tsv or .csv"),
        ("=", "empty", "has no file of translations, NAME.en-de.tsv"),
        (": ", "absent", "does not exist; name a file or a glob."),
    ):
        with pytest.raises(InputError, match=f"^--bitext{colon}{tmp_path}/{spec} {words}"):
            bitext.own_files([str(tmp_path / spec)])
    with pytest.raises(InputError, match=r"own/news.en-de.tsv and \S*/again/news.en-de.csv; rename one of them"):
        bitext.own_files([str(tmp_path / "own"), str(write(tmp_path / "again" / "news.en-de.csv", table()))])


def test_own_translations_are_scored_in_place_of_the_data_folders(tmp_path):
    for name in ("news", "law"):
        write(tmp_path / "own" / f"{name}.en-de.tsv", table())
    plan = suite.planned(["bitext"], Sources(data=str(tmp_path), bitext=(str(tmp_path / "own"),)))
    assert [test_set.name for _, test_set in plan.sets] == ["bitext/law.en-de", "bitext/news.en-de"] and not plan.absent
    scores = {}
    model = Model(embed=EMBED, embed_in_batches=lambda size: EMBED, parameters=0, size_bytes=0)
    for evaluation, test_set in plan.sets:
        scores |= evaluation.run(model, test_set)
    assert scores["bitext/law.en-de/en-de recall@1"] == 1.0 and len(scores) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table(header="en\tfr"), "the columns are en, fr; en and de are needed"),
        ([], "the columns are none; en and de are needed"),
        (["en\tde", "one\teins"], "1 pairs of sentences; retrieval needs at least 2"),
    ],
)
def test_a_malformed_file_of_bitext_is_one_clear_error(tmp_path, content, message):
    path = write(tmp_path / "x.en-de.test.tsv.gz", content)
    with pytest.raises(InputError, match=message) as error:
        bitext.read_bitext(path, "x.en-de")
    assert "\n" not in str(error.value)


def test_real_sets_have_1000_pairs(data_folder):
    for _, test_set in suite.planned(["bitext"], Sources(data=str(data_folder / "multilingual"))).sets:
        assert len(bitext.read_bitext(test_set.file, test_set.content)) == 1000
