"""Ensembles: the mean of the members' scores of pairs, and nothing else."""

import json

import numpy as np
import pytest
from scipy import stats

from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

from eval_cases import GRADED, run, write
from tiny_models import tiny_model


@pytest.fixture(autouse=True)
def no_memory_of_other_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXDISTILL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def two(tmp_path):
    """Two sentence encoders."""
    for seed, name in enumerate("ab"):
        save(tiny_model(tmp_path / "tokenizer", seed=seed), tmp_path / name)
    return str(tmp_path / "a"), str(tmp_path / "b")


def cosine(model, pairs):
    first, second = (
        Embedder(load_model(model)).encode([pair[side] for pair in pairs]).astype(np.float64) for side in (0, 1)
    )
    return np.sum(first * second, axis=1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)


def test_the_program_scores_pairs_by_the_mean_cosine_and_refuses_tasks_of_vectors(two, tmp_path, capsys):
    write(tmp_path / "data" / "sts" / "stsb.dev.tsv.gz", GRADED)
    out, spec = tmp_path / "results.json", "+".join(two)
    options = ["--tasks=sts-b-dev,geometry", f"--data={tmp_path / 'data'}", f"--out={out}"]
    _, errors = run([f"--model={spec}", f"--model={two[0]}", *options], capsys, status=2)
    ensemble, alone = json.loads(out.read_text())["models"]
    rows = [line.split("\t")[1:] for line in GRADED[1:]]
    mean = np.mean([cosine(model, [row[1:] for row in rows]) for model in two], axis=0)
    wanted = stats.spearmanr([float(row[0]) for row in rows], mean).statistic
    assert ensemble["scores"] == {"sts-b-dev": pytest.approx(wanted)}
    assert alone["scores"]["sts-b-dev"] != pytest.approx(wanted) and "geometry/anisotropy" in alone["scores"]
    assert ensemble["parameters"] == 2 * alone["parameters"] and len(ensemble["members"]) == 2
    assert [line for line in errors if line.startswith("failed")] == [
        f"failed: geometry of {spec}: {spec} is an ensemble: it has no vectors of sentences; score pairs."
    ]
