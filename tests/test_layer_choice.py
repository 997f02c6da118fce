"""Layers of a student that are chosen by what the model's vectors lose without them."""

import dataclasses
import os

import numpy as np

from jaxdistill.config import parse_config
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.models.pruning import closeness, greedy
from jaxdistill.training.build import make_student, read_student, write_student

from tiny_models import random_params, tiny_model
from tiny_text import made_up


def test_a_layer_that_was_dropped_too_early_comes_back():
    """0 is worth most alone, 1 and 2 are worth more together: what is dropped first is 0."""
    directions = (
        np.linalg.qr(np.random.default_rng(4).standard_normal((40, 4)))[0].T[:, :, None] * np.eye(4)[:, None, :]
    )
    directions -= directions.mean(axis=1, keepdims=True)

    def vectors(layers):
        selected = {*layers}
        shares = [3.0 * (0 in selected), 4.0 * ({1, 2} <= selected), 0.5 * (1 in selected), 0.6 * (2 in selected)]
        return sum(share * direction for share, direction in zip(shares, directions, strict=True))

    assert greedy(vectors, 3, 2) == [1, 2]
    assert greedy(vectors, 3, 1) == [0]


def deep_teacher(folder) -> str:
    """A BERT of four layers, of which the first and the third only normalise."""
    model = tiny_model(folder / "tokenizer")
    definition = dataclasses.replace(
        model.definition, architecture=dataclasses.replace(model.definition.architecture, layers=4)
    )
    params = random_params(definition, seed=1)
    for path, array in params.items():
        if path.endswith("kernel"):
            array *= 0.0 if "/layers/0/" in path or "/layers/2/" in path else 15.0
    save(dataclasses.replace(model, definition=definition, params=params), folder / "teacher")
    return str(folder / "teacher")


def config_with(folder, layers: str):
    (folder / "text.txt").write_text("\n".join(made_up(300, words=6)))
    return parse_config(
        dict(
            data=dict(text=str(folder / "text.txt")),
            student=dict(model=deep_teacher(folder), pooling="", layers=layers),
            objective=dict(kind="simcse"),
            run=dict(precision="float32"),
        )
    )


def test_a_run_chooses_layers_by_its_text_and_keeps_them(tmp_path):
    config, workdir = config_with(tmp_path, "greedy:2"), tmp_path / "w"
    student = make_student(config, (), workdir)
    assert student.source.endswith(", layers 1, 3")
    text = made_up(50, words=5)
    expected = Embedder(load_model(config.student.model)).encode(text)
    assert closeness(Embedder(student).encode(text), expected) > 0.9
    assert not workdir.exists()
    write_student(student, workdir)
    os.remove(config.data.text)  # an export needs none
    reread = read_student(config, workdir)
    assert (reread.digest(), reread.source) == (student.digest(), student.source)
