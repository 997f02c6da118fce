"""Lines of cards and docs that run an export without this package, as printed."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from test_onnx import unchecked_shapes  # noqa: F401 - a fixture
from test_recipes import node  # noqa: F401 - a fixture

from jaxdistill.evals.model_card import Facts, model_card
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

import encoder_cases as cases
from conftest import ROOT
from tiny_models import tiny_model, word_table

FOLDER = "runs/l3/export"
SERVING = (ROOT / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")
LONG = ["the cat sleeps. " * 30, "rain", ""]


def lines_with(name: str, page: str) -> str:
    """The block of code that imports a package, and not this one."""
    (code,) = [code for code in re.findall(r"```(?:python|js)\n(.*?)```", page, re.S) if name in code]
    assert "jaxdistill" not in code
    return code


def in_onnx(model, folder):
    """Writes an export with ONNX; returns the model that it holds, and its card."""
    save(model, folder)
    (folder / "onnx").mkdir()
    onnx.trace(model, folder, folder / "onnx" / "model.onnx")
    roles = {"query": {"student": model.prompts["query"]}} if "document" in model.prompts else {}
    facts = Facts(name="l3", role_prompts=roles)
    return load_model(str(folder)), model_card(model, facts, spec=FOLDER, forms=[{"form": "onnx/model.onnx"}])


def model_of(kind, folder):
    if kind == "cross-encoder":
        cases.write_cross_encoder(folder, "bert")
        return load_model(str(folder))
    if kind == "roberta":  # pads by 1, and has no token types
        cases.write_encoder(folder, kind)
        return load_model(str(folder), pooling="cls", prompt='w1 "w2" ')
    model = tiny_model(folder)
    return {
        "encoder": tiny_model(folder, head=8),
        "roles": replace(model, prompts={"query": "the cat ", "document": "a "}),
        "table": word_table(model),
    }[kind]


@pytest.mark.parametrize("kind", ["encoder", "roles", "table", "roberta", "cross-encoder"])
def test_lines_of_a_card_in_python(tmp_path, monkeypatch, kind):
    model, card = in_onnx(model_of(kind, tmp_path / "in"), tmp_path / FOLDER)
    monkeypatch.chdir(tmp_path)
    exec(lines_with("onnxruntime", card), names := {})
    own = Embedder(model)
    if kind == "cross-encoder":
        assert names["scores"].shape == (1,)
        np.testing.assert_allclose(names["score"](LONG, LONG[::-1]), own.score(LONG, LONG[::-1]), atol=1e-5)
        return
    for texts in (LONG, [""]):
        np.testing.assert_allclose(names["encode"](texts), own.encode(texts, prompt=""), atol=1e-5)
    if kind == "roles":
        np.testing.assert_allclose(names["queries"], own.encode_query(["Where does a cat sleep?"]), atol=1e-5)
        documents = own.encode_document(["A cat sleeps in a basket.", "Rain falls."])
        np.testing.assert_allclose(names["documents"], documents, atol=1e-5)
    else:
        np.testing.assert_allclose(names["vectors"], own.encode(["A cat sleeps.", "A cat naps."]), atol=1e-5)


def test_lines_of_a_card_in_node(tmp_path, node):  # noqa: F811
    model, card = in_onnx(model_of("roberta", tmp_path / "in"), tmp_path / FOLDER)
    (tmp_path / "node_modules").symlink_to(node / "node_modules")
    (tmp_path / "lines.mjs").write_text(f"{lines_with('@huggingface', card)}\nconsole.log(JSON.stringify(vectors));\n")
    ran = subprocess.run(["node", "lines.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    vectors = json.loads(ran.stdout.splitlines()[-1])
    np.testing.assert_allclose(vectors, Embedder(model).encode(["A cat sleeps.", "A cat naps."]), atol=1e-5)


@pytest.fixture(scope="module")
def tickets(tmp_path_factory):
    """(a folder with a student in ONNX and three tickets twice, the second time in capitals; the student)"""
    folder = tmp_path_factory.mktemp("tickets")
    model, card = in_onnx(tiny_model(folder / "in"), folder / "runs/tickets/export")
    subjects = ["the cat", "rain", "a dog sleeps"]
    rows = [(subject, f'"{subject}", it says') for subject in subjects]
    rows += [(subject.upper(), body) for subject, body in rows]
    with open(folder / "tickets.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "subject", "body"), *((number, *row) for number, row in enumerate(rows))])
    (folder / "encoder.py").write_text(lines_with("onnxruntime", card).replace(FOLDER, "runs/tickets/export"))
    return folder, model


def test_lines_for_duplicates_and_clusters(tickets, monkeypatch, capsys):
    monkeypatch.chdir(tickets[0])
    exec(lines_with("paraphrase_mining", SERVING), names := {})
    assert {tuple(pair[1:]) for pair in names["pairs"][:3]} == {(0, 3), (1, 4), (2, 5)}
    assert names["clusters"] and '1.000  rain "rain", it says  |  RAIN' in capsys.readouterr().out


def test_lines_of_a_server(tickets, monkeypatch):
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    from fastapi.testclient import TestClient

    folder, model = tickets
    texts = ["the cat sleeps", "rain", "a dog", "x", "y", "z"]
    np.save(folder / "vectors.npy", Embedder(model).encode(texts, normalize_embeddings=True))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    exec(lines_with("fastapi", SERVING), names := {})
    del sys.modules["encoder"]
    client = TestClient(names["app"])
    first, second = client.get("/duplicates", params={"text": "Rain", "top": 2}).json()
    assert (first["id"], first["subject"]) == ("1", "rain") and first["cosine"] == pytest.approx(1, abs=1e-5)
    cosines = names["vectors"] @ names["vectors"][1]
    assert second["cosine"] == pytest.approx(np.sort(cosines)[-2], abs=1e-5)
    assert len(client.get("/duplicates", params={"text": "Rain", "least": 0.9999}).json()) == 1
    assert client.get("/duplicates").status_code == 422
