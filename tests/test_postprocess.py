"""Whitening: what it does to vectors, and what the program lets it be fitted on."""

import numpy as np
import pytest

from jaxdistill import evaluate
from jaxdistill.core import InputError
from jaxdistill.evals.evaluation import spearman
from jaxdistill.evals.geometry import whitening, whitening_on
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.vectors import similarities

from eval_cases import GRADED, run, write
from tiny_models import tiny_model
from tiny_text import made_up


def skewed(count: int, *, width: int = 8) -> np.ndarray:
    """Vectors around a common mean, of which some numbers vary more than others and follow each other."""
    random = np.random.default_rng(0)
    mixing = random.standard_normal((width, width)) * np.logspace(0, -2, width)
    return (random.standard_normal((count, width)) @ mixing + 3.0).astype(np.float32)


def test_whitened_vectors_have_mean_zero_and_the_identity_as_covariance_where_they_vary():
    vectors = skewed(4000)
    white = whitening(vectors)(vectors)
    np.testing.assert_allclose(white.mean(axis=0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(white, rowvar=False), np.eye(8), atol=1e-3)
    vectors[:, 3] = vectors[:, 4]
    np.testing.assert_allclose(np.cov(whitening(vectors)(vectors), rowvar=False), np.eye(7), atol=1e-3)


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Options of an evaluation on STS-B dev with a text of 60 sentences."""
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "tiny")
    write(tmp_path / "data" / "sts" / "stsb.dev.tsv.gz", GRADED)
    (tmp_path / "text.txt").write_text("\n".join(made_up(60)) + "\n")
    return [f"--model={tmp_path / 'tiny'}", "--tasks=sts-b-dev", f"--data={tmp_path / 'data'}", "--out="]


def test_the_program_scores_whitened_vectors_and_does_not_mistake_them_for_others(given, tmp_path, capsys):
    embed = Embedder(load_model(str(tmp_path / "tiny"))).encode
    transform = whitening_on(embed, [str(tmp_path / "text.txt")])
    first, second, scores = ([line.split("\t")[column] for line in GRADED[1:]] for column in (2, 3, 1))
    expected = [
        f"{100 * spearman(np.float64(scores), similarities(each, first, second), what=''):.2f}"
        for each in (embed, lambda texts: transform(embed(texts)))
    ]
    assert expected[0] != expected[1]
    options = [[], ["--postprocess=whiten", f"--postprocess_text={tmp_path / 'text.txt'}"]]
    for more, score in (*zip(options, expected, strict=True), (options[0], expected[0])):
        out, _ = run([*given, *more], capsys)
        assert score in out


@pytest.mark.parametrize(
    "options, words",
    [
        (["--postprocess=whiten"], "is fitted on postprocess_text=FILE; give both"),
        (["--postprocess_text=TEXT"], "is fitted on postprocess_text=FILE; give both"),
        (["--postprocess=whiten", "--postprocess_text=DATA/sts/stsb.dev.tsv.gz"], "is a test set of this evaluation"),
        (
            ["--tasks=sts-b-dev,bitext", "--postprocess=whiten", "--postprocess_text=TEXT", "--index_model=absent"],
            "so it excludes index_model",
        ),
    ],
)
def test_what_a_transform_cannot_be_fitted_on_is_refused(given, tmp_path, options, words):
    named = {"DATA": str(tmp_path / "data"), "TEXT": str(tmp_path / "text.txt")}
    for short, long in named.items():
        options = [option.replace(f"={short}", f"={long}") for option in options]
    with pytest.raises(InputError, match=words):
        evaluate.main([*given, *options])
