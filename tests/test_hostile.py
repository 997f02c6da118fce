"""Model folders that somebody else made: nothing outside is read, and sizes are checked before memory is taken."""

import json
import os
import pickle
import shutil
import struct
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.checkpoints.safetensors_file import read_safetensors
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


def test_a_link_inside_the_folder_is_read(model):
    (model / "config.json").rename(model / "real.json")
    linked(model / "config.json", "real.json")
    assert load_model(str(model)).max_length == 16


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


def test_positions_must_leave_room_for_a_sentence(model):
    change(model / "config.json", model_type="roberta", pad_token_id=1000)
    assert "leaves -969 positions to a sentence" in refused(model)


@pytest.mark.parametrize("name", ["config.json", "modules.json", "tokenizer_config.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xff\xfe", b"null"])
def test_json_that_is_no_settings_is_one_line(model, name, content):
    (model / name).write_bytes(content)
    assert name in refused(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json"])
def test_pipes_devices_and_folders_are_refused_as_files_of_a_model(model, name):
    (model / name).unlink()
    os.mkfifo(model / name)
    assert "is a pipe; only regular files can be read" in refused(model)
    (model / name).unlink()
    (model / name).mkdir()
    assert "is a folder; only regular files can be read" in refused(model)


@pytest.mark.parametrize(
    ("change_of_model", "message"),
    [
        ({"vocab": {}, "merges": []}, "the tokenizer's vocabulary is empty"),
        # The merge is shorter than the prefix that Rust cuts off: a panic, which is no Exception.
        ({"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]], "continuing_subword_prefix": "####"}, "not a tokenizer"),
    ],
)
def test_tokenizers_that_are_empty_or_panic_are_refused(model, change_of_model, message):
    file = json.loads((model / "tokenizer.json").read_text())
    file["model"] = {"type": "BPE"} | change_of_model
    file["added_tokens"], file["post_processor"] = [], None
    (model / "tokenizer.json").write_text(json.dumps(file))
    assert message in refused(model)


def test_a_tokenizer_that_panics_on_its_first_word_is_refused_in_one_line(model, capfd):
    file = json.loads((model / "tokenizer.json").read_text())
    file["post_processor"]["special_tokens"] = {}  # which the template names
    (model / "tokenizer.json").write_text(json.dumps(file))
    assert "not a tokenizer that can be read" in refused(model)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "bfloat16"])
def test_narrow_floats_are_read(tmp_path, name):
    numbers = np.array([[0.5, 1.0], [2.0, 4.0]], getattr(ml_dtypes, name))
    kind = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}[name]
    write_safetensors(tmp_path / "a.safetensors", {"x": (kind, [2, 2], numbers.tobytes())})
    found = read_safetensors(tmp_path / "a.safetensors")["x"]
    np.testing.assert_array_equal(found.astype(np.float32), [[0.5, 1], [2, 4]])


def test_safetensors_are_read_as_the_package_writes_them(tmp_path):
    tensors = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(3, np.int64), "c": np.zeros((0, 2))}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    found = read_safetensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def write_safetensors(path, tensors, *, surplus=b"", **header):
    """A file of `(dtype, shape, bytes)` of each tensor."""
    content, entries = b"", {}
    for name, (kind, shape, data) in tensors.items():
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(content), len(content) + len(data)]}
        content += data
    text = json.dumps(entries | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content + surplus)


@pytest.mark.parametrize(
    ("tensors", "options", "message"),
    [
        ({"x": ("F4", [2, 2], b"12")}, {}, "tensor 'x' has the dtype 'F4'; .* save it as F32"),
        ({"x": ("F32", [2], b"1234")}, {}, "invalid shape, data type, or offset"),
        ({"x": ("F32", [1 << 40, 1 << 40], b"1234")}, {}, "overflow computing buffer size"),
        ({"x": ("F32", [1], b"1234")}, {"surplus": b"1"}, "file not fully covered"),
        (
            {"x": ("F32", [1], b"1234")},
            {"y": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
            "invalid offset for tensor `[xy]`",
        ),
        ({"x": ("F32", [-1], b"")}, {}, "expected usize"),
        ({"x": ("F32", [0, 1 << 62], b"")}, {}, "a shape that NumPy does not support"),
        ({}, {"x": [1]}, "expected string or map"),
    ],
)
def test_headers_that_do_not_describe_the_file_are_refused(tmp_path, tensors, options, message):
    write_safetensors(tmp_path / "a.safetensors", tensors, **options)
    with pytest.raises(InputError, match=message):
        read_safetensors(tmp_path / "a.safetensors")


def test_a_header_longer_than_the_file_is_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    with pytest.raises(InputError, match="truncated or damaged .*header too large"):
        read_safetensors(tmp_path / "a.safetensors")


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


def test_a_torch_file_without_torch_says_how_to_convert_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # its import fails
    with pytest.raises(InputError, match="pip install torch, or use a checkpoint with model.safetensors"):
        read_torch_file(tmp_path / "pytorch_model.bin")
