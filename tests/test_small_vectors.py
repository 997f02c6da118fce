"""Vectors of fewer numbers and fewer bits: to the byte what sentence-transformers writes, stored, and searched."""

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.ops.small_vectors import Form, cut, floats, ranges_of, stored

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(50, 24)).astype(np.float32) * RNG.uniform(0.5, 2.0, size=24).astype(np.float32)


def form_of_rows(dims: int, dtype) -> Form:
    return Form(dims=dims, dtype=dtype, ranges=ranges_of(ROWS, dims) if dtype == "int8" else None)


def test_int8_and_binary_are_those_of_sentence_transformers():
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    unit = cut(ROWS, 16)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    ranges = np.stack([unit.min(axis=0), unit.max(axis=0)])
    for dtype, theirs in (("int8", "int8"), ("binary", "ubinary")):
        expected = quantization.quantize_embeddings(unit, theirs, ranges=ranges)
        ours = stored(form_of_rows(16, dtype), ROWS)
        assert ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


def test_a_case_by_hand():
    rows = np.array([[4.0, -3.0, 9.0], [0.0, 0.0, 1.0], [-5.0, 12.0, 0.0]])
    np.testing.assert_allclose(cut(rows, 2), [[0.8, -0.6], [0, 0], [-5 / 13, 12 / 13]], atol=1e-6)
    form = Form(dims=2, dtype="int8", ranges=((-1.0, 0.0), (1.0, 0.0)))
    np.testing.assert_array_equal(stored(form, rows), [[101, -128], [-1, -128], [-50, -128]])  # floor((v + 1) / 2 * 255)
    np.testing.assert_allclose(floats(form, stored(form, rows))[:, 1], 0)  # a dimension without a range
    bits = stored(Form(dims=8, dtype="binary"), np.array([[1, -1, 1, 0, 0, -2, 3, 4.0, 9]]))
    np.testing.assert_array_equal(bits, [[0b10100011]])
    np.testing.assert_array_equal(floats(Form(dims=8, dtype="binary"), bits), [[1, -1, 1, -1, -1, -1, 1, 1]])


def test_what_is_read_back_is_half_a_step_away_at_most():
    form = form_of_rows(24, "int8")
    assert form.ranges is not None
    step = (np.array(form.ranges[1]) - form.ranges[0]) / 255
    assert (np.abs(floats(form, stored(form, ROWS)) - cut(ROWS, 24)) <= step * 0.501).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Form(dims=12, dtype="binary"), "dims=12 must be a multiple of 8"),
        (lambda: Form(dims=8, dtype="int4"), "dtype 'int4' is unknown; allowed: float32, float16, int8, binary."),
        (lambda: Form(dims=8, dtype="int8"), "int8 vectors need the range of each dimension"),
        (lambda: Form(dims=8, dtype="int8", ranges=ranges_of(ROWS, 16)), "the ranges are not of 8 dimensions"),
        (lambda: ranges_of(ROWS[:1], 8), "which has 1 of 2 vectors"),
    ],
)
def test_a_form_that_cannot_be_is_one_line(make, said):
    with pytest.raises(InputError, match=said):
        make()
