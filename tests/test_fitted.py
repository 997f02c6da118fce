"""A fitted head: a student of another model starts in its teacher's space."""

import dataclasses

import numpy as np
import pytest

from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.inference import Embedder
from jaxdistill.models.students import static
from jaxdistill.models.students.static import Static
from jaxdistill.models.teachers import Live, Stored
from jaxdistill.training.build import build, context_of, make_student

import program
from tiny_models import tiny_model
from tiny_text import made_up

TEXT = made_up(300, words=6)


def starting(folder, init):
    """The config of a student of another model than its teacher."""
    for name, seed in (("teacher", 1), ("other", 3)):
        if not (folder / name).exists():
            save(tiny_model(folder / f"{name}-tokenizer", seed=seed), folder / name)
    (folder / "text.txt").write_text("\n".join(TEXT))
    return parse_config(
        dict(
            data=dict(text=str(folder / "text.txt"), cache_folder=str(folder / "cache"), batch_size=16, pack_groups=8),
            teacher=dict(model=str(folder / "teacher")),
            student=dict(model=str(folder / "other"), pooling="", head="linear", head_init=init),
            objective=dict(kind="embedding"),
            run=dict(precision="float32"),
        )
    )


def test_a_student_of_another_model_starts_close_to_its_teacher(tmp_path):
    text, cosines = TEXT, {}
    for init in ("fitted", "uniform"):
        run = build(starting(tmp_path, init), tmp_path / "run", progress=False)
        (teacher,), student = run.teachers.values(), run.student
        student_vectors, teacher_vectors = (Embedder(model).encode(text) for model in (student, teacher))
        lengths = np.linalg.norm(student_vectors, axis=1) * np.linalg.norm(teacher_vectors, axis=1)
        cosines[init] = np.mean(np.sum(student_vectors * teacher_vectors, axis=1) / lengths)
    assert cosines["fitted"] > 0.9 > cosines["uniform"]


def test_without_normalize_teacher_and_student_give_vectors_as_pooled(tmp_path):
    """As if the checkpoint had no Normalize module, so that lengths are compared too."""
    program.write_teacher(tmp_path)
    lengths = {}
    for start in ("teacher", str(tmp_path / "model")):
        for normalize in (True, False):
            raw = dict(teacher=dict(model=str(tmp_path / "model"), normalize=normalize), student=dict(model=start))
            config = parse_config(raw | dict(objective=dict(kind="embedding")))
            (teacher,) = config.teacher.load(context_of(config, tmp_path))
            student = make_student(config, (teacher,), tmp_path)
            student_vectors, teacher_vectors = (Embedder(model).encode(TEXT[:8]) for model in (student, teacher))
            np.testing.assert_allclose(student_vectors, teacher_vectors, rtol=1e-5)
            lengths[normalize] = np.linalg.norm(student_vectors, axis=1)
        np.testing.assert_allclose(lengths[True], 1.0, rtol=1e-3)
        assert np.ptp(lengths[False]) > 0.01 and lengths[False].mean() > 1.5
    with pytest.raises(InputError, match="2 teachers' vectors are joined at unit length"):
        Stored(model="a,b", normalize=False).check()
    with pytest.raises(InputError, match="names 2 models, but the teacher live takes one; .*teacher=stored"):
        Live(model="a,b").check()


def test_students_start_close_to_targets_that_are_whitened_and_reduced(tmp_path, monkeypatch):
    """The direction of a principal component is arbitrary: without the map, a table starts with a cosine near 0."""
    config = starting(tmp_path, "fitted")
    teacher = Stored(model=config.teacher.model, whiten=0.75, components=6)
    table = Static(model=str(tmp_path / "other"), pooling="mean", width=6)
    for student, rows in ((config.student, 4), (table, 4), (table, 100)):
        monkeypatch.setattr(static, "MIN_ROWS", rows)  # 100: a rotation
        changed = dataclasses.replace(config, teacher=teacher, student=student)
        run = build(changed, tmp_path / f"{student.kind}{rows}", progress=False)
        reserved = run.batches.reserved
        assert len(reserved)  # rows to which the student is not fitted
        embedder = Embedder(run.student)
        student_vectors = embedder.encode([run.store.text("text", row) for row in reserved])
        targets = run.batches._targets[0][reserved]
        cosines = np.sum(student_vectors * targets, axis=1) / np.linalg.norm(student_vectors, axis=1)
        assert np.mean(cosines) > 0.25, (student.kind, rows)
