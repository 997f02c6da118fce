"""Model folders that are damaged or hostile."""

import json
import os
import pathlib
import struct
import zipfile
from collections.abc import Callable

import encoder_cases
from faults.harness import Case, Ended, Room


def _model(change: Callable[[pathlib.Path], object]) -> Callable[[Room], Ended]:
    """Trains with a teacher whose folder was changed."""

    def do(room: Room) -> Ended:
        folder = room.export()
        change(folder)
        return room.train(teacher__model=folder)

    return do


def _distilbert(room: Room) -> Ended:
    """A folder in which a general name of `config.json` contradicts the family's own, beside weights of the latter."""
    encoder_cases.write_encoder(room.folder, "distilbert")
    encoder_cases.edit_json(room.folder / "config.json", num_hidden_layers=2)
    return room.run(
        "encode",
        f"--model={room.folder}",
        "--pooling=mean",
        f"--input={room.text()}",
        f"--output={room.folder / 'v.npy'}",
    )


def _settings(file: str, **values: object) -> Callable[[pathlib.Path], object]:
    def change(folder: pathlib.Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _content(file: str, content: bytes) -> Callable[[pathlib.Path], object]:
    return lambda folder: (folder / file).write_bytes(content)


def _link(file: str, target: str) -> Callable[[pathlib.Path], object]:
    def change(folder: pathlib.Path) -> None:
        (folder / file).unlink(missing_ok=True)
        (folder / file).symlink_to(target)

    return change


def _pipe(file: str) -> Callable[[pathlib.Path], object]:
    def change(folder: pathlib.Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change


def _folder(folder: pathlib.Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()


def _outside(folder: pathlib.Path) -> None:
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    modules[1]["path"] = "../elsewhere"
    path.write_text(json.dumps(modules))


def _tokenizer(**model: object) -> Callable[[pathlib.Path], object]:
    """A BPE tokenizer without anything around it."""

    def change(folder: pathlib.Path) -> None:
        path = folder / "tokenizer.json"
        around = {"added_tokens": [], "post_processor": None}
        path.write_text(json.dumps(json.loads(path.read_text()) | around | {"model": {"type": "BPE"} | model}))

    return change


def _pickle(content: bytes, compression: int = zipfile.ZIP_STORED) -> Callable[[pathlib.Path], object]:
    def change(folder: pathlib.Path) -> None:
        (folder / "model.safetensors").unlink()
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w", compression) as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/version", "3")  # without it, PyTorch takes the file for an old one

    return change


def _four_bits(folder: pathlib.Path) -> None:
    header = json.dumps({"x": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")


def _truncated(folder: pathlib.Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


OUT = "leads out of the model's folder"
SHORT_MERGE = {"vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]], "continuing_subword_prefix": "####"}


def _own_code(room: Room) -> Ended:
    """A teacher that names Python code of its own; the output ends with the settings that the export has of it."""
    folder = room.export()
    _settings("config.json", auto_map={"AutoModel": "modeling_mine.Mine"})(folder)
    _settings("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]})(folder)
    (folder / "modeling_mine.py").write_text("raise SystemExit('this must never run')")
    ended = room.train(teacher__model=folder, run__steps=2, evals__every=2)
    export = room.folder / "run" / "export"
    copied = [
        path.name
        for path in export.rglob("*")
        if path.is_file() and (path.suffix == ".py" or b"auto_map" in path.read_bytes())
    ]
    return ended._replace(out=f"{ended.out}\ncode in the export: {copied}")


CASES = [
    Case(
        "a model without `config.json`",
        _model(lambda folder: (folder / "config.json").unlink()),
        says="config.json is missing",
        quick=True,
    ),
    Case("a model whose `vocab.txt` links to `/etc/passwd`", _model(_link("vocab.txt", "/etc/passwd")), says=OUT),
    Case(
        "a model whose `added_tokens.json` links to `/proc/self/environ`",
        _model(_link("added_tokens.json", "/proc/self/environ")),
        says=OUT,
        quick=True,
    ),
    Case("a module path outside the model's folder", _model(_outside), says=OUT),
    Case("`num_hidden_layers` of 10**9", _model(_settings("config.json", num_hidden_layers=10**9)), says="tensors.$"),
    Case(
        "a DistilBERT of `n_layers` 4 with `num_hidden_layers` 2",
        _distilbert,
        says=r"no place for tensor transformer\.layer\.2",
        quick=True,
    ),
    Case("`vocab_size` of 10**12", _model(_settings("config.json", vocab_size=10**12)), says="no axis longer than"),
    Case("`config.json` is `[]`", _model(_content("config.json", b"[]")), says="must hold a JSON object"),
    Case("`config.json` nested 100,000 deep", _model(_content("config.json", b"[" * 10**5)), says="nested too deeply"),
    Case("`config.json` is a pipe", _model(_pipe("config.json")), says="is a pipe; only regular files can be read"),
    Case(
        "weights that are a pipe", _model(_pipe("model.safetensors")), says="is a pipe; only regular files can be read"
    ),
    Case("`tokenizer.json` is a folder", _model(_folder), says="is a folder; only regular files can be read"),
    Case(
        "a tokenizer without vocabulary",
        _model(_tokenizer(vocab={}, merges=[])),
        says="the tokenizer's vocabulary is empty",
    ),
    Case("a tokenizer that panics", _model(_tokenizer(**SHORT_MERGE)), says="is not a tokenizer that can be read"),
    Case("truncated safetensors", _model(_truncated), says="truncated or damaged"),
    Case("4-bit floats in safetensors", _model(_four_bits), says="has the dtype 'F4'; .* save it as F32"),
    Case(
        "a pickle that calls `os.system`",
        _model(_pickle(b"\x80\x02cos\nsystem\nU\x02ls\x85R.")),
        says="asks for os.system, which is not a tensor",
    ),
    Case(
        "a pickle with the memo index 2**31 - 1",
        _model(_pickle(b"\x80\x02}r\xff\xff\xff\x7f.")),
        says="holds a dict without tensors",
    ),
    Case(
        "a pickle of nested tuples",
        _model(_pickle(b"\x80\x02)" + b"\x85" * 10**6 + b".")),
        says="holds a tuple without tensors",
    ),
    Case(
        "a compressed archive of 64 MB of zeros as `pytorch_model.bin`",
        _model(_pickle(bytes(64 << 20), zipfile.ZIP_DEFLATED)),
        says="cannot be read",
    ),
    Case("a model with `auto_map`, code of its own", _own_code, says=r"export: \[\]$", status=0, left=("run/*",)),
]
