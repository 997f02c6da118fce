"""Transfer and entailment: sets, features and scores by hand, and a real set against plain scikit-learn."""

import zlib

import numpy as np
import pytest
from test_probe import scikit_learn

from jaxdistill.core import InputError
from jaxdistill.evals import probe, suite, transfer
from jaxdistill.evals.evaluation import Sources

from eval_cases import write


def hashed_words(sentences, width=12):
    """An encoder that needs no model: the mean of a random vector of each word's hash, at unit length."""
    table = np.random.default_rng(0).normal(size=(4096, width)).astype(np.float32)
    vectors = np.stack(
        [table[[zlib.crc32(w.encode()) % 4096 for w in text.split()]].mean(axis=0) for text in sentences]
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(folder, name):
    """The rows of `transfer/mr` and so on in a data folder."""
    plan = suite.planned(["transfer", "nli"], Sources(data=str(folder)))
    ((probed, files),) = [(one.content, one.files) for _, one in plan.sets if one.name == name]
    return probed, probed.read(files)


def test_a_set_is_learnt_and_each_sentence_embedded_once(tmp_path):
    questions = [("HUM", "who sings"), ("LOC", "where is it"), ("NUM", "how many are there")]
    rows = [f"{label}\t{text} {number % 4}" for number in range(48) for label, text in [questions[number % 3]]]
    write(tmp_path / "transfer" / "trec.train.tsv.gz", ["label\tsentence", *rows])
    write(tmp_path / "transfer" / "trec.test.tsv.gz", ["label\tsentence", *rows[:6]])
    calls = []
    trec, read = rows_of(tmp_path, "transfer/trec")
    scores = trec.scores(read, lambda texts: calls.append(texts) or hashed_words(texts))
    assert scores == {"transfer/trec": 1.0}
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) == 12
    assert (int(read.split["trec.train"].sum()), int(read.split["trec.test"].sum())) == (48, 6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["label\tsentence", "1\tfine", "2\tbad"], r"mr.all.tsv.gz:3: label '2' is not one of 0, 1"),
        (["label\ttext", "1\tfine"], "the columns are label, text; label and sentence are needed"),
        (["label\tsentence", "1\tfine\tmore"], r":2: 3 fields, 2 are expected \(label, sentence\)"),
        (["label\tsentence", "1\t "], ":2: column sentence is empty"),
        (["label\tsentence"], "a header but no rows"),
    ],
)
def test_a_malformed_set_is_one_clear_error(tmp_path, lines, message):
    write(tmp_path / "transfer" / "mr.all.tsv.gz", lines)
    with pytest.raises(InputError, match=message) as error:
        rows_of(tmp_path, "transfer/mr")
    assert "\n" not in str(error.value)


def test_entailment_is_learnt_from_both_sides(tmp_path):
    pairs = [("a cat", "a cat", "entailment"), ("a cat", "the market", "neutral"), ("a cat", "no dog", "contradiction")]
    lines = ["\t".join(pair) for pair in pairs] * 12
    for split in ("sick.train", "sick.trial", "sick.test", "train", "snli.test"):
        write(tmp_path / "nli" / f"{split}.tsv.gz", ["premise\thypothesis\tlabel", *lines])
    for name in ("sick-e", "snli"):
        snli, rows = rows_of(tmp_path, f"nli/{name}")
        assert snli.scores(rows, hashed_words) == {snli.metrics[0]: 1.0}
    assert "in place of SNLI's training set" in snli.protocol and "other training set" in snli.metrics[0]


def test_mrpc_equals_plain_scikit_learn(data_folder):
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold

    probed, rows = rows_of(data_folder, "transfer/mrpc")
    found = probed.scores(rows, hashed_words)
    first, second = (hashed_words(texts) for texts in zip(*rows.sentences, strict=True))
    features, labels = transfer.pair_features(first, second), rows.labels
    train, test = rows.split["mrpc.train"], rows.split["mrpc.test"]
    x, y = features[train], labels[train]
    folds = list(StratifiedKFold(10, shuffle=True, random_state=1111).split(x, y))
    scores = [
        np.mean([scikit_learn(x[fit], y[fit], strength).score(x[held], y[held]) for fit, held in folds])
        for strength in probe.STRENGTHS
    ]
    predicted = scikit_learn(x, y, probe.STRENGTHS[int(np.argmax(scores))]).predict(features[test])
    assert found["transfer/mrpc"] == pytest.approx(np.mean(predicted == labels[test]), abs=0.003)
    assert found["transfer/mrpc f1"] == pytest.approx(f1_score(labels[test], predicted), abs=0.003)


def test_real_sets_have_their_sizes(data_folder):
    sizes = {"transfer/cr": 3771, "transfer/trec": 5952, "transfer/mrpc": 5801, "nli/sick-e": 9927}
    assert {name: len(rows_of(data_folder, name)[1].labels) for name in sizes} == sizes
