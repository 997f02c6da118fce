"""STS, graded pairs, agreement and the choice among them, with embeddings that need no model."""

import csv
from unittest import mock

import datasets
import numpy as np
import pytest
from scipy.stats import spearmanr

from jaxdistill.config.options import Config, Evals
from jaxdistill.core import InputError
from jaxdistill.evals import agreement, pairs, sts, suite
from jaxdistill.evals.evaluation import Sources, spearman
from jaxdistill.models.vectors import similarities, unit_vectors
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.training import dev

from eval_cases import GRADED, on_a_circle, sts_scores, write

ROWS = [
    ("4.5", "a cat sleeps on the mat", "a cat naps on the mat"),
    ("3.0", "two dogs run in a field", "a dog runs in a park"),
    ("2.0", "a man plays the guitar", "a woman plays the piano loudly"),
    ("0.5", "it rains in the hills", "the market opens at nine"),
    ("0.0", "a cat sleeps on the mat", "shares fell on monday"),
]


def bag_of_words(sentences):
    """A deterministic embedding: sum of one random vector a word."""
    vectors = [
        sum(np.random.default_rng(list(word.encode())).normal(size=32) for word in sentence.split())
        for sentence in sentences
    ]
    return np.stack(vectors).astype(np.float32)


def write_tsv(path, rows):
    write(path, ["subset\tscore\tsentence1\tsentence2", *("\t".join(("x", *row)) for row in rows)])


@pytest.fixture
def sts_data(tmp_path):
    for offset, entry in enumerate(sts.SETS.values()):
        write_tsv(tmp_path / "sts" / entry.file, ROWS[offset % 3 :])  # STS-B test and dev have different rows
    return tmp_path


def test_scores_that_differ_are_ranked_however_small_they_are():
    logits = np.array([-40.0, -33.0, -50.0, -35.0])
    assert spearman(logits, np.exp(logits), name="pairs") == pytest.approx(1.0)
    for constant in (np.full(4, 1e-20), np.full(4, 0.5) + 1e-9 * logits):
        with pytest.raises(
            InputError, match="all 4 pairs equally similar .*: it has collapsed to one vector or one score"
        ):
            spearman(logits, constant, name="pairs")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda v: np.where(np.arange(len(v))[:, None] == 1, np.nan, v), "NaN or infinity for 1 of 2.*'two words'"),
        (lambda v: v * (np.arange(len(v)) != 1)[:, None], "zero vector for 1 of 2.*'two words'"),
    ],
)
def test_useless_vectors_are_errors(spoil, message):
    with pytest.raises(InputError, match=message):
        unit_vectors(lambda sentences: spoil(bag_of_words(sentences)), ["one", "two words"])


def test_sts_scores_every_set_and_averages_the_seven_tests(sts_data):
    calls = []
    scores = sts_scores(lambda s: calls.append(len(s)) or bag_of_words(s), sts_data)
    assert list(scores) == [*sts.SETS, "average"]
    assert list(sts_scores(bag_of_words, sts_data, ["sts12", "sick-r"])) == ["sts12", "sick-r"]
    tests = ("sts12", "sts13", "sts14", "sts15", "sts16", "sts-b", "sick-r")
    assert scores["average"] == pytest.approx(np.mean([scores[name] for name in tests]))
    gold, first, second = zip(*ROWS, strict=True)
    expected = spearmanr([float(g) for g in gold], similarities(bag_of_words, first, second)).statistic
    assert scores["sts12"] == pytest.approx(expected)
    assert len(calls) == 1


def test_subsets_by_hand(tmp_path):
    """Subset a is ranked rightly (1), subset b of half as many pairs wrongly (-1)."""
    angles = {f"s{angle}": angle for angle in (0, 10, 20, 30, 40, 50, 60)}
    rows = ["a\t5\ts0\ts10", "a\t4\ts0\ts20", "a\t3\ts0\ts30", "a\t2\ts0\ts40", "b\t0\ts0\ts50", "b\t1\ts0\ts60"]
    write(tmp_path / "sts" / "sts12.test.tsv.gz", ["subset\tscore\tsentence1\tsentence2", *rows])
    scores = sts_scores(on_a_circle(angles), tmp_path, ["sts12"], subsets=True)
    all_pairs = scores.pop("sts12")
    assert scores == pytest.approx(
        {"sts12/a": 1.0, "sts12/b": -1.0, "sts12/mean": 0.0, "sts12/weighted mean": (4 * 1 - 2 * 1) / 6}
    )
    assert all_pairs == pytest.approx(1 - 6 * 2 / (6 * 35))  # all pairs together: two neighbouring ranks are exchanged


def test_the_tracks_of_sts_2017_that_were_added_are_scored_where_the_folder_has_them(tmp_path, data_folder):
    for track in (*sts.TRACKS, "en-de"):
        write(tmp_path / "multilingual" / f"sts17.{track}.test.tsv.gz", GRADED)
    plan = suite.planned(["multilingual"], Sources(data=str(tmp_path)))
    assert [track.name for _, track in plan.sets][-2:] == ["sts17/en-tr", "sts17/en-de"] and not plan.absent
    for _, track in suite.planned(["multilingual"], Sources(data=str(data_folder))).sets:
        assert len(pairs.read_pairs(track.file).scores) == 250


def test_hub_sets_are_read_by_their_own_columns(monkeypatch):
    rows = {"relatedness_score": [1, 4.5], "sentence_A": ["a", "b"], "sentence_B": ["c", "d"]}
    load = mock.Mock(side_effect=[rows, ConnectionError("no network")])
    monkeypatch.setattr(datasets, "load_dataset", load)
    read = sts.read_set("sick-r", None)
    assert (read.first, read.second, read.scores.tolist()) == (("a", "b"), ("c", "d"), [1.0, 4.5])
    load.assert_called_once_with("RobZamp/sick", split="test", revision="refs/convert/parquet")
    with pytest.raises(InputError, match="sts12-sts cannot be loaded from the hub; .*JAXDISTILL_DATA. .no network"):
        suite.planned(["sts"], Sources(data=""))  # a third request would be a `StopIteration`


def test_real_sets_have_the_official_number_of_pairs(data_folder):
    counts = {name: len(sts.read_set(name, data_folder).scores) for name in sts.SETS}
    official = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186, "sts-b": 1379}
    assert counts == official | {"sick-r": 4927, "sts-b-dev": 1500}


def test_pairs_are_the_same_from_every_form_of_table(tmp_path):
    quoted = [("3", 'he said "no", twice', "he refused"), ("1.5", "x, y", "z")]
    write(tmp_path / "plain.tsv.gz", ["score\tsentence1\tsentence2", *map("\t".join, quoted), "", " \t\t"])
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("sentence2", "score", "sentence1"), *((b, s, a) for s, a, b in quoted)])
    with open(tmp_path / "quoted.tsv", "w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([("score", "sentence1", "sentence2"), *quoted])
    rows = [{"score": float(score), "sentence1": first, "sentence2": f" {second} "} for score, first, second in quoted]
    datasets.Dataset.from_list(rows).to_json(tmp_path / "pairs.jsonl")
    write(tmp_path / "headerless.tsv", map("\t".join, quoted))
    for name in ("plain.tsv.gz", "pairs.csv", "quoted.tsv", "pairs.jsonl", "headerless.tsv"):
        read = pairs.read_pairs(tmp_path / name)
        assert read.first == ('he said "no", twice', "x, y"), name
        assert (read.second, read.scores.tolist()) == (("he refused", "z"), [3.0, 1.5])


HEADER = b"score\tsentence1\tsentence2\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER + b"1\ta\tb\nhigh\tc\td\n", ": each row needs a score.*could not convert string to float: 'high'"),
        (HEADER + b"1\ta\tb\nnan\tc\td\n", ": its 2 pairs must have at least two different scores, all finite"),
        (HEADER + b"1\ta\tb\n1\tc\td\n", ": its 2 pairs must have at least two different scores"),
        (HEADER + b"1\ta\tb\n1\tc\n", ": the row .'1', 'c', ''. has an empty cell; score, sentence1, sentence2 are"),
        (b"1\ta\n1\tc\n", " has no column 'score'; it has '1', 'a'"),
        (b"", " is empty"),
    ],
)
def test_a_malformed_file_of_pairs_is_one_clear_error(tmp_path, content, message):
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(InputError, match=f"a.tsv{message}") as error:
        pairs.read_pairs(tmp_path / "a.tsv")
    assert "\n" not in str(error.value)


def test_held_out_sentences_are_paired_with_their_nearest_and_with_another_one():
    sentences = [f"word{i // 2} text{i % 2}" for i in range(20)]
    vectors = dict(zip(sentences, bag_of_words(sentences), strict=True))
    task = agreement.held_out_task(vectors, seed=3)
    assert len(task.first) == 40 and all(a != b for a, b in zip(task.first, task.second, strict=True))
    unit = bag_of_words(sentences) / np.linalg.norm(bag_of_words(sentences), axis=1, keepdims=True)
    nearest = np.argmax(unit @ unit.T - 2 * np.eye(20), axis=1)
    assert list(task.second[:20]) == [sentences[i] for i in nearest]
    same, other = (agreement.held_out_task(vectors, seed=seed) for seed in (3, 4))
    assert task.second == same.second != other.second


def test_recall_of_the_teachers_neighbours_by_hand():
    """Twelve sentences at 0, 1, 3, 6 and so on to 66 degrees; the student swaps the last two, at 55 and 66."""
    names = [f"s{number}" for number in range(12)]
    angles = [number * (number + 1) / 2 for number in range(12)]
    teacher = on_a_circle(dict(zip(names, angles, strict=True)))
    student = on_a_circle(dict(zip(names, [*angles[:10], 66, 55], strict=True)))
    # The nearest of s10 changes from s9 to s11, that of s11 from s10 to s9. Ten of eleven neighbours are all but the
    # farthest, which changes from s11 to s10 for s0 to s7; for the others it stays s0.
    by_hand = {"agreement/recall@1": 10 / 12, "agreement/recall@10": 1 - 8 * 0.1 / 12}
    tasks = (
        agreement.held_out_task(dict(zip(names, teacher(names), strict=True)), seed=0),
        agreement.agreement_task(teacher, [*names, *names], [*names[1:], *names, "s0"]),  # each sentence four times
    )
    for task in tasks:
        assert {name: task(student)[name] for name in by_hand} == pytest.approx(by_hand)
        assert task(teacher) == pytest.approx(dict.fromkeys(agreement.METRICS, 1.0))


def test_neighbouring_sentences_are_pairs_and_an_odd_one_is_an_error(tmp_path):
    config = Config(objective=SimCSE(), evals=Evals(agreement=str(tmp_path / "text.txt")))
    (tmp_path / "text.txt").write_text("a\nb\n\nc\nd\n")
    assert dev.agreement_pairs(config) == (["a", "c"], ["b", "d"])
    (tmp_path / "text.txt").write_text("a\nb\nc\n")
    with pytest.raises(InputError, match="3 sentences.*even number, at least 4"):
        dev.agreement_pairs(config)
    with pytest.raises(InputError, match="at least 3 different sentences, not 1"):
        agreement.held_out_task({"a": np.ones(2)}, seed=0)


def test_the_dev_evaluation_prefers_own_pairs_then_sts_b_then_agreement(sts_data, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_DATA", str(sts_data))
    write_tsv(sts_data / "own.tsv.gz", ROWS)
    config = Config(objective=SimCSE(), evals=Evals(pairs=str(sts_data / "own.tsv.gz")))
    tasks = dev.dev_tasks(config)
    measured = dev.measured_metrics(config, tasks, compared=9)
    assert measured == [*tasks, "agreement/spearman", "agreement/recall@1"]
    assert list(tasks) == ["pairs/spearman", "sts-b-dev/spearman"] == dev.measured_metrics(config, tasks, compared=0)
    for metric, task in tasks.items():
        assert next(iter(task(bag_of_words))) == metric
        assert dev.chosen_metric(measured, metric) == metric
    assert dev.chosen_metric(measured, "agreement/recall@1") == "agreement/recall@1"
    with pytest.raises(InputError, match="'agreement/recall@10' is not measured.*agreement/recall@1, last"):
        dev.chosen_metric(measured, "agreement/recall@10")  # of nine sentences
    assert dev.chosen_metric(measured) == "pairs/spearman"
    assert dev.chosen_metric(dev.dev_tasks(Config(objective=SimCSE()))) == "sts-b-dev/spearman"
