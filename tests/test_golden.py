"""Golden runs: what short trainings and programs compute stays what it was, see tests/golden/record.py.

This test repeats one case of each kind; `python tests/golden/compare.py COMMIT` compares all with another commit.
"""

import numpy as np
import pytest
from golden import compare, record

VALUES = np.load(compare.HERE / "values.npz")
TOLERANCE = 1e-5
"""Machines round differently; larger than the differences between them, far smaller than those of another algorithm."""


@pytest.mark.parametrize("case", ["encode", "mine", "tiny-congen", "resumed-simcse"])
def test_a_case_computes_what_it_did(case):
    found = {f"{case}/{name}": values for name, values in record.record(case).items()}
    expected = {name: VALUES[name] for name in VALUES.files if name.startswith(f"{case}/")}
    assert found and not compare.differences(found, expected, tolerance=TOLERANCE)
