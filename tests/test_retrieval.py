"""Nearest rows, translations and entities, by hand, with embeddings that need no model."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.core.ops import nearest as nearest_rows
from jaxdistill.core.ops.nearest import nearest
from jaxdistill.evals import pairs, retrieval, suite
from jaxdistill.evals.evaluation import Model, Sources
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.models.students import CrossEncoder
from jaxdistill.training import dev

from eval_cases import on_a_circle, write

ANGLES = {"queen": 0, "play queen": 4, "kings": 30, "king": 28, "pop": 60, "jazz": 95, "rock": 100, "loud": 97}
EMBED = on_a_circle(ANGLES)


@pytest.mark.parametrize("block_rows", [1, 7, 32, 100])
def test_blocks_find_what_brute_force_finds(block_rows, monkeypatch):
    monkeypatch.setattr(nearest_rows, "QUERY_ROWS", 4)
    rng = np.random.default_rng(block_rows)
    queries, rows = rng.normal(size=(9, 5)), rng.normal(size=(100, 5))
    rows[50:60] = rows[:10]
    unit = [array / np.linalg.norm(array, axis=1, keepdims=True) for array in (queries, rows)]
    exact = unit[0] @ unit[1].T
    blocks = (rows[start : start + block_rows] for start in range(0, 100, block_rows))
    cosines, numbers = nearest(queries, blocks, count=12)
    np.testing.assert_allclose(cosines, -np.sort(-exact, axis=1)[:, :12], atol=1e-6)
    np.testing.assert_allclose(cosines, np.take_along_axis(exact, numbers, axis=1), atol=1e-6)
    assert all(len(set(row)) == 12 for row in numbers)


def test_equal_cosines_are_ordered_by_row_over_all_blocks():
    _, rows = nearest(np.eye(2), [np.tile(np.eye(2), (10, 1))] * 3, count=60)
    assert rows.tolist() == [[*range(0, 60, 2), *range(1, 60, 2)], [*range(1, 60, 2), *range(0, 60, 2)]]


def test_entities_by_hand(tmp_path):
    """`play queen` finds queen first. `king` means pop here, behind kings. `loud` means queen, the last of five."""
    path = write(
        tmp_path / "stations.de.tsv",
        ["query\tentity\tlabel", "play queen\tqueen\t1", "play queen\tkings\t0", "king\tkings\t0"]
        + ["king\tpop\t1", "loud\tjazz\t0", "loud\trock\t0", "loud\tqueen\t1"],
    )
    scores = retrieval.entity_recalls(retrieval.read_entities(path), EMBED)
    assert scores == {"entity/de recall@1": 1 / 3, "entity/de recall@5": 1.0, "entity/de recall@10": 1.0}
    entities = retrieval.read_entities(path)
    assert entities.catalogue == ["queen", "kings", "pop", "jazz", "rock"]
    assert entities.answers == {"play queen": {"queen"}, "king": {"pop"}, "loud": {"queen"}}
    several = ["label,entity,query", "1,pop,play queen", "1,queen,play queen", "0,jazz,king", "0,kings,king"]
    entities = retrieval.read_entities(write(tmp_path / "en.csv", several))
    assert retrieval.entity_recalls(entities, EMBED)["entity/en recall@1"] == 1.0  # any entity of a query counts
    assert entities.answers.keys() == {"play queen"}  # queries without one are left out
    with pytest.raises(InputError, match="no row has the label 1; a query needs an entity that it refers to"):
        retrieval.read_entities(write(tmp_path / "de.tsv", ["query\tentity\tlabel", "king\tkings\t0"]))


def test_entities_choose_the_best_checkpoint_by_their_mean_over_languages(tmp_path):
    """One of two queries finds its entity in German, the only one does in French."""
    rows = ("query\tentity\tlabel", "play queen\tqueen\t1", "play queen\tkings\t0")
    german = write(tmp_path / "dev.de.tsv", [*rows, "king\tpop\t1"])
    french = write(tmp_path / "dev.fr.tsv", rows)
    config = parse_config(dict(evals=dict(entities=f"{german},{french}"), objective=dict(kind="simcse")))
    tasks = dev.dev_tasks(config)
    chosen = dev.chosen_metric(tasks, "entities/recall@1")
    assert tasks[chosen](EMBED) == {"entities/recall@1": 0.75}
    with pytest.raises(
        InputError, match=r"evals.best='entities/recall@1' is not measured in this run; .* --config.evals.entities=FILE"
    ):
        dev.chosen_metric({}, "entities/recall@1")
    pair = dataclasses.replace(config, student=CrossEncoder())
    with pytest.raises(InputError, match="evals.entities=.* is for students with vectors"):
        dev.dev_tasks(pair)


def test_a_collapsed_model_has_no_score():
    """Its classes would have the share of the largest."""
    words = tuple(f"word {number}" for number in range(40))
    vector = np.random.default_rng(0).normal(size=(1, 32))
    rounding = 1 + 1e-6 * np.random.default_rng(1).normal(size=(len(words), 32))
    labelled = GradedPairs(name="mrpc", first=words[:20], second=words[20:], scores=np.arange(20.0) % 2)
    with pytest.raises(InputError, match="equally similar .1.: it has collapsed"):
        pairs.pairs_auc(lambda sentences: np.float32(vector * rounding[: len(sentences)]), labelled)


EN, DE = ("one", "two", "three", "four"), ("eins", "zwei", "drei", "vier")
WORDS_AT = {"one": 0, "two": 30, "three": 60, "four": 90, "eins": 5, "zwei": 50, "drei": 65, "vier": 70}
TRANSLATE = on_a_circle(WORDS_AT)
PAIRS = list(zip(EN, DE, strict=True))


def table(first=EN, second=DE, header="en\tde"):
    return [header, *("\t".join(pair) for pair in zip(first, second, strict=True))]


def test_recall_by_hand():
    """Each English word is nearest to its own; `zwei` (at 50) and `vier` (at 70) are nearest to `three` (at 60)."""
    task = partial(retrieval.translation_recalls, "x.en-de", PAIRS)
    assert task(TRANSLATE) == {"bitext/x.en-de/en-de recall@1": 1.0, "bitext/x.en-de/de-en recall@1": 0.5}


def test_equal_sentences_are_one_candidate_and_each_is_embedded_once():
    calls = []

    def embed(sentences):
        calls.append(list(sentences))
        return TRANSLATE(sentences)

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
    model = Model(embed=TRANSLATE)
    for evaluation, test_set in plan.sets:
        scores |= evaluation.run(model, test_set)
    assert scores["bitext/law.en-de/en-de recall@1"] == 1.0 and len(scores) == 4
    for name, words in (("en.tsv", "must be called NAME.en-de.tsv"), ("x.en-en.tsv", "must be called NAME.en-de.tsv")):
        with pytest.raises(InputError, match=words):
            suite.planned(["bitext"], Sources(bitext=(str(write(tmp_path / "wrong" / name, table())),)))
    write(tmp_path / "own" / "news.en-de.tsv", table(header="en\tfr"))
    with pytest.raises(InputError, match="news.en-de.tsv has no column 'de'; it has 'en', 'fr'"):
        plan.sets[1][0].run(model, plan.sets[1][1])
