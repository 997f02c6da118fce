"""Geometry and the area under the ROC curve: by hand and by their limits."""

import gzip

import numpy as np
import pytest

from jaxdistill.config.options import Config, Evals
from jaxdistill.core import InputError
from jaxdistill.evals import geometry, pairs, suite
from jaxdistill.evals.evaluation import Model, Sources, area_under_roc
from jaxdistill.objectives.simcse import SimCSE
from jaxdistill.training import dev


def test_alignment_and_uniformity_by_hand():
    """Right angles: distance sqrt(2), and its square 2."""
    first, second = np.eye(2)[:1], np.eye(2)[1:]
    assert geometry.alignment(first, second, power=2) == pytest.approx(2.0)
    assert geometry.alignment(first, second, power=1) == pytest.approx(2.0**0.5)
    assert geometry.alignment(first, first, power=2) == 0.0
    right_angle_and_same = np.array([0.0, 1.0])
    assert geometry.uniformity(right_angle_and_same, power=2) == pytest.approx(np.log((np.exp(-4) + 1) / 2))
    assert geometry.uniformity(right_angle_and_same, power=1) == pytest.approx(np.log((np.exp(-2 * 2**0.5) + 1) / 2))
    assert geometry.uniformity(np.ones(3), power=2) == 0.0  # all in one place: the worst


def test_area_under_roc_by_hand():
    labels = np.array([1, 1, 0, 0])
    assert area_under_roc(labels, np.array([0.9, 0.8, 0.2, 0.1])) == 1.0
    assert area_under_roc(labels, np.array([0.9, 0.1, 0.2, 0.3])) == 0.5
    assert area_under_roc(labels, np.array([0.9, 0.2, 0.2, 0.1])) == 0.875  # a tie counts half
    assert area_under_roc(labels, np.zeros(4)) == 0.5
    assert np.isnan(area_under_roc(labels, np.array([0.9, 0.8, np.nan, 0.1])))


def test_pairs_that_choose_a_model_are_not_those_that_score_it(tmp_path, data_folder):
    plan = suite.planned(["pairs"], Sources(data=str(data_folder)))
    tests = {test_set.name: pairs.binary_pairs(test_set.file, test_set.content) for _, test_set in plan.sets}
    sizes = {name: len(pairs.scores) for name, pairs in tests.items()}
    assert sizes == {"auc/qqp": 1000, "auc/qnli": 4463, "auc/mrpc": 1725}
    for name, size in {"qnli": 1000, "mrpc": 408}.items():
        file, rows = pairs.DEV[f"{name}-dev/auc"]
        devset, test = pairs.binary_pairs(data_folder / file, rows), tests[f"auc/{name}"]
        assert len(devset.scores) == size
        assert not set(zip(devset.first, devset.second, strict=True)) & set(zip(test.first, test.second, strict=True))
    (tmp_path / "qnli.dev.tsv.gz").write_bytes(gzip.compress(b"label\tsentence1\tsentence2\n1\ta\tb\n"))
    for rows in (slice(1000, None), slice(1000)):  # no pairs, and pairs of one label
        with pytest.raises(InputError, match="qnli.dev.tsv.gz: its [01] pairs must have at least two different scores"):
            pairs.binary_pairs(tmp_path / "qnli.dev.tsv.gz", rows)


class Reader:
    """Reads pairs, as a cross-encoder does: alike are those with the same first letter."""

    def score(self, first, second):
        return np.array([float(left[0] == right[0]) for left, right in zip(first, second, strict=True)])

    def __call__(self, sentences):
        raise AssertionError("a cross-encoder has no vectors")


def test_own_pairs_with_labels_are_judged_by_auc(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text("score\tsentence1\tsentence2\n1\ta\tab\n0\tb\tc\n1\td\te\n0\tf\tg\n")

    def tasks(best=""):
        return dev.dev_tasks(Config(objective=SimCSE(), evals=Evals(pairs=str(path), best=best)))

    (task,) = tasks().values()
    assert task(Reader()) == {"pairs/auc": 0.75}, "the positive (d, e) ties with both negatives"
    assert list(tasks(best="pairs/spearman")) == ["pairs/spearman"] and list(tasks(best="last")) == ["pairs/auc"]
    ((evaluation, test_set),) = suite.planned(["pairs"], Sources(pairs=str(path))).sets
    reader = Model(embed=Reader())
    assert evaluation.run(reader, test_set).scores["pairs/auc"] == 0.75
    path.write_text("score\tsentence1\tsentence2\n1\ta\tab\n0\tb\tc\n0.5\td\te\n")
    assert list(tasks()) == ["pairs/spearman"]
    with pytest.raises(
        InputError, match="'pairs/auc' is not measured .*evals.pairs=FILE .pairs/auc if all scores are 0 or 1"
    ):
        dev.chosen_metric(tasks(best="pairs/auc"), "pairs/auc")
    with pytest.raises(InputError, match="evals.best=mrpc-dev/auc is in the data folder; set JAXDISTILL_DATA"):
        tasks(best="mrpc-dev/auc")
