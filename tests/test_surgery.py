"""Students by surgery: the right layers in the right places, fresh sizes, heads."""

import jax
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from jaxdistill.config import parse_config
from jaxdistill.encoders.architecture import Architecture, EncoderDefinition, Pooling
from jaxdistill.encoders.hugging_face import read_settings
from jaxdistill.encoders.sentence import embed, param_shapes
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training.build import make_student

import encoder_cases as cases
from tiny_text import made_up

embed, hidden_states = (jax.jit(function, static_argnums=0) for function in (embed, cases.hidden_states))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    cases.write_encoder(folder, "bert")
    return load_model(str(folder), pooling="mean")


@pytest.mark.parametrize(
    ("choice", "depth", "expected"),
    [
        ("last:3", 6, (3, 4, 5)),
        ("first:2", 6, (0, 1)),
        ("even:3", 6, (1, 3, 5)),
        ("even:3", 12, (3, 7, 11)),
        ("even:4", 4, (0, 1, 2, 3)),
        ("0,2,5", 6, (0, 2, 5)),
        ("4", 6, (4,)),
    ],
)
def test_layer_choices(choice, depth, expected):
    assert surgery.layer_indices(choice, depth) == expected


def test_the_first_layers_compute_what_they_computed_in_the_teacher(teacher):
    student = surgery.from_layers(teacher, "first:2")
    tokens = cases.padded(cases.random_sequences(3))
    states = hidden_states(teacher.definition, teacher.params, tokens)
    cut = hidden_states(student.definition, student.params, tokens)
    assert student.definition.architecture.layers == 2 and len(cut) == 3
    for actual, expected in zip(cut, states, strict=False):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("pooling", ["", "cls", "pooler", "mean:last2"])
def test_a_student_cut_from_the_teacher_pools_as_configured(teacher, tmp_path, pooling):
    config = parse_config({"student": dict(model="teacher", pooling=pooling), "objective": {"kind": "embedding"}})
    student, loaded = make_student(config, (teacher,), tmp_path), load_model(teacher.source, pooling=pooling or "mean")
    assert student.definition == loaded.definition
    for actual, expected in ((student.params, loaded.params), (student.unread_pooler, loaded.unread_pooler)):
        assert actual.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_array_equal(actual[path], array)


def test_a_fresh_student_of_an_albert_can_be_exported(tmp_path):
    cases.write_encoder(tmp_path / "albert", "albert")
    albert = load_model(str(tmp_path / "albert"), pooling="mean")
    student = surgery.fresh(albert, jax.random.key(0), width=24, depth=2, heads=2)
    save(student, tmp_path / "student")
    reloaded = load_model(str(tmp_path / "student"))
    assert reloaded.params.keys() == student.params.keys()


@pytest.mark.parametrize(("family", "init"), [("bert", "svd"), ("bert", "random"), ("roberta", "svd")])
def test_compact_embeddings_are_an_electra_that_transformers_loads(family, init, tmp_path):
    cases.write_encoder(tmp_path / "teacher", family)
    teacher = load_model(str(tmp_path / "teacher"), pooling="mean")
    student = surgery.compact(teacher, 8, key=jax.random.key(0), init=init)
    assert {name: array.shape for name, array in student.params.items()} == param_shapes(student.definition)
    save(student, tmp_path / "student")
    assert read_settings(tmp_path / "student" / "config.json")["model_type"] == "electra"
    reference = SentenceTransformer(str(tmp_path / "student"), device="cpu")
    sentences = made_up(20, words=5)
    vectors = Embedder(load_model(str(tmp_path / "student"))).encode(sentences)
    np.testing.assert_allclose(vectors, reference.encode(sentences), atol=1e-5)


def test_a_compact_embedding_keeps_the_directions_in_which_words_differ(teacher):
    """The tables lose next to nothing, so that what is left is the norm in another basis."""
    width = teacher.definition.architecture.hidden_size // 2
    varies = np.where(np.arange(2 * width) < width, 1.0, 1e-3).astype(np.float32)
    tables = {path: array * varies for path, array in teacher.params.items() if path.endswith("/embedding")}
    teacher = teacher.with_params({**teacher.params, **tables})
    tokens = cases.padded(cases.random_sequences(3))
    exact = hidden_states(teacher.definition, teacher.params, tokens)[0]
    real = np.asarray(tokens.owner) >= 0
    errors = {}
    for init in ("svd", "random"):
        student = surgery.compact(teacher, width, key=jax.random.key(0), init=init)
        actual = hidden_states(student.definition, student.params, tokens)[0]
        errors[init] = np.square(np.asarray(actual - exact)[real]).mean() / np.square(np.asarray(exact)[real]).mean()
    assert errors["svd"] < 0.05 < errors["random"]


@pytest.mark.parametrize(
    ("width", "compact", "layers", "paper"),
    [(768, 384, 3, 34.1), (768, 384, 12, 97.9), (384, 128, 3, 9.5), (128, 64, 2, 2.4), (128, 32, 2, 1.4)],
)
def test_parameters_are_as_many_as_the_paper_counts_with_a_pooler(width, compact, layers, paper):
    architecture = Architecture(
        family="electra", vocab_size=30522, hidden_size=width, layers=layers, heads=2, intermediate_size=4 * width,
        max_positions=512, token_types=2, embedding_size=compact,
    )  # fmt: skip
    shapes = param_shapes(EncoderDefinition(architecture=architecture, pooling=Pooling.parse("mean")))
    count = sum(int(np.prod(shape)) for shape in shapes.values()) + width * width + width
    assert round(count / 1e6, 1) == paper
