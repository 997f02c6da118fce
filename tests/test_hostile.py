"""Model folders that somebody else made: nothing outside is read, and sizes are checked before memory is taken."""

import json
import os
import pickle
import shutil
import zipfile

import pytest

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


def linked(path, target):
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def refused(model) -> str:
    with pytest.raises(InputError) as error:
        load_model(str(model))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["special_tokens_map.json", "vocab.txt", "config.json", "2_Dense/model.safetensors"])
def test_a_link_out_of_the_folder_is_refused(model, tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    for target in ("../secret", tmp_path / "secret", "/proc/self/environ"):
        linked(model / name, tmp_path / "secret" if "/" in name and target == "../secret" else target)
        assert "leads out of the model's folder" in refused(model)


def test_a_snapshot_of_the_hubs_cache_links_to_its_blobs_alone(model, tmp_path):
    cache = tmp_path / "hub" / "models--a--b"
    snapshot = cache / "snapshots" / "0a1b"
    snapshot.parent.mkdir(parents=True)
    (cache / "blobs").mkdir()
    shutil.copytree(model, snapshot)
    for number, path in enumerate(sorted(snapshot.rglob("*.*"))):
        blob = cache / "blobs" / str(number)
        path.rename(blob)
        linked(path, os.path.relpath(blob, path.parent))
    assert load_model(str(snapshot)).max_length == 16
    (cache / "secret").write_text("{}")
    linked(snapshot / "vocab.txt", "../../secret")
    assert "leads out of the model's folder" in refused(snapshot)
    (cache / "blobs").rename(tmp_path / "elsewhere")
    (cache / "blobs").symlink_to(tmp_path / "elsewhere")
    linked(snapshot / "vocab.txt", "../../blobs/0")
    assert "leads out of the model's folder" in refused(snapshot)


@pytest.mark.parametrize("path", ["../elsewhere", "/tmp", "a\0b", "a" * 5000])
def test_a_module_outside_the_folder_is_refused(model, path):
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["path"] = path
    (model / "modules.json").write_text(json.dumps(modules))
    message = refused(model)
    assert "leads out of the model's folder" in message or "which no file can have" in message


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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_hidden_layers", 10**9, r"layers=1,000,000,000, but the weights next to it have \d+ tensors"),
        ("vocab_size", 10**12, "vocab_size=1,000,000,000,000, but the weights next to it have no axis longer than"),
        ("intermediate_size", 10**12, "intermediate_size=1,000,000,000,000"),
        ("max_position_embeddings", 10**12, "max_positions=1,000,000,000,000"),
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_built(model, key, value, message):
    change(model / "config.json", **{key: value})
    with pytest.raises(InputError, match=message):
        load_model(str(model))


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer_config.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xff\xfe", b"null"])
def test_json_that_is_no_settings_is_one_line(model, name, content):
    (model / name).write_bytes(content)
    assert name in refused(model)


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
    for name in ("archive.bin", "legacy.bin"):
        with pytest.raises(
            InputError, match="truncated or damaged, or no state dict|asks for posix.system, which is not a tensor"
        ):
            read_torch_file(tmp_path / name)
