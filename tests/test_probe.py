"""The transfer probe against scikit-learn: the same folds, the same optimum, the same protocol."""

import warnings

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.evals import probe


def made_up(rows, width, classes, *, seed=0, noise=1.0):
    """Features of unequal variances and labels that follow them loosely."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, width)) * np.arange(1, width + 1) ** -0.5 + 0.3
    logits = features @ random.normal(size=(width, classes)) + noise * random.gumbel(size=(rows, classes))
    return features.astype(np.float32), logits.argmax(axis=1)


def scikit_learn(features, labels, strength):
    """The classifier of the same objective, see the docstring of the probe."""
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


@pytest.mark.parametrize("labels", [np.repeat([1, 0], [57, 43]), np.random.default_rng(0).integers(0, 5, 203)])
def test_folds_are_those_of_scikit_learn(labels):
    np.testing.assert_array_equal(probe.stratified_folds(labels), scikit_learn_folds(labels))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "scale", [0.05, 20.0]
)  # vectors of unit length, and vectors of an encoder that does not normalise
def test_every_fold_and_strength_has_the_optimum_of_scikit_learn(classes, scale):
    features, labels = made_up(500, 8, classes)
    features *= np.float32(scale)
    trains = probe.stratified_folds(labels)[None] != 0
    found = probe.predictions(features, labels, trains, probe.STRENGTHS)
    for strength, of_strength in zip(probe.STRENGTHS, found, strict=True):
        for rows, predicted in zip(trains, of_strength, strict=True):
            expected = scikit_learn(features[rows], labels[rows], strength).predict(features)
            assert np.sum(predicted != expected) <= 1  # of 500: 0.2 points; one row may lie on the border


def test_a_nest_of_folds_equals_the_one_of_scikit_learn():
    """Two of the ten outer folds, each with 40 classifiers in its inner folds and one on all their rows."""
    features, labels = made_up(240, 5, 2, seed=3, noise=2.0)
    found = probe.nested_folds(features, labels)
    outer = scikit_learn_folds(labels)
    for fold in range(2):
        x, y = features[outer != fold], labels[outer != fold]
        inner = scikit_learn_folds(y)
        scores = [
            np.mean([
                scikit_learn(x[inner != held], y[inner != held], strength).score(x[inner == held], y[inner == held])
                for held in range(10)
            ])
            for strength in probe.STRENGTHS
        ]  # fmt: skip
        chosen = scikit_learn(x, y, probe.STRENGTHS[int(np.argmax(scores))])
        np.testing.assert_array_equal(found.predicted[outer == fold], chosen.predict(features[outer == fold]))
    of_folds = [np.mean(found.predicted[outer == fold] == labels[outer == fold]) for fold in range(10)]
    assert found.accuracy == pytest.approx(np.mean(of_folds))


def test_rows_outside_the_training_set_change_nothing():
    features, labels = made_up(300, 6, 3)
    test = np.arange(300) >= 200
    found = probe.predictions(features, labels, ~test[None], (1e-3,))
    spoilt, relabelled = features.copy(), labels.copy()
    spoilt[test], relabelled[test] = 1e3, 0
    again = probe.predictions(spoilt, relabelled, ~test[None], (1e-3,))
    np.testing.assert_array_equal(found[..., ~test], again[..., ~test])


def test_one_class_is_an_error():
    with pytest.raises(InputError, match="only one class"):
        probe.predictions(np.ones((4, 2), np.float32), np.array([0, 1, 0, 0]), np.array([[1, 0, 1, 1]], bool), (1.0,))


@pytest.mark.parametrize(("dev_label", "expected"), [(0, 0), (1, 1)])
def test_dev_chooses_the_strength(dev_label, expected):
    """A weak penalty parts -0.01 from 0.01, the strongest predicts the larger class: dev says which is right at -0.01."""
    features = np.array([[-0.01]] * 4 + [[0.01]] * 5 + [[-0.01]] * 2, np.float32)
    labels = np.array([0] * 4 + [1] * 5 + [dev_label, 1])
    rows = np.arange(11)
    found = probe.dev_selection(features, labels, rows == 9, rows == 10)
    assert (found.predicted.tolist(), found.accuracy) == ([expected], float(expected))
