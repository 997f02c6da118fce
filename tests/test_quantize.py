"""8-bit exports: the rounding, the graph of every family, the program, and what is lost on real weights."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
from onnx import numpy_helper

from jaxdistill import quantize
from jaxdistill.core import InputError
from jaxdistill.encoders import surgery
from jaxdistill.encoders.architecture import Dense, EncoderDefinition, Pooling
from jaxdistill.encoders.folder import save
from jaxdistill.encoders.model import load_model
from jaxdistill.encoders.onnx_graph import quantized_graph, rounded
from jaxdistill.encoders.sentence import init_params
from jaxdistill.inference import Embedder

import program
from conftest import TEACHER
from tiny_models import tiny_model
from tiny_text import made_up

SENTENCES = made_up(40)


def cosine(one, other):
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other)]
    return np.sum(unit[0] * unit[1], axis=1)


def test_rounding_by_hand():
    numbers, scales = rounded(np.float32([[1.0, -0.5], [0.254, 0.0], [0.0, 0.0]]), axis=1)
    np.testing.assert_array_equal(numbers, [[127, -64], [127, 0], [0, 0]])  # -63.5 goes to the even neighbour
    np.testing.assert_allclose(scales, [[1 / 127], [0.002], [1e-30 / 127]], rtol=1e-6)


def test_matrices_stay_within_what_16_bits_can_sum(tmp_path):
    model = tiny_model(tmp_path / "tokenizer")
    graph = quantized_graph(model.definition, model.params).graph
    matrices = {node.input[1] for node in graph.node if node.op_type == "MatMulInteger"}
    largest = [np.abs(numpy_helper.to_array(one)).max() for one in graph.initializer if one.name in matrices]
    assert len(largest) > 3 and set(largest) == {63}


@pytest.mark.parametrize(
    "pooling, changed",
    [
        ("mean", {}),
        ("max", dict(activation="gelu_tanh")),
        ("cls", dict(position_offset=2, token_types=0, activation="silu")),
        ("mean:last2:concat", dict(relative_buckets=32, token_types=0, position_offset=2)),
        ("mean:all:max", dict(embedding_size=24, activation="relu")),
        ("pooler", dict(pooler=True, activation="gelu_tanh", layers=1)),
    ],
)
def test_every_part_of_an_encoder_follows_the_float32_one(tmp_path, pooling, changed):
    model = tiny_model(tmp_path / "model")
    sizes = dict(hidden_size=32, intermediate_size=64, layers=2) | ({"embedding_size": 32} | changed)
    architecture = dataclasses.replace(model.definition.architecture, **sizes)
    width = EncoderDefinition(architecture=architecture, pooling=Pooling.parse(pooling)).pooled_width
    definition = EncoderDefinition(
        architecture=architecture, pooling=Pooling.parse(pooling), normalize=True,
        dense=(Dense(in_features=width, out_features=20), Dense(in_features=20, out_features=20, bias=False)),
    )  # fmt: skip
    params = {
        path: np.asarray(v) * (5.0 if path.endswith(("kernel", "embedding")) and path[:5] != "dense" else 1.0)
        for path, v in init_params(definition, jax.random.key(0)).items()
    }
    model = dataclasses.replace(model, definition=definition, params=params)
    small = quantize.load_quantized(quantize.quantize(model, tmp_path / "int8"))
    # Token 1, of unknown words, is the padding of encoders whose positions begin at 2.
    sentences = [*SENTENCES, "", "the cat " * 40, *(f"the 雪 cat {word} 雪 dog" for word in ("sleeps", "雪", "rain"))]
    vectors = small.encode(sentences)
    assert vectors.dtype == np.float32 and vectors.shape == (45, 20)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    exact = Embedder(model).encode(sentences)
    lost, spread = np.square(vectors - exact), np.square(exact - exact.mean(axis=0))
    for part in (slice(None), slice(-3, None)):
        assert lost[part].sum() < 0.05 * spread[part].sum(), "lost are at most 5 % of what tells sentences apart"


def test_a_vector_depends_on_nothing_but_its_sentence(tmp_path):
    small = quantize.load_quantized(quantize.quantize(tiny_model(tmp_path / "model"), tmp_path / "int8"))
    together, alone = small.encode(SENTENCES), small.encode(SENTENCES, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(small.encode(SENTENCES[::-1]), together[::-1], atol=1e-5)
    prompted = small.encode(["sleeps"], prompt_name="query")
    np.testing.assert_allclose(prompted, small.encode(["the cat sleeps"]), atol=1e-5)
    for sentences, options, words in (
        (b"text", {}, "list"), (["x"], {"prompt_name": "no"}, "query"), ([None], {}, "sentence 0 is None"),
        (["\ud83d"], {}, "surrogate"), (["x"], {"batch_size": -1}, "batch_size=-1 must be a whole number, at least 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            small.encode(sentences, **options)
    for name in (quantize.QUANTIZED, quantize.GRAPH):
        (tmp_path / "int8" / name).write_bytes(b"{")
        with pytest.raises(InputError, match="int8 is damaged; write it again with jaxdistill.quantize"):
            quantize.load_quantized(tmp_path / "int8")


def test_the_program_writes_a_folder_and_says_what_is_lost(tmp_path):
    teacher = program.write_teacher(tmp_path)
    out, _ = program.run("quantize", [f"--model={teacher}", f"--out={tmp_path / 'int8'}"])
    assert "in float32" in out and "agreement with float32 on 2,000 sentences" in out
    with pytest.raises(InputError, match="is a quantised model.*load_quantized, or name the export"):
        load_model(str(tmp_path / "int8"))
    small = quantize.load_quantized(tmp_path / "int8")
    assert cosine(small.encode(SENTENCES), Embedder(load_model(teacher)).encode(SENTENCES)).min() > 0.98
    code = (
        f"from jaxdistill.quantize import load_quantized as l; print(l({str(tmp_path / 'int8')!r}).encode(['a']).sum())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=program.environment())


def test_what_cannot_be_quantised_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("JAXDISTILL_DATA", raising=False)
    teacher = program.write_teacher(tmp_path)
    missing = program.refused(quantize, ["--model=nowhere", f"--out={tmp_path / 'int8'}"], capsys)
    assert "no local folder" in missing
    assert "not empty" in program.refused(quantize, [f"--model={teacher}", f"--out={teacher}"], capsys)
    save(surgery.cross_encoder(load_model(str(teacher)), key=jax.random.key(0)), tmp_path / "cross")
    line = program.refused(quantize, [f"--model={tmp_path / 'cross'}", f"--out={tmp_path / 'int8'}"], capsys)
    assert "a cross-encoder cannot be quantised" in line and not (tmp_path / "int8").exists()
    assert "modle" in program.refused(quantize, ["--modle=x"], capsys)
    with pytest.raises(InputError, match="model.onnx"):
        quantize.load_quantized(teacher)
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, package, None)
            line = program.refused(quantize, [f"--model={teacher}", f"--out={tmp_path / 'int8'}"], capsys)
            assert f"{package} is not installed; run: pip install onnx onnxruntime" in line
    assert not (tmp_path / "int8").exists()


def test_real_weights_lose_little_in_a_quarter_of_the_bytes(tmp_path):
    model = load_model(TEACHER)
    folder = quantize.quantize(model, tmp_path / "int8")
    assert (folder / quantize.GRAPH).stat().st_size <= 0.3 * 4 * model.parameter_count
    sentences = [
        "A cat sleeps on the warm stove.", "Prices rose by 3.5 % in March; wages did not.", "Rain.",
        "Who left the garden gate open last night?", "Zwei Äpfel und drei Birnen", "The committee adjourned " * 20,
    ]  # fmt: skip
    assert cosine(quantize.load_quantized(folder).encode(sentences), Embedder(model).encode(sentences)).min() > 0.98
