"""Nearest rows, entities and captions, by hand, with embeddings that need no model."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.evals import auc, bitext, dev_metric, entity, neighbours, transfer
from jaxdistill.evals.pairs import GradedPairs
from jaxdistill.ops.nearest import nearest, nearest_others
from jaxdistill.students.cross_encoder import CrossEncoder
from jaxdistill.training.setup.dev import read_dev_sets

from eval_cases import on_a_circle, write

ANGLES = {"queen": 0, "play queen": 4, "kings": 30, "king": 28, "pop": 60, "jazz": 95, "rock": 100, "loud": 97}
EMBED = on_a_circle(ANGLES)


def test_an_index_of_another_width_is_an_error():
    with pytest.raises(InputError, match="queries have 2 numbers and the index 3.*keeps its head"):
        nearest(np.ones((1, 2)), [np.ones((3, 3))], count=1)


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
    scores = entity.recalls(entity.read_entities(path), EMBED)
    assert scores == {"entity/de recall@1": 1 / 3, "entity/de recall@5": 1.0, "entity/de recall@10": 1.0}
    found = entity.read_entities(path)
    assert found.entities == ("queen", "kings", "pop", "jazz", "rock")
    assert found.meant == (frozenset({0}), frozenset({2}), frozenset({0}))


def test_any_of_several_entities_will_do_and_queries_without_one_are_not_asked(tmp_path):
    path = write(
        tmp_path / "en.csv",
        ["label,entity,query", "1,pop,play queen", "1,queen,play queen", "0,jazz,king", "0,kings,king"],
    )
    assert entity.recalls(entity.read_entities(path), EMBED)["entity/en recall@1"] == 1.0
    assert entity.read_entities(path).queries == ("play queen",)


def test_entities_choose_the_best_checkpoint_by_their_mean_over_languages(tmp_path):
    """One of two queries finds its entity in German, the only one does in French."""
    rows = ("query\tentity\tlabel", "play queen\tqueen\t1", "play queen\tkings\t0")
    german = write(tmp_path / "dev.de.tsv", [*rows, "king\tpop\t1"])
    french = write(tmp_path / "dev.fr.tsv", rows)
    config = parse_config(dict(evals=dict(entities=f"{german},{french}"), objective=dict(kind="simcse")))
    entities = read_dev_sets(config).entities
    tasks = dev_metric.available_tasks(named={}, graded=None, agreement_task=None, entities=entities)
    chosen = dev_metric.chosen_metric(tasks, "entities/recall@1")
    assert tasks[chosen](EMBED) == {"entities/recall@1": 0.75}
    with pytest.raises(
        InputError, match=r"evals.best='entities/recall@1' needs your own data; give --config.evals.ent"
    ):
        dev_metric.chosen_metric({}, "entities/recall@1")
    pair = dataclasses.replace(config, student=CrossEncoder())
    with pytest.raises(InputError, match="evals.entities=.* is for students with vectors"):
        read_dev_sets(pair)


def test_entities_of_another_models_index(tmp_path):
    """The index has queen and pop changed places, so that `play queen` finds pop."""
    path = write(tmp_path / "en.tsv", ["query\tentity\tlabel", "play queen\tqueen\t1", "play queen\tpop\t0"])
    places = {"queen": "pop", "pop": "queen"}

    def index(texts):
        return EMBED([places[text] for text in texts])

    assert entity.recalls(entity.read_entities(path), EMBED, index=index)["entity/en recall@1"] == 0.0


def test_entities_to_which_no_query_refers_are_refused(tmp_path):
    with pytest.raises(InputError, match="no row has the label 1; a query needs an entity that it refers to"):
        entity.read_entities(write(tmp_path / "de.tsv", ["query\tentity\tlabel", "king\tkings\t0"]))


@pytest.mark.parametrize("name", ["de.tsv", "de.csv.gz", "stations.de.tsv.gz"])
def test_the_name_of_a_file_tells_its_language(name):
    assert entity.language(name) == "de"


def test_neighbours_by_hand():
    scores, examples = neighbours.neighbours(list(ANGLES), EMBED, queries=2)
    assert [example["query"] for example in examples] == ["queen", "play queen"]
    assert [text for _, text in examples[0]["found"]] == ["play queen", "king", "kings", "pop", "jazz", "loud", "rock"]
    assert examples[1]["found"][0] == [pytest.approx(np.cos(np.deg2rad(4)), abs=1e-4), "queen"]
    assert scores["nearest/cosine@1"] == pytest.approx(np.cos(np.deg2rad(4)), abs=1e-6)
    assert list(scores) == ["nearest/cosine@1", "nearest/cosine@5", "nearest/cosine@10"]


def test_equal_vectors_are_neighbours_in_their_order():
    cosines, rows = nearest_others(same := np.float32([[1, 0], [2, 0], [3, 0], [0, 1]]), same, count=2)
    assert rows.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]] and cosines.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_the_overlap_with_the_index_model_is_1_for_itself():
    captions = tuple(f"caption {number}" for number in range(40))
    vectors = dict(zip(captions, np.random.default_rng(0).normal(size=(40, 16)), strict=True))

    def teacher(texts):
        return np.stack([vectors[text] for text in texts])

    study = partial(neighbours.neighbours, captions, queries=10, index=teacher)
    same, _ = study(teacher)
    assert [same[f"nearest/overlap@{rank}"] for rank in (1, 5, 10)] == [1.0, 1.0, 1.0]
    other, _ = study(lambda texts: np.random.default_rng(1).normal(size=(len(texts), 16)))
    assert 0.0 <= other["nearest/overlap@10"] < 0.6


def test_captions_are_drawn_alike_every_time(tmp_path):
    path = write(tmp_path / "captions.txt.gz", [f"caption {number % 150}" for number in range(300)])
    one, again, other = (neighbours.drawn_captions(path, seed=seed) for seed in (0, 0, 1))
    assert one == again != other and sorted(one) == sorted(other) and len(set(one)) == 150
    with pytest.raises(InputError, match="1 different sentences; more than 100 are needed"):
        neighbours.drawn_captions(write(tmp_path / "one.txt", ["a", "a"]), seed=0)


WORDS = tuple(f"word {number}" for number in range(40))


@pytest.mark.parametrize(
    "task",
    [
        partial(neighbours.neighbours, WORDS, queries=2),
        partial(
            entity.recalls,
            entity.EntitySet(
                language="de", queries=WORDS[:2], entities=WORDS[2:], meant=(frozenset({0}), frozenset({1}))
            ),
        ),
        partial(bitext.recalls, bitext.Bitext(name="x.en-de", first=WORDS[:20], second=WORDS[20:])),
        partial(
            auc.area,
            GradedPairs(name="mrpc", first=WORDS[:20], second=WORDS[20:], scores=np.arange(20.0) % 2),
            "auc/mrpc",
        ),
        partial(
            transfer.SETS["mr"].scores,
            transfer.Rows(
                sentences=tuple((word,) for word in WORDS),
                labels=np.arange(40) % 2,
                split={"mr.all": np.full(40, True)},
            ),
        ),
    ],
    ids=["nearest", "entity", "bitext", "auc", "transfer"],
)
def test_a_collapsed_model_has_no_score(task):
    """Its nearest captions would have a cosine of 1, and its classes the share of the largest."""
    one = np.random.default_rng(0).normal(size=(1, 32))
    rounding = 1 + 1e-6 * np.random.default_rng(1).normal(size=(len(WORDS), 32))
    with pytest.raises(InputError, match="equally similar .1.: it has collapsed"):
        task(lambda sentences: np.float32(one * rounding[: len(sentences)]))
