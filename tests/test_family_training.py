"""Students cut from every family: trained, resumed, exported, reloaded."""

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from jaxdistill import main
from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

import encoder_cases as cases
from program import series

TEXTS = [" ".join(f"w{(7 * row + 5 * place) % 90}" for place in range(2 + row % 9)) for row in range(64)]
OPTIONS = {
    "data.batch_size": 16,
    "data.max_length": 32,
    "teacher.pooling": "mean",
    "student.layers": "even:2",
    "evals.pairs": "",
    "evals.agreement": "",
    "evals.best": "",
    "evals.every": 2,
    "run.log_every": 1,
    "run.precision": "float32",
}
CUT = {
    "modernbert": {"student.trim": "{text}", "student.intermediate": 20},
    "qwen3": {"student.intermediate": 40},
}
"""What is cut from a student beside layers."""


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
def test_a_student_of_each_kind_trains_resumes_and_is_reloaded(tmp_path, family):
    cases.write_encoder(tmp_path / "teacher", family)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS) + "\n")
    cut = {name: str(value).format(text=tmp_path / "text.txt") for name, value in CUT.get(family, {}).items()}
    options = (
        OPTIONS
        | cut
        | {
            "data.text": tmp_path / "text.txt",
            "data.cache_folder": tmp_path / "cache",
            "teacher.model": tmp_path / "teacher",
        }
    )
    workdir = tmp_path / "run"
    for steps in (2, 4):
        given = [f"--config.{name}={value}" for name, value in (options | {"run.steps": steps}).items()]
        main.main(["--config=configs/l2.py:tiny", *given, f"--workdir={workdir}"])
    losses = series(workdir, "loss")
    assert sorted(losses) == [1, 2, 3, 4] and all(np.isfinite(loss) for loss in losses.values())
    student = load_model(str(workdir / "export"))
    architecture = student.definition.architecture
    assert architecture.layers == 2
    if family == "modernbert":
        words = {word for text in TEXTS for word in text.split()}
        assert architecture.intermediate_size == 20 and architecture.vocab_size == len(words) + len(cases.SPECIAL_IDS)
    if family == "qwen3":
        assert architecture.intermediate_size == 40
    assert_reads_alike(student, workdir / "export")


def assert_reads_alike(model, folder):
    ours = Embedder(model, mesh=make_mesh(devices=jax.devices()[:1])).encode(TEXTS[:9])
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:9])
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (ours, theirs)]
    assert np.abs(unit[0] - unit[1]).max() <= 1e-5
