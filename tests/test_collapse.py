"""The watch for collapsing vectors: its numbers by hand, and when it speaks."""

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.training.collapse import (
    RANK,
    SPREAD,
    collapse_of,
    effective_rank,
    measured_spread,
    watched_spread,
)


def test_the_effective_rank_by_hand():
    square = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(square) == pytest.approx(2.0)  # two equal singular values
    assert effective_rank(square * [1.0, 0.0]) == pytest.approx(1.0)
    assert effective_rank(np.ones((5, 3))) == 0.0
    stretched = square * [3.0, 1.0]
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert effective_rank(stretched + 7.0) == pytest.approx(np.exp(entropy))  # where the centre lies does not matter


def test_the_spread_of_vectors_by_hand():
    vectors = {"a": [2.0, 0.0], "b": [0.0, 3.0], "c": [-1.0, 0.0]}
    spread = measured_spread(lambda texts: np.array([vectors[text] for text in texts]), list(vectors))
    cosines = np.array([0.0, -1.0, 0.0])
    assert spread[SPREAD] == pytest.approx(np.std(cosines))
    assert spread["vectors/uniformity"] == pytest.approx(np.log(np.mean(np.exp(-2 * (2 - 2 * cosines)))))
    unknown = {**vectors, "\N{GRINNING FACE}": [0.0, 0.0]}  # of a static student
    assert measured_spread(lambda texts: np.array([unknown[text] for text in texts]), list(unknown)) == spread
    with pytest.raises(InputError, match="zero vector"):
        measured_spread(lambda texts: np.zeros((len(texts), 2)), ["a", "b"])


def test_a_fall_below_a_quarter_of_the_highest_is_a_collapse():
    highest = watched_spread(1, {SPREAD: 0.2, RANK: 40.0}, {SPREAD: 0.1, RANK: 60.0}, stops=True)
    assert highest == {SPREAD: 0.2, RANK: 60.0}
    assert collapse_of({SPREAD: 0.051, RANK: 15.1}, highest) == ""
    assert collapse_of({SPREAD: 0.2, RANK: 14.9}, highest) == "vectors/rank fell from 60 to 14.9"
    assert collapse_of({SPREAD: 0.01, RANK: 1.0}, highest).count("fell") == 2
    assert collapse_of({SPREAD: 0.01, RANK: 1.0}, {}) == ""
