"""Several teachers: joined vectors, two tokenizers; and the mean of checkpoints."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from jaxdistill import config as configs
from jaxdistill import main
from jaxdistill.core import InputError
from jaxdistill.data.targets import joined
from jaxdistill.export import restored_student
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training import build as build_module
from jaxdistill.training.workdir.checkpoint import Checkpoints
from jaxdistill.training.workdir.folder import Workdir

import encoder_cases as cases
import program
from program import write_teacher, write_text

pytestmark = pytest.mark.usefixtures("one_device")


WIDTHS = (16, 32)
SHARES = (0.75, 0.25)


def write_byte_level_model(folder):
    """A random encoder of another width that reads bytes, with a prompt for queries."""
    (folder / "plain").mkdir()
    cases.write_encoder(folder / "plain", "qwen2", num_hidden_layers=1)
    model = load_model(str(folder / "plain"), pooling="mean")
    save(
        dataclasses.replace(model, prompts={"query": "the cat "}),
        folder / "bytes",
        card="---\nlanguage: en\n---\n# bytes\n",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    write_teacher(folder)
    write_byte_level_model(folder)
    write_text(folder, rows=100)
    return folder


def options_of(folder, **changed):
    """Two teachers of the tiny preset of L2, with changed options such as `teacher__weights`."""
    return {
        "data.text": str(folder / "text.txt"),
        "data.cache_folder": str(folder / "cache"),
        "data.batch_size": 16,
        "data.pack_groups": 2,
        "teacher.model": f"{folder / 'model'},{folder / 'bytes'}",
        "teacher.kind": "stored",
        "teacher.weights": (3.0, 1.0),
        "teacher.prompt": "none|query",
        "student.layers": "0",
        "student.head": "linear",
        "evals.pairs": "",
        "evals.best": "agreement/spearman",
        "evals.every": 2,
        "optimizer.learning_rate": 0.01,
        "run.precision": "float32",
        "run.steps": 4,
        "run.log_every": 1,
    } | {name.replace("__", "."): value for name, value in changed.items()}


def config_of(folder, **changed) -> configs.Config:
    return program.config_of("configs/l2.py:tiny", options_of(folder, **changed))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.lists(st.floats(0.1, 9.0), min_size=1, max_size=3))
def test_the_cosine_of_joined_vectors_is_the_weighted_mean_of_the_cosines(seed, weights):
    random, shares = np.random.default_rng(seed), np.array(weights) / sum(weights)
    teachers = [random.standard_normal((2, 3 + index)) * 10.0**index for index in range(len(weights))]
    actual = joined(teachers, tuple(shares))
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in teachers]
    np.testing.assert_allclose(np.linalg.norm(actual, axis=1), 1.0, atol=1e-5)
    expected = sum(share * vectors[0] @ vectors[1] for share, vectors in zip(shares, unit, strict=True))
    np.testing.assert_allclose(actual[0] @ actual[1], expected, atol=1e-5)


def test_targets_of_two_tokenizers_are_joined_with_each_teachers_prompt(folder):
    run = build_module.build(config_of(folder), folder / "w", progress=False)
    texts = [run.store.text("text", row) for row in (3, 45)]
    vectors = [
        Embedder(load_model(str(folder / name))).encode([prompt + text for text in texts])
        for name, prompt in (("model", ""), ("bytes", "the cat "))
    ]
    np.testing.assert_allclose(run.batches._targets[0][np.array([3, 45])], joined(vectors, SHARES), atol=1e-5)
    assert run.student.definition.embedding_width == sum(WIDTHS) and run.teacher is None


@pytest.fixture(scope="module")
def finished(folder):
    """(workdir, arguments) of a run."""
    options = options_of(folder)
    arguments = program.arguments_of("configs/l2.py:tiny", options)
    main.main([*arguments, f"--workdir={folder / 'run'}"])
    return folder / "run", arguments


def test_a_head_as_wide_as_all_teachers_is_exported_and_sentence_transformers_loads_it(finished):
    workdir, _ = finished
    reference, model = SentenceTransformer(str(workdir / "export"), device="cpu"), load_model(str(workdir / "export"))
    texts = ["the cat sleeps", "rain"]
    vectors = Embedder(model).encode(texts)
    assert vectors.shape == (2, sum(WIDTHS))
    np.testing.assert_allclose(reference.encode(texts), vectors, atol=1e-5)
    best = json.loads((workdir / "results.json").read_text())["best_step"]
    kernel = Checkpoints(Workdir(workdir), read_only=True).restore_alone(best).params["student"]["dense/0/kernel"]
    np.testing.assert_array_equal(model.params["dense/0/kernel"], kernel)
    np.testing.assert_allclose(Embedder(restored_student(Workdir(workdir), [best])).encode(texts), vectors, atol=1e-6)


def test_a_run_that_averages_exports_and_scores_the_mean_of_its_checkpoints(finished, folder, tmp_path):
    """A finished run trains no further: only what it exports changes."""
    workdir, arguments = tmp_path / "run", finished[1]
    shutil.copytree(finished[0], workdir)
    main.main([*arguments, f"--workdir={workdir}", "--config.evals.average=(4,2)"])
    results = json.loads((workdir / "results.json").read_text())
    assert (results["averaged_steps"], results["last_step"]) == ([2, 4], 4)
    assert "| Mean of the checkpoints of steps | 2, 4 |" in (workdir / "export" / "README.md").read_text()
    student, texts = load_model(str(workdir / "export")), ["the cat sleeps", "rain"]
    averaged, step_2, step_4 = (restored_student(Workdir(workdir), steps) for steps in ([2, 4], [2], [4]))
    for path, array in averaged.params.items():
        np.testing.assert_allclose(array, (step_2.params[path] + step_4.params[path]) / 2, atol=1e-6)
    np.testing.assert_allclose(Embedder(student).encode(texts), Embedder(averaged).encode(texts), atol=1e-6)
    (task,) = build_module.build(config_of(folder), workdir, progress=False).dev.tasks.values()
    scores = task(Embedder(student).as_embed())
    assert results["scores"]["student after"] == pytest.approx(scores, abs=1e-6)
    before = json.loads((finished[0] / "results.json").read_text())["scores"]["student after"]
    assert scores != pytest.approx(before, abs=1e-6)
    with pytest.raises(
        InputError, match=r"keeps the checkpoints of steps .*2, 4, which do not .*average kept or later"
    ):
        main.main([*arguments, f"--workdir={workdir}", "--config.evals.average=(1,4)"])
