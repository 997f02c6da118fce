"""A student has the same vectors in every runtime that is installed here: a real encoder with a linear head, real sentences.

transformers.js runs in node; npm installs it into a folder of its own, once a machine.
"""

import gzip
import json
import pathlib
import shutil
import subprocess
import tempfile

import jax
import numpy as np
import pytest
from test_onnx import unchecked_shapes  # noqa: F401 - a fixture

from jaxdistill.data.text import read
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder

from conftest import TEACHER

HERE = pathlib.Path(__file__).parent / "runtimes"
NODE = pathlib.Path(tempfile.gettempdir()) / "jaxdistill-test-node"
TRANSFORMERS_JS = "@huggingface/transformers@4.3.1"


@pytest.fixture(scope="module")
def texts(data_folder):
    """1,000 sentences: 400 English ones, and Turkish, Arabic, German, French and Spanish ones, of all lengths."""
    english = [line for (line,) in read(["package:jaxdistill/core/assets/heldout.txt.bz2"])][:380]
    found = [*english, *(" ".join(english[start : start + 12]) for start in range(0, 240, 12))]
    for pair in ("tr", "ar", "de", "fr", "es"):
        with gzip.open(data_folder / "parallel" / f"en-{pair}.tsv.gz", "rt", encoding="utf-8") as file:
            found += [line.rstrip("\n").split("\t")[1] for line, _ in zip(file, range(120), strict=False)]
    assert len(found) == 1000
    return found


def cosines(one, other):
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return np.sum(one * other, axis=1)


def two_layers():
    """A real encoder whose 1,000 vectors take a third of the teacher's time in each of a dozen runtimes."""
    return surgery.from_layers(load_model(TEACHER), "0,5")


@pytest.fixture(scope="module")
def student(tmp_path_factory):
    """(folder of an export with a linear head, model)."""
    folder = tmp_path_factory.mktemp("models") / "student"
    model = surgery.add_head(two_layers(), 128, key=jax.random.key(0), activation="identity")
    save(model, folder)
    return folder, load_model(str(folder))


@pytest.fixture(scope="module")
def own(student, texts):
    return Embedder(student[1]).encode(texts, normalize_embeddings=True)


@pytest.fixture(scope="module")
def in_onnx(student):
    return onnx.write(student[1], student[0])


def installed(folder, *packages):
    """The folder with these npm packages, which are installed there once a machine."""
    if not shutil.which("npm"):
        pytest.skip("npm is not installed")
    if not all((folder / "node_modules" / package.rpartition("@")[0]).is_dir() for package in packages):
        folder.mkdir(exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if made.returncode:
            pytest.skip(f"npm cannot install {' '.join(packages)}: {made.stderr[-200:]}")
    return folder


def in_node(folder, script, *given):
    """Runs a script of tests/runtimes beside the packages in `folder`."""
    command = ["node", shutil.copy(HERE / script, folder), *map(str, given)]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert not ran.returncode, ran.stderr


@pytest.fixture(scope="module")
def node():
    """The folder with transformers.js."""
    return installed(NODE, TRANSFORMERS_JS)


@pytest.mark.parametrize(("dtype", "least", "mean"), [("fp32", 0.9999, 0.9999), ("q8", 0.95, 0.99)])
def test_transformers_js_in_node(student, texts, own, in_onnx, node, tmp_path, dtype, least, mean):
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    in_node(node, "transformers_js.mjs", student[0], tmp_path / "texts.json", tmp_path / "vectors.json", dtype)
    found = cosines(np.array(json.loads((tmp_path / "vectors.json").read_text())), own)
    assert found.min() > least and found.mean() > mean
