"""Transfer and entailment: sets, features and scores by hand, and a real set against plain scikit-learn."""

import zlib

import numpy as np
import pytest
from test_probe import scikit_learn

from jaxdistill.core import InputError
from jaxdistill.evals import probe, suite, transfer
from jaxdistill.evals.evaluation import Model, Sources, labelled

from eval_cases import write


def hashed_words(sentences, width=12):
    """An encoder that needs no model: the mean of a random vector of each word's hash, at unit length."""
    table = np.random.default_rng(0).normal(size=(4096, width)).astype(np.float32)
    vectors = np.stack(
        [table[[zlib.crc32(w.encode()) % 4096 for w in text.split()]].mean(axis=0) for text in sentences]
    )
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def scores_of(folder, name, embed=hashed_words):
    """The scores of `transfer/mr` and so on in a data folder."""
    plan = suite.planned(["transfer", "nli"], Sources(data=str(folder)))
    ((evaluation, test_set),) = [found for found in plan.sets if found[1].name == name]
    model = Model(embed=embed, embed_in_batches=lambda size: embed, parameters=0, size_bytes=0)
    return evaluation.run(model, test_set)


def test_a_set_is_learnt_and_each_sentence_embedded_once(tmp_path):
    questions = [("HUM", "who sings"), ("LOC", "where is it"), ("NUM", "how many are there")]
    rows = [f"{label}\t{text} {number % 4}" for number in range(48) for label, text in [questions[number % 3]]]
    write(tmp_path / "transfer" / "trec.train.tsv.gz", ["label\tsentence", *rows])
    write(tmp_path / "transfer" / "trec.test.tsv.gz", ["label\tsentence", *rows[:6]])
    calls = []
    scores = scores_of(tmp_path, "transfer/trec", lambda texts: calls.append(texts) or hashed_words(texts))
    assert scores == {"transfer/trec": 1.0}
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) == 12


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["label\tsentence", "1\tfine", "2\tbad"], r"mr.all.tsv.gz: label '2' is not one of 0, 1"),
        (["label\ttext", "1\tfine"], "the columns are label, text; label and sentence are needed"),
        (
            ["label\tsentence", "1\tfine\tmore"],
            "mr.all.tsv.gz: row 2 has 3 cells, the first 2",
        ),
        (["label\tsentence", "1\t "], "mr.all.tsv.gz: row 1 has an empty cell in the column sentence"),
        (["label\tsentence"], "the table has no rows"),
    ],
)
def test_a_malformed_set_is_one_clear_error(tmp_path, lines, message):
    write(tmp_path / "transfer" / "mr.all.tsv.gz", lines)
    with pytest.raises(InputError, match=message) as error:
        scores_of(tmp_path, "transfer/mr")
    assert "\n" not in str(error.value)


def test_entailment_is_learnt_from_both_sides(tmp_path):
    pairs = [("a cat", "a cat", "entailment"), ("a cat", "the market", "neutral"), ("a cat", "no dog", "contradiction")]
    lines = ["\t".join(pair) for pair in pairs] * 12
    for split in ("sick.train", "sick.trial", "sick.test", "train", "snli.test"):
        write(tmp_path / "nli" / f"{split}.tsv.gz", ["premise\thypothesis\tlabel", *lines])
    for name in ("sick-e", "snli"):
        (metric,) = transfer.ENTAILMENT_SETS[name].metrics
        assert scores_of(tmp_path, f"nli/{name}") == {metric: 1.0}


def test_mrpc_equals_plain_scikit_learn(data_folder):
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold

    found = scores_of(data_folder, "transfer/mrpc")
    files = [data_folder / "transfer" / f"mrpc.{split}.tsv.gz" for split in ("train", "test")]
    (y, train), (labels, test) = (labelled(path, ("sentence1", "sentence2"), ("0", "1")) for path in files)
    x, features = (
        transfer.pair_features(*(hashed_words(texts) for texts in zip(*rows, strict=True))) for rows in (train, test)
    )
    folds = list(StratifiedKFold(10, shuffle=True, random_state=1111).split(x, y))
    scores = [
        np.mean([scikit_learn(x[fit], y[fit], strength).score(x[held], y[held]) for fit, held in folds])
        for strength in probe.STRENGTHS
    ]
    predicted = scikit_learn(x, y, probe.STRENGTHS[int(np.argmax(scores))]).predict(features)
    assert found["transfer/mrpc"] == pytest.approx(np.mean(predicted == labels), abs=0.003)
    assert found["transfer/mrpc f1"] == pytest.approx(f1_score(labels, predicted), abs=0.003)
