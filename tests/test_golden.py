"""Golden runs: short trainings and programs compute the recorded values, see tests/golden/record.py."""

import pathlib

import numpy as np
import pytest
from golden import record

VALUES = np.load(pathlib.Path(record.__file__).parent / "values.npz")
TOLERANCE = 1e-5
"""Machines round differently; larger than the differences between them, far smaller than those of another algorithm."""


@pytest.mark.parametrize("case", ["encode", "mine", "tiny-congen"])
def test_a_case_computes_the_recorded_values(case):
    """`compare.py` runs all cases; runs that are resumed on other devices are in test_program and test_bucket_run too."""
    arrays = record.record(case)
    assert {*arrays} == {name for name in VALUES.files if name.startswith(f"{case}/")}
    for name, values in arrays.items():
        if values.dtype.kind in "fiu":
            np.testing.assert_allclose(values, VALUES[name], rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        else:
            np.testing.assert_array_equal(values, VALUES[name], err_msg=name)
