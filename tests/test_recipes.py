"""docs/deployment.md: each recipe, as printed, gives the vectors of a tiny student."""

import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
from importlib import metadata

import numpy as np
import pytest
from test_onnx import unchecked_shapes  # noqa: F401 - a fixture

from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

from conftest import ROOT
from tiny_models import tiny_model, word_table

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
TEXTS = ["A cat sleeps.", "It rains."]
NODE = pathlib.Path(tempfile.gettempdir()) / "jaxdistill-test-node"
TRANSFORMERS_JS = "@huggingface/transformers@4.3.1"


def section(heading: str) -> str:
    """The section whose heading begins so."""
    (text,) = [part for part in PAGE.split("\n## ") if part.startswith(heading)]
    return text


def blocks(heading: str, language: str = "python") -> list[str]:
    """The code of a section."""
    return re.findall(rf"^```{language}\n(.*?)^```", section(heading), re.M | re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the page's names are: a student, the same with ONNX, a table, and a student and its teacher with prompts."""
    folder = tmp_path_factory.mktemp("recipes")
    model = tiny_model(folder / "tokenizer")
    plain = dataclasses.replace(model, prompts={})
    for name in ("runs/l3/export", "runs/l3-onnx"):
        save(plain, folder / name)
    (folder / "runs/l3-onnx/onnx").mkdir()
    onnx.trace(plain, folder / "runs/l3-onnx", folder / "runs/l3-onnx/onnx/model.onnx")
    save(word_table(plain), folder / "runs/static/export")
    save(model, folder / "runs/index/export")
    teacher = tiny_model(folder / "tokenizer", seed=1)
    save(dataclasses.replace(teacher, prompts={"document": "a dog "}), folder / "thenlper/gte-small")
    words = ("cat", "dog", "rain", "the cat sleeps", "the dog and the cat", "it rains")
    (folder / "sentences.txt").write_text("".join(f"{first} {second}\n" for first in words for second in words * 2))
    return folder


def loaded(folder, name: str) -> Embedder:
    return Embedder(load_model(str(folder / name)))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # openvino's telemetry forks now and then
@pytest.mark.parametrize(
    ("heading", "package", "model"),
    [
        ("sentence-transformers", "transformers", "runs/l3/export"),
        ("ONNX Runtime", "onnxruntime", "runs/l3-onnx"),
        ("OpenVINO", "openvino", "runs/l3-onnx"),
        ("model2vec", "model2vec", "runs/static/export"),
    ],
)
def test_vectors(folder, monkeypatch, heading, package, model):
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(folder)
    for command in re.findall(r"`(ovc [^`]*)`", section(heading)):
        program, *arguments = shlex.split(command)
        program = metadata.distribution("openvino").locate_file(f"../../../bin/{program}")
        subprocess.run([program, *arguments], check=True)
    printed = blocks(heading)
    assert printed
    for code in printed:
        exec(code, names := {})
        np.testing.assert_allclose(names["vectors"], loaded(folder, model).encode(TEXTS), atol=1e-5)


@pytest.fixture(scope="module")
def node():
    """A folder with transformers.js, which npm installs there once a machine."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    if not (NODE / "node_modules" / TRANSFORMERS_JS.rpartition("@")[0]).is_dir():
        NODE.mkdir(exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", TRANSFORMERS_JS]
        completed = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=300)
        if completed.returncode:
            pytest.skip(f"npm cannot install {TRANSFORMERS_JS}: {completed.stderr[-200:]}")
    return NODE


def test_transformers_js(folder, node):
    [code] = blocks("transformers.js", "js")
    (folder / "node_modules").symlink_to(node / "node_modules")
    (folder / "encode.mjs").write_text(f"{code}\nconsole.log(JSON.stringify(vectors));\n")
    completed = subprocess.run(["node", "encode.mjs"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert not completed.returncode, completed.stderr
    vectors = json.loads(completed.stdout.splitlines()[-1])
    np.testing.assert_allclose(vectors, loaded(folder, "runs/l3-onnx").encode(TEXTS), atol=1e-5)


def test_jax_export(folder, monkeypatch):
    import jax

    monkeypatch.chdir(folder)
    [code] = blocks("StableHLO")
    exec(code, {})
    call = jax.export.deserialize(bytearray((folder / "student.stablehlo").read_bytes())).call
    model = load_model(str(folder / "runs/l3/export"))
    for texts in ([*TEXTS, "the cat"], ["rain"]):
        ids = [encoding.ids for encoding in model.encodings(texts)]
        mask = np.array([[int(slot < len(row)) for slot in range(20)] for row in ids], np.int32)
        padded = np.array([row + [0] * (20 - len(row)) for row in ids], np.int32)
        np.testing.assert_allclose(call(padded, mask), Embedder(model).encode(texts), atol=1e-5)


def test_small_vectors_and_faiss(folder, monkeypatch):
    """Bits are the signs of centred vectors; full vectors rank the candidates that bits find."""
    pytest.importorskip("faiss", reason="faiss is not installed")
    monkeypatch.chdir(folder)
    [code] = blocks("Small vectors")
    exec(code, names := {})
    vectors, query = names["vectors"], names["query"][0]
    assert names["int8"].dtype == np.int8 and names["int8"].shape == vectors.shape
    np.testing.assert_array_equal(np.unpackbits(names["bits"], axis=1), vectors > vectors.mean(axis=0))
    best, cosines = names["best"], vectors @ query
    assert len(best) == 10 and list(cosines[best]) == sorted(cosines[names["candidates"]], reverse=True)[:10]
    assert cosines[best[0]] == cosines.max()


def test_router(folder, monkeypatch):
    """Queries are the student's and documents the teacher's, each with its own prompt."""
    from sentence_transformers import SentenceTransformer

    monkeypatch.chdir(folder)
    [code] = blocks("A student for queries")
    exec(code, {})
    router = SentenceTransformer("runs/index-router", device="cpu")
    student, teacher = loaded(folder, "runs/index/export"), loaded(folder, "thenlper/gte-small")
    np.testing.assert_allclose(router.encode_query(TEXTS), student.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(router.encode_document(TEXTS), teacher.encode_document(TEXTS), atol=1e-5)


def test_sentences_retrieved(folder, monkeypatch):
    """The lines of docs/methods.md for ConGen's Table 12."""
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^### Sentences retrieved\n\n```python\n(.*?)^```", page, re.M | re.S)
    monkeypatch.chdir(folder)
    exec(code.replace("MODEL", "runs/l3/export").replace("FLICKR30K", "sentences"), names := {})
    model, captions = loaded(folder, "runs/l3/export"), names["captions"]
    [cosines] = model.similarity(
        model.encode(["A group of men playing music for people walking down the street ."]), model.encode(captions)
    )
    assert [hit["score"] for hit in names["hits"]] == pytest.approx(np.sort(cosines)[-3:][::-1], abs=1e-5)


def test_every_block_is_run():
    """A new block of the page needs a test."""
    headings = ("sentence-transformers", "ONNX", "OpenVINO", "model2vec", "StableHLO", "Small", "A student for queries")
    run = sum(len(blocks(heading)) for heading in headings)
    assert PAGE.count("```python") == run and PAGE.count("```js") == 1 and PAGE.count("```") == 2 * (run + 1)
