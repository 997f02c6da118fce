"""Students cut from every family: trained, resumed, exported, reloaded."""

from functools import partial

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from jaxdistill import main, objectives
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.cluster.mesh import make_mesh, shardings
from jaxdistill.config import Optimizer
from jaxdistill.core import Batch, Sizes
from jaxdistill.inference import Embedder
from jaxdistill.surgery import resizing
from jaxdistill.training import step
from jaxdistill.training.setup import optim
from jaxdistill.workdir.checkpoint import Checkpoints

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
    "qwen3": {"student.heads": 2, "student.intermediate": 40, "student.prune_by": "activation"},
}
"""What is cut from a student beside layers."""


@pytest.mark.parametrize("family", ["modernbert", "qwen3", "gemma3-text:both-sides"])
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
        assert (architecture.heads, architecture.key_head_count, architecture.intermediate_size) == (2, 1, 40)
    assert_reads_alike(student, workdir / "export")


def assert_reads_alike(model, folder):
    ours = Embedder(model, mesh=make_mesh(devices=jax.devices()[:1])).encode(TEXTS[:9])
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:9])
    unit = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (ours, theirs)]
    assert np.abs(unit[0] - unit[1]).max() <= 1e-5


class Training:
    """Steps of a student towards random targets, without the program around them."""

    def __init__(self, student):
        sequences = cases.random_sequences(8, longest=12)
        width = student.definition.embedding_width
        targets = np.random.default_rng(1).standard_normal((len(sequences), 1, width)).astype(np.float32)
        self.batch = Batch(student=cases.padded(sequences, 12), teacher=None, targets=targets)
        objective, optimizer = objectives.make("embedding", {}), optim.make_optimizer(Optimizer(), 3)
        sizes = Sizes(len(sequences), width, width, student.definition.architecture.layers, 0, 0)
        make = partial(step.make_state, objective=objective, optimizer=optimizer, sizes=sizes)
        self.like = jax.eval_shape(make, student.params, None, jax.random.key(0))
        mesh = make_mesh(devices=jax.devices()[:1])
        self.shardings = shardings(self.like, mesh, ())
        self.start = partial(jax.jit(make, out_shardings=self.shardings), student.params, None, jax.random.key(0))
        self.step = step.make_train_step(
            student=student.definition, teacher=None, objective=objective, optimizer=optimizer, mesh=mesh,
            shardings=self.shardings, teacher_shardings={}, compute_dtype=np.float32, remat=False,
        )  # fmt: skip

    def after(self, state, steps: int):
        for _ in range(steps):
            state, metrics = self.step(state, {}, self.batch)
        assert np.isfinite(metrics["loss"])
        return state


@pytest.mark.parametrize("family", [name for name in cases.CONFIGS if name not in cases.BERTS and ":" not in name])
def test_students_of_two_and_four_layers_train_resume_to_the_bit_and_are_reloaded(tmp_path, family):
    """Four layers of families whose layers differ, which are then all there; of the others, two."""
    layers = 4 if family in ("modernbert", "gemma3-text", "qwen3") else 2
    cases.write_encoder(tmp_path / "teacher", family, num_hidden_layers=5)
    student = resizing.from_layers(load_model(str(tmp_path / "teacher"), pooling="mean"), f"even:{layers}")
    training = Training(student)
    undisturbed = training.after(training.start(), 2)
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(training.after(training.start(), 1), {})
    checkpoints.close()
    resumed = training.after(Checkpoints(tmp_path / "run").restore(training.like, training.shardings).state, 1)
    jax.tree.map(np.testing.assert_array_equal, undisturbed.params, resumed.params)
    jax.tree.map(np.testing.assert_array_equal, undisturbed.optimizer, resumed.optimizer)
    trained = student.with_params(resumed.params["student"])
    assert any(np.any(trained.params[path] != student.params[path]) for path in student.params)
    save(trained, tmp_path / "export")
    reloaded = load_model(str(tmp_path / "export"))
    assert reloaded.definition.architecture.layers == layers
    assert_reads_alike(reloaded, tmp_path / "export")
