"""What servers read of an export: FastEmbed gives the student's vectors, and text-embeddings-inference has its files and keys."""

import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from test_linear_heads import linear_head
from test_runtimes import cosines

from jaxdistill.checkpoints import onnx
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.inference import Embedder
from jaxdistill.surgery import resizing

import encoder_cases as cases
from conftest import ROOT
from tiny_models import tiny_model

PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
FASTEMBED = "fastembed==0.9.1"
PLACE = Path(tempfile.gettempdir()) / f"jaxdistill-test-{FASTEMBED}"
TEXTS = ["the cat sleeps", "rain", "the dog and the rain. " * 9, "a b c, d", "cat"]


def section(name: str) -> str:
    return re.search(rf"^## {name}\n(.*?)(?=^## )", PAGE, re.M | re.S)[1]


@pytest.fixture(scope="module")
def python_with_fastembed():
    """The Python of an environment with FastEmbed, which is made once a machine: it wants an older huggingface-hub."""
    python = PLACE / "bin" / "python"
    if not (PLACE / "complete").exists():
        venv.create(PLACE, clear=True)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", FASTEMBED]
        made = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if made.returncode:
            pytest.skip(f"pip cannot install {FASTEMBED}: {made.stderr[-200:]}")
        (PLACE / "complete").touch()
    return python


RUN = """
import json, os, sys
import numpy as np

texts, cases = json.loads(sys.stdin.read())
for folder, code in cases:
    os.chdir(folder)
    exec(code, names := {})
    assert len(names["vectors"]) == 2
    np.save("vectors.npy", np.stack(list(names["model"].embed(texts, batch_size=2))))
"""


def test_fastembed_gives_the_student_s_vectors(tmp_path, python_with_fastembed):
    text = section("FastEmbed")
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (whole,) = re.findall(r"`(pooling=PoolingType.DISABLED, output_name=[^`]*)`", text)
    printed = "pooling=PoolingType.MEAN"
    assert f"{printed}," in code and f"`{printed}`, `CLS` or `LAST_TOKEN`" in text
    given, wanted = [], []
    for pooling, head, option in (
        ("mean", "", printed),
        ("mean", "identity", printed),
        ("cls", "identity", "pooling=PoolingType.CLS"),
        ("last", "identity", "pooling=PoolingType.LAST_TOKEN"),
        ("max", "tanh", whole),
    ):
        folder = tmp_path / f"{pooling}-{head}"
        model = tiny_model(folder / "tokenizer", pooling=pooling)
        if head:
            model = resizing.add_head(model, 8, key=jax.random.key(0), activation=head)
        export = folder / "runs" / "l3" / "everywhere"
        save(model, export)
        (export / "onnx").mkdir()
        onnx.trace(load_model(str(export)), export, export / "onnx" / "model.onnx")
        wanted.append((folder, Embedder(model).encode(TEXTS)))
        given.append((str(folder), code.replace(printed, option).replace("own/student", f"own/{folder.name}")))
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        [python_with_fastembed, "-c", RUN],
        input=json.dumps([TEXTS, given]),
        env=apart | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not ran.returncode, ran.stderr
    for folder, vectors in wanted:
        found = np.load(folder / "vectors.npy")
        assert cosines(found, vectors).min() > 0.9999, folder.name
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


# text-embeddings-inference

FAMILIES = [
    "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "nomic-bert", "modernbert", "mistral", "qwen2", "qwen3",
    "gemma3-text",
]  # fmt: skip
CONTRACT = [
    (file, re.findall(r"`([^`]+)`", keys))
    for file, keys in re.findall(r"^\| `([^`|]+)` \| (.*?) ?\|", section("text-embeddings-inference"), re.M)
]
POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")


def keys_of(file: Path) -> set[str]:
    if file.suffix == ".safetensors":
        return set(load_file(file))
    content = json.loads(file.read_text(encoding="utf-8"))
    return set.intersection(*map(set, content)) if isinstance(content, list) else set(content)


def test_the_list_is_read():
    assert len(CONTRACT) == 9 and sum(len(keys) for _, keys in CONTRACT) == 19


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_what_the_server_reads(tmp_path, family):
    cases.write_encoder(tmp_path / "in", family)
    model = resizing.add_head(load_model(str(tmp_path / "in"), pooling="mean"), 8, key=jax.random.key(0))
    save(model, tmp_path / "out")
    for file, keys in CONTRACT:
        assert not set(keys) - keys_of(tmp_path / "out" / file), file

    config, sentences = (settings(tmp_path / "out", name) for name in ("config.json", "sentence_bert_config.json"))
    assert not config["architectures"][0].endswith(("Classification", "MaskedLM"))
    offset = config["pad_token_id"] + 1 if config["model_type"] in POSITIONS_AFTER_PADDING else 0
    assert sentences["max_seq_length"] == model.max_length <= config["max_position_embeddings"] - offset
    assert {array.dtype for array in load_file(tmp_path / "out" / "model.safetensors").values()} == {
        np.dtype("float32")
    }


def settings(folder: Path, name: str):
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("pooling", "flag"),
    [("cls", "cls_token"), ("mean", "mean_tokens"), ("last", "lasttoken"), ("max", None), ("mean:last2", None)],
)
def test_its_one_pooling_is_the_student_s(tmp_path, pooling, flag):
    cases.write_encoder(tmp_path / "in", "bert")
    linear_head(tmp_path / "out", tmp_path / "in", pooling)
    if pooling == "mean:last2":
        assert not (tmp_path / "out" / "1_Pooling").exists()
        return
    config = settings(tmp_path / "out", "1_Pooling/config.json")
    known = {name: config[f"pooling_mode_{name}"] for name in ("cls_token", "mean_tokens", "lasttoken")}
    assert known == {name: name == flag for name in known}


@pytest.mark.parametrize(("activation", "served"), [("identity", True), ("tanh", True), ("gelu", False)])
def test_its_heads_have_an_activation_that_it_knows(tmp_path, activation, served):
    cases.write_encoder(tmp_path / "in", "bert")
    model = load_model(str(tmp_path / "in"), pooling="mean")
    save(resizing.add_head(model, 8, key=jax.random.key(0), activation=activation), tmp_path / "out")
    dense = settings(tmp_path / "out", "2_Dense/config.json")
    known = ("torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity")
    assert (dense["activation_function"] in known) == served
    weights = load_file(tmp_path / "out" / "2_Dense" / "model.safetensors")
    assert weights["linear.weight"].shape == (dense["out_features"], dense["in_features"])
    assert {module["type"] for module in settings(tmp_path / "out", "modules.json")} <= {
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Normalize")
    }


def test_its_rerankers_have_one_label(tmp_path):
    cases.write_cross_encoder(tmp_path / "in", "bert")
    save(load_model(str(tmp_path / "in")), tmp_path / "out")
    config = settings(tmp_path / "out", "config.json")
    assert config["architectures"][0].endswith("Classification")
    assert (config["id2label"], config["label2id"]) == ({"0": "LABEL_0"}, {"LABEL_0": 0})


def test_its_prompts_are_texts(tmp_path):
    save(tiny_model(tmp_path / "tokenizer"), tmp_path / "out")
    assert settings(tmp_path / "out", "config_sentence_transformers.json")["prompts"] == {"query": "the cat "}
