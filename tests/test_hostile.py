"""Model folders that somebody else made: no code of them runs, and nothing outside is read."""

import json
import os
import pickle
import shutil
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.checkpoints.weights import read_torch_file
from jaxdistill.core import InputError

from tiny_models import tiny_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model folder, to be copied."""
    folder = tmp_path_factory.mktemp("exported")
    save(tiny_model(folder / "tokenizer", head=8), folder / "model")
    return folder / "model"


@pytest.fixture
def model(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "model")


def change(path, **values):
    """Sets keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp", "link", "a\0b", "a" * 5000])
def test_a_module_outside_the_folder_is_refused(model, path):
    (model / "link").symlink_to("/tmp")
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["path"] = path
    (model / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="leads out of the model's folder|cannot be read|is missing"):
        load_model(str(model))


def test_code_and_paths_of_a_tokenizer_are_not_exported(model, tmp_path):
    code = {"AutoTokenizer": ["evil.Tokenizer", None]}
    change(model / "tokenizer_config.json", auto_map=code, vocab_file="/etc/passwd", chat_template_file="x")
    save(load_model(str(model)), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert not {"auto_map", "vocab_file", "chat_template_file"} & written.keys()
    assert written["tokenizer_class"] == "BertTokenizer"


def test_an_older_tokenizer_names_no_file_elsewhere(model, tmp_path):
    """transformers would take the vocabulary from there, and an export would hold it."""
    (tmp_path / "secret.txt").write_text("[UNK]\n[PAD]\nsecret\n")
    (model / "tokenizer.json").unlink()
    change(model / "tokenizer_config.json", vocab_file=str(tmp_path / "secret.txt"))
    assert "secret" not in load_model(str(model)).tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer_config.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b"\xff\xfe", b""])
def test_json_that_is_no_settings_is_one_line(model, name, content):
    (model / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        load_model(str(model))


def test_a_file_that_git_lfs_has_not_fetched_is_told_from_a_damaged_one(model):
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InputError, match=r"model.safetensors cannot be read \(.*; it only points .*: git lfs pull"):
        load_model(str(model))


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Hostile(os.system, "touch {}"), "(posix|nt).system"),
        (Hostile(eval, "open('{}', 'w')"), "eval"),
        (Hostile(getattr, OrderedDict, "fromkeys"), "getattr"),
        (Hostile(np.dtype, "f4"), r"numpy.*dtype"),
    ],
)
def test_a_pickle_that_asks_for_anything_else_is_refused_by_name(tmp_path, zipped, payload, name):
    function, arguments = payload.call
    trace = tmp_path / "executed"
    arguments = [a.format(trace) if isinstance(a, str) else a for a in arguments]
    torch.save({"x": Hostile(function, *arguments)}, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=f"it asks for {name}, which is not a tensor"):
        read_torch_file(tmp_path / "x.bin")
    assert not trace.exists()


PICKLED = [
    b"\x80\x02}r\xff\xff\xff\x7f.",  # a memo of 2 billion entries
    b"\x80\x02cposix\nsystem\nU\x02ls\x85R.",
    b"\x80\x0200.",
]


@pytest.mark.parametrize("content", PICKLED)
def test_pickles_of_anything_but_tensors_are_refused(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "archive.bin", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    (tmp_path / "legacy.bin").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, 2) + content)
    (tmp_path / "plain.bin").write_bytes(pickle.dumps({"x": 1}))
    for name in ("archive.bin", "legacy.bin", "plain.bin"):
        with pytest.raises(
            InputError, match="truncated or damaged, or no state dict|asks for posix.system, which is not a tensor"
        ):
            read_torch_file(tmp_path / name)
