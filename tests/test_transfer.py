"""Transfer and entailment: the classifiers against scikit-learn's folds and optimum, sets and scores by hand, a real set."""

import warnings

import numpy as np
import pytest
from test_sts import bag_of_words

from jaxdistill.core import InputError
from jaxdistill.evals import suite, transfer
from jaxdistill.evals.evaluation import Model, Sources

from eval_cases import write


def made_up(rows, width, classes, *, seed=0, noise=1.0):
    """Features of unequal variances and labels that follow them loosely."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, width)) * np.arange(1, width + 1) ** -0.5 + 0.3
    logits = features @ random.normal(size=(width, classes)) + noise * random.gumbel(size=(rows, classes))
    return features.astype(np.float32), logits.argmax(axis=1)


def scikit_learn(features, labels, strength):
    """The classifier of the same objective, see the docstring of the transfer."""
    from sklearn.linear_model import LogisticRegression

    penalty = (2 if labels.max() == 1 else 1) / (len(labels) * strength)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn announces changes of its own
        return LogisticRegression(C=penalty, tol=1e-6, solver="newton-cholesky").fit(features, labels)


def scikit_learn_folds(labels):
    from sklearn.model_selection import StratifiedKFold

    fold_of = np.empty(len(labels), int)
    folds = StratifiedKFold(10, shuffle=True, random_state=1111).split(labels, labels)
    for fold, (_, rows) in enumerate(folds):
        fold_of[rows] = fold
    return fold_of


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "scale", [0.05, 20.0]
)  # vectors of unit length, and vectors of an encoder that does not normalise
def test_every_fold_and_strength_has_the_optimum_of_scikit_learn(classes, scale):
    features, labels = made_up(500, 8, classes)
    features *= np.float32(scale)
    trains = transfer.stratified_folds(labels)[None] != 0
    predictions = transfer.predictions(features, labels, trains, transfer.STRENGTHS)
    for strength, of_strength in zip(transfer.STRENGTHS, predictions, strict=True):
        for rows, predicted in zip(trains, of_strength, strict=True):
            expected = scikit_learn(features[rows], labels[rows], strength).predict(features)
            assert np.sum(predicted != expected) <= 1  # of 500: 0.2 points; one row may lie on the border


def test_a_nest_of_folds_equals_the_one_of_scikit_learn():
    """Two of the ten outer folds, each with 40 classifiers in its inner folds and one on all their rows."""
    features, labels = made_up(240, 5, 2, seed=3, noise=2.0)
    accuracy, predicted = transfer.nested_folds(features, labels)
    outer = scikit_learn_folds(labels)
    for fold in range(2):
        x, y = features[outer != fold], labels[outer != fold]
        inner = scikit_learn_folds(y)
        scores = [
            np.mean([
                scikit_learn(x[inner != held_out], y[inner != held_out], strength).score(x[inner == held_out], y[inner == held_out])
                for held_out in range(10)
            ])
            for strength in transfer.STRENGTHS
        ]  # fmt: skip
        chosen = scikit_learn(x, y, transfer.STRENGTHS[int(np.argmax(scores))])
        np.testing.assert_array_equal(predicted[outer == fold], chosen.predict(features[outer == fold]))
    of_folds = [np.mean(predicted[outer == fold] == labels[outer == fold]) for fold in range(10)]
    assert accuracy == pytest.approx(np.mean(of_folds))


@pytest.mark.parametrize(("dev_label", "expected"), [(0, 0), (1, 1)])
def test_dev_chooses_the_strength(dev_label, expected):
    """A weak penalty parts -0.01 from 0.01, the strongest predicts the larger class: dev says which is right at -0.01."""
    features = np.array([[-0.01]] * 4 + [[0.01]] * 5 + [[-0.01]] * 2, np.float32)
    labels = np.array([0] * 4 + [1] * 5 + [dev_label, 1])
    rows = np.arange(11)
    accuracy, predicted = transfer.dev_selection(features, labels, rows == 9, rows == 10)
    assert (predicted.tolist(), accuracy) == ([expected], float(expected))


def scores_of(folder, name, embed=bag_of_words):
    """The scores of `transfer/mr` and so on in a data folder."""
    plan = suite.planned(["transfer", "nli"], Sources(data=str(folder)))
    ((evaluation, test_set),) = [entry for entry in plan.sets if entry[1].name == name]
    return evaluation.run(Model(embed=embed), test_set)


def test_a_set_is_learnt_and_each_sentence_embedded_once(tmp_path):
    questions = [("HUM", "who sings"), ("LOC", "where is it"), ("NUM", "how many are there")]
    rows = [f"{label}\t{text} {number % 4}" for number in range(48) for label, text in [questions[number % 3]]]
    write(tmp_path / "transfer" / "trec.train.tsv.gz", ["label\tsentence", *rows])
    write(tmp_path / "transfer" / "trec.test.tsv.gz", ["label\tsentence", *rows[:6]])
    calls = []
    scores = scores_of(tmp_path, "transfer/trec", lambda texts: calls.append(texts) or bag_of_words(texts))
    assert scores == {"transfer/trec": 1.0}
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0])) == 12
    with pytest.raises(InputError, match="finds all 12 sentences equally similar .1.: it has collapsed"):
        scores_of(tmp_path, "transfer/trec", lambda texts: np.ones((len(texts), 3)))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["label\ttext", "1\tfine"], "has no column 'sentence'; it has 'label', 'text'"),
        (["label\tsentence\tsentence", "1\ta\tb"], "no column 'sentence'; it has 'label', 'column 1', 'column 2'"),
        (["label\tsentence", *["1\tfine"] * 20], "all 20 rows have one label; a classifier needs rows of at least 2"),
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
