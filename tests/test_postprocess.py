"""Whitening and flows: what they do to vectors, and what the program lets them be fitted on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill import candidates, evaluate
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
from jaxdistill.evals import flow
from jaxdistill.evals.postprocess import Postprocessing, fitted_whitening
from jaxdistill.evals.similarity import similarities, spearman

from eval_cases import GRADED, run, write
from tiny_models import tiny_model
from tiny_text import made_up


def skewed(count: int, *, width: int = 8, seed: int = 0) -> np.ndarray:
    """Vectors around a common mean, of which some numbers vary more than others and follow each other."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((width, width)) * np.logspace(0, -2, width)
    return (random.standard_normal((count, width)) @ mixing + 3.0).astype(np.float32)


def test_whitened_vectors_have_mean_zero_and_the_identity_as_covariance():
    vectors = skewed(4000)
    white = fitted_whitening(vectors)(vectors)
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(white, rowvar=False), np.eye(8), atol=1e-3)


def test_whitening_leaves_out_what_does_not_vary():
    vectors = skewed(500)
    vectors[:, 3] = vectors[:, 4]
    white = fitted_whitening(vectors)(vectors)
    np.testing.assert_allclose(np.cov(white, rowvar=False), np.eye(7), atol=1e-3)


def test_whitening_does_not_ask_how_vectors_were_scaled_or_turned():
    """Cosines after it are the same for any invertible linear map of the vectors."""
    vectors = skewed(500)
    turned = vectors @ np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32) + 5.0
    one, other = (fitted_whitening(each)(each).astype(np.float64) for each in (vectors, turned))
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=2e-2)


def test_a_flow_begins_by_standardising_each_number_and_knows_its_determinant():
    vectors = jnp.asarray(skewed(200, width=6))
    begun = flow.standardising(np.random.default_rng(0), np.asarray(vectors))
    through = jax.jit(flow.through)
    z, _ = through(begun, vectors)
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(z.std(axis=0), 1.0, atol=1e-3)
    random = np.random.default_rng(1)
    moved = jax.tree.map(lambda leaf: leaf + 0.1 * random.standard_normal(leaf.shape).astype(np.float32), begun)
    jacobian = jax.jit(jax.vmap(jax.jacobian(lambda row: flow.through(moved, row[None])[0][0])))(vectors)
    _, wanted = np.linalg.slogdet(np.asarray(jacobian, np.float64))
    np.testing.assert_allclose(through(moved, vectors)[1], wanted, rtol=1e-4)


def test_a_fitted_flow_makes_held_out_vectors_likelier():
    vectors, held_out = skewed(6400), jnp.asarray(skewed(6900)[6400:])
    begun = flow.standardising(np.random.default_rng(0), vectors)
    likelihood = jax.jit(flow.negative_log_likelihood)
    before = likelihood(begun, held_out)
    after = likelihood(flow.fitted(begun, jnp.asarray(vectors).reshape(100, 64, 8)), held_out)
    assert after < before - 0.1


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Options of an evaluation on STS-B dev with a text of 60 sentences."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    write(tmp_path / "data" / "sts" / "stsb.dev.tsv.gz", GRADED)
    (tmp_path / "text.txt").write_text("\n".join(made_up(60)) + "\n")
    return [f"--model={tmp_path / 'tiny'}", "--tasks=sts-b-dev", f"--data={tmp_path / 'data'}", "--out="]


def test_the_program_scores_whitened_vectors_and_does_not_mistake_them_for_others(given, tmp_path, capsys):
    embed = candidates.Candidate("tiny", (load_model(str(tmp_path / "tiny")),)).embed(128)
    white = Postprocessing("whiten", (str(tmp_path / "text.txt"),)).of(embed)(embed)
    first, second, scores = ([line.split("\t")[column] for line in GRADED[1:]] for column in (2, 3, 1))
    expected = [
        f"{100 * spearman(np.float64(scores), similarities(each, first, second), what=''):.2f}"
        for each in (embed, white)
    ]
    assert expected[0] != expected[1]
    options = [[], ["--postprocess=whiten", f"--postprocess_text={tmp_path / 'text.txt'}"]]
    for more, score in (*zip(options, expected, strict=True), (options[0], expected[0])):
        out, _ = run([*given, *more], capsys)
        assert score in out
    assert "vectors transformed by whiten, fitted on" in run([*given, *options[1]], capsys)[0]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--postprocess=white"], "invalid choice: 'white'"),
        (["--postprocess=whiten"], "is fitted on a text; add --postprocess_text=FILE"),
        (["--postprocess_text=TEXT"], "--postprocess_text needs --postprocess=whiten or --postprocess=flow"),
        (["--postprocess=flow", "--postprocess_text=DATA/sts/stsb.dev.tsv.gz"], "is a test set of this evaluation"),
        (
            ["--tasks=sts-b-dev,bitext", "--postprocess=flow", "--postprocess_text=TEXT", "--index_model=absent"],
            "so it excludes --index_model",
        ),
    ],
)
def test_what_a_transform_cannot_be_fitted_on_is_refused(given, tmp_path, options, words):
    named = {"DATA": str(tmp_path / "data"), "TEXT": str(tmp_path / "text.txt")}
    for short, long in named.items():
        options = [option.replace(f"={short}", f"={long}") for option in options]
    with pytest.raises(InputError, match=words):
        evaluate.main([*given, *options])


def test_a_short_text_and_an_ensemble_are_refused(given, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("the cat\nthe dog\n")
    _, errors = run([*given, "--postprocess=whiten", f"--postprocess_text={tmp_path / 'short.txt'}"], capsys, status=2)
    assert "more distinct sentences than the 16 numbers" in errors[0]
    ensemble = f"--model={tmp_path / 'tiny'}+{tmp_path / 'tiny'}"
    options = [ensemble, *given[1:], "--postprocess=whiten", f"--postprocess_text={tmp_path / 'text.txt'}"]
    _, errors = run(options, capsys, status=2)
    assert "cross-encoders and ensembles have none" in errors[0]


def test_a_text_that_has_changed_is_fitted_again(tmp_path):
    text, fitted = tmp_path / "text.txt", []

    def embed(sentences):
        fitted.append(sentences[0])
        return skewed(len(sentences), seed=len(sentences[0]))

    for first in ("a", "longer"):
        text.write_text("\n".join([first, *made_up(60)]) + "\n")
        Postprocessing("whiten", (str(text),)).of(embed)(embed)(["x", "y"])
    assert {"a", "longer"} <= set(fitted)


@pytest.mark.parametrize("method", ["whiten", "flow"])
def test_a_model_with_nan_is_one_clear_line(method, tmp_path):
    damaged = skewed(40)
    damaged[3, 0] = np.nan
    (text := tmp_path / "text.txt").write_text("\n".join(made_up(40)) + "\n")
    with pytest.raises(InputError, match="NaN or infinity for 1 of 40"):
        Postprocessing(method, (str(text),)).of(lambda texts: damaged)(lambda texts: damaged)(["a"])
