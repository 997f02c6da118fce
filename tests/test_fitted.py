"""A fitted head: a student of another model starts in its teacher's space."""

import numpy as np
import pytest

from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.encoders.folder import save
from jaxdistill.encoders.model import load_model
from jaxdistill.inference import Embedder
from jaxdistill.training.fitted import least_squares
from jaxdistill.training.student import make_student

from tiny_models import tiny_model
from tiny_text import made_up


def test_least_squares_finds_an_affine_map():
    draw = np.random.RandomState(0)
    x, kernel, bias = draw.randn(400, 6), draw.randn(6, 3), draw.randn(3)
    found, offset = least_squares(x, x @ kernel + bias)
    np.testing.assert_allclose(found, kernel, atol=0.05)
    np.testing.assert_allclose(offset, bias, atol=0.05)


def test_a_penalty_keeps_the_kernel_finite_where_numbers_repeat():
    x = np.repeat(np.random.RandomState(0).randn(50, 1), 4, axis=1)
    kernel, _ = least_squares(x, x[:, :2])
    np.testing.assert_allclose(x @ kernel, x[:, :2], atol=0.05)


def test_a_student_of_another_model_starts_close_to_its_teacher(tmp_path):
    for name, seed in (("teacher", 1), ("other", 3)):
        save(tiny_model(tmp_path / f"{name}-tokenizer", seed=seed), tmp_path / name)
    text = made_up(300, words=6)
    (tmp_path / "text.txt").write_text("\n".join(text))
    cosines = {}
    for init in ("fitted", "uniform"):
        config = parse_config(
            dict(
                data=dict(text=str(tmp_path / "text.txt")),
                teacher=dict(model=str(tmp_path / "teacher")),
                student=dict(model=str(tmp_path / "other"), pooling="", head="linear", head_init=init),
                objective=dict(name="embedding"),
                run=dict(precision="float32"),
            )
        )
        teacher = load_model(str(tmp_path / "teacher"))
        student = make_student(config, (teacher,), tmp_path)
        mine, wanted = (Embedder(model).encode(text) for model in (student, teacher))
        lengths = np.linalg.norm(mine, axis=1) * np.linalg.norm(wanted, axis=1)
        cosines[init] = np.mean(np.sum(mine * wanted, axis=1) / lengths)
    assert cosines["fitted"] > 0.9 > cosines["uniform"]


@pytest.mark.parametrize(("head", "named"), [("tanh", "--config.student.head=linear"), ("linear", "head_init=uniform")])
def test_a_head_that_cannot_be_fitted_is_refused(tmp_path, head, named):
    config = parse_config(
        dict(student=dict(model="none", head=head, head_init="fitted"), objective=dict(name="embedding"))
    )
    with pytest.raises(InputError, match=named):
        make_student(config, (), tmp_path)
