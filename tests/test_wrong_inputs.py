"""Every wrong input of docs/reliability.md gives the line and the status that the page says, and leaves nothing behind."""

import gzip
import importlib
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from jaxdistill import main
from jaxdistill.__main__ import PROGRAMS
from jaxdistill.training.workdir.folder import locked

import encoder_cases as cases
from conftest import ROOT
from program import refused, run, tiny_arguments

PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*`) \| `([^`]*)`(?:, status (\d+))? \|$", PAGE, re.M)
CASES = [(command, line, int(status or 2)) for cell, line, status in ROWS for command in re.findall("`([^`]*)`", cell)]
DEFAULTS = {
    "encode": ["--model=model", "--text=text.txt", "--output=out.npy"],
    "evaluate": ["--model=model", "--tasks=pairs", "--pairs=pairs.tsv"],
    "export": ["--workdir=run", "--step=2", "--out=out"],
    "mine": ["--model=model", "--pairs=positives.tsv", "--output=out.tsv"],
    "sweep": ["--config=configs/congen.py:tiny", "--workdir=out"],
}
"""Options of the other programs, where an input does not give its own."""


class Code:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        return os.system, ("touch executed",)


def write_texts():
    """Files of text and tables, named after what is wrong with them."""
    lines = {
        "empty.txt": "", "blank.txt": "\n \n", "greek.txt": "η γάτα κοιμάται τώρα\n" * 40,
        "lfs.txt": "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "table.csv": "sentence,other\n" + "".join(f"a cat {n},a dog {n}\n" for n in range(40)),
        "headless.csv": "The cat sleeps in the sun.,It rains.\nA dog.,A bird sings.\n",
        "pairs.tsv": "score\tsentence1\tsentence2\n1\ta cat\ta dog\n0\ta cat\train\n",
        "positives.tsv": "text\tpositive\na cat\tthe cat\na dog\tthe dog\n",
        "syntax.py": "def get_config(:\n",
    }  # fmt: skip
    for name, text in lines.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("latin1.txt").write_bytes("Die Katze schläft.\n".encode("latin1"))
    Path("cut.txt.gz").write_bytes(gzip.compress(b"".join(b"a cat %d\n" % n for n in range(999)))[:-20])
    pq.write_table(pa.table({"text": list(range(40))}), "numbers.parquet")
    Path("notes").mkdir()
    Path("notes/mine.txt").write_text("mine\n")


def write_models():
    """Copies of a model, each with one fault."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree("model", name))

    for name in ("model.safetensors", "tokenizer.json"):
        (copy("no-" + name.partition(".")[0]) / name).unlink()
    Path("no-tokenizer/vocab.txt").unlink(missing_ok=True)
    (copy("cut-config") / "config.json").write_text('{"model_type": "be')
    modules = json.loads((copy("outside") / "modules.json").read_text())
    modules[1]["path"] = "../model/1_Pooling"
    Path("outside/modules.json").write_text(json.dumps(modules))
    weights, first = load_file("model/model.safetensors"), "encoder.layer.0.output.dense.weight"
    for name, tensor in {
        "nan": weights[first] * np.float32("nan"),
        "other-shape": weights[first].repeat(2, axis=0),
    }.items():
        save_file(weights | {first: tensor}, copy(name) / "model.safetensors")
    del weights[first]
    save_file(weights, copy("incomplete") / "model.safetensors")
    shutil.copy("lfs.txt", copy("lfs") / "model.safetensors")
    (copy("code") / "model.safetensors").unlink()
    torch.save({"x": Code()}, "code/pytorch_model.bin")
    Path("classifier").mkdir()
    cases.write_cross_encoder(Path("classifier"), "bert", num_labels=3)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """The options of a tiny training; the working folder has what the page's inputs name, and a run of two steps."""
    folder = tmp_path_factory.mktemp("wrong")
    arguments = [word.replace(f"{folder}/", "") for word in tiny_arguments(folder, run__steps=2, evals__every=1)]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_MAX_ATTEMPTS"):
            patched.setenv(name, "1")
        write_texts()
        write_models()
        main.main([*arguments, "--workdir=run"])
        for file in Path(shutil.copytree("run", "damaged")).glob("checkpoints/2/state/d/*"):
            file.write_bytes(file.read_bytes()[:-9])
        yield arguments


def words_of(command: str, training: list[str]) -> tuple[dict[str, str], str, list[str]]:
    """The variables, the program and the whole command line of one of the page's inputs."""
    words = shlex.split(command)
    variables = {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    program = words.pop(0) if words and words[0] in PROGRAMS else "train"
    defaults = DEFAULTS.get(program, [*training, "--workdir=never"])
    if any(word.startswith("--config=") for word in words):
        defaults = defaults[-1:]
    names = {word.partition("=")[0] for word in words}
    return variables, program, [*(word for word in defaults if word.partition("=")[0] not in names), *words]


@pytest.mark.parametrize(("command", "line", "status"), CASES, ids=[command for command, *_ in CASES])
def test_a_wrong_input_gives_its_line(options, command, line, status, monkeypatch, capsys):
    variables, program, words = words_of(command, options)
    before = sorted(os.listdir())
    with locked(Path("held")):
        if "JAX_PLATFORMS" in variables:
            output = run("main", words, cwd=os.getcwd(), status=status, variables=variables)[1]
        else:
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            module = importlib.import_module(f"jaxdistill.{'main' if program == 'train' else program}")
            output = refused(module, words, capsys, status=status)
    assert re.fullmatch("error: " + ".*".join(map(re.escape, line.split("..."))), output.strip()), output
    assert sorted(os.listdir()) == sorted({*before, "held"})


def test_the_page_has_sixty():
    assert len(CASES) >= 60 and len(PAGE.splitlines()) <= 80
