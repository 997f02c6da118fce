"""Stored targets: resumed exactly, never mixed up, and the user's own vectors checked."""

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.data import targets

TEXTS = [f"sentence {i}" for i in range(25)]


def embed(texts):
    return np.array([[float(text.split()[1]), len(text)] for text in texts], np.float32)


def stored_vectors(folder, embed, texts=TEXTS, *, name="teacher"):
    def embed_at_once(texts, advance):
        vectors = embed(texts)
        advance(len(texts))
        return vectors

    return targets.cached_vectors(folder, name, embed_at_once, texts, 2, what="", progress=False)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(targets, "BLOCK_ROWS", 10)


@pytest.mark.parametrize("finished_blocks", range(3))
def test_a_killed_run_continues_with_the_missing_blocks(tmp_path, finished_blocks):
    def killed(texts):
        if len(done) == finished_blocks:
            raise KeyboardInterrupt
        done.append(texts)
        return embed(texts)

    done = []
    with pytest.raises(KeyboardInterrupt):
        stored_vectors(tmp_path, killed)
    finished_blocks = None
    vectors = stored_vectors(tmp_path, killed)
    np.testing.assert_array_equal(vectors, embed(TEXTS))
    assert done == [TEXTS[:10], TEXTS[10:20], TEXTS[20:]] and isinstance(vectors.base, np.memmap)
    stored_vectors(tmp_path, lambda texts: pytest.fail("made again"))
    stored_vectors(tmp_path, killed, name="other")
    assert len(done) == 6
    for path in tmp_path.rglob("vectors.npy"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="is damaged; remove it"):
        stored_vectors(tmp_path, killed)


def test_a_models_vector_that_is_not_finite_is_named_by_its_row(tmp_path):
    with pytest.raises(InputError, match="row 13 is not finite; check its weights"):
        stored_vectors(tmp_path, lambda texts: np.where(embed(texts) == 13, np.nan, embed(texts)))
    assert [np.load(path).tolist() for path in tmp_path.rglob("done.npy")] == [[1, 0, 0]]


def test_whitened_targets_have_equal_variances_in_all_directions_that_vary():
    draw = np.random.default_rng(0)
    cone = draw.normal(size=(4000, 3)) * [0.5, 0.2, 0.1] + [4.0, 2.0, 1.0]
    flat = np.concatenate([cone, cone.sum(axis=1, keepdims=True)], axis=1).astype(np.float32)
    rows = np.arange(4000)
    white, centred = targets.Whitened(flat, power=1.0), targets.Whitened(targets.Selected(flat, rows), power=0.0)
    assert white.shape == (4000, 4)
    np.testing.assert_allclose(np.linalg.norm(white[rows], axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(np.cov(white[rows].T), np.diag([1 / 3, 1 / 3, 1 / 3, 0.0]), atol=0.02)
    expected = flat - flat.mean(axis=0, dtype=np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(centred[rows[:9]] @ centred[rows[:9]].T, expected[:9] @ expected[:9].T, atol=1e-5)
    first = targets.Whitened(flat, power=0.0, components=1)
    assert first.shape == (4000, 1)
    np.testing.assert_array_equal(np.abs(first[rows]), 1.0)


def changed(value, dtype=np.float32):
    """Twenty-five vectors of ones, of which row 21 has this number."""
    vectors = np.ones((25, 2), dtype)
    vectors[21] = value
    return vectors


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((24, 2), np.float32), "holds float32 \\[24, 2\\]; give a float array \\[25, width\\]"),
        (np.zeros(25, np.float32), r"holds float32 \[25\]; give a float array"),
        (changed(np.inf), "row 21 is not finite"),
        (changed(0.0), "row 21 is a zero vector"),
        (np.array([[{}]] * 25), "cannot be read as a .npy file of numbers.*Python objects"),
        (None, "v.npy cannot be read .*No such file"),
    ],
)
def test_vectors_that_cannot_be_targets_are_refused(tmp_path, array, message):
    if array is not None:
        np.save(tmp_path / "v.npy", array)
    with pytest.raises(InputError, match=message):
        targets.checked_user_vectors(tmp_path / "v.npy", 25, np.arange(25))
