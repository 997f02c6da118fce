"""ONNX files of an export: the model's vectors of every kind of encoder, in float32 and with 8-bit weights."""

import dataclasses
import itertools
import json
import shutil

import jax
import jaxtyping
import numpy as np
import pytest

from jaxdistill import export as export_command
from jaxdistill.core import InputError
from jaxdistill.encoders import families
from jaxdistill.encoders.architecture import SentenceNorm
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.folder import check_exportable, save
from jaxdistill.models.checkpoints.model import load_model, read_architecture
from jaxdistill.models.inference import Embedder
from jaxdistill.models.vectors import unit_rows
from jaxdistill.training.export import export

import encoder_cases as cases
import program
from tiny_models import tiny_model

TEXTS = ["w1 w2 w3", "w4", "w5 unknown w7 " * 9, "w1 " * 60, "w8 w9"]
SEVERAL_LAYERS = {
    "albert": {},
    "modernbert": {},
    "qwen3": dict(max_window_layers=1),
    "gemma3-text:both-sides": dict(layer_types=["sliding_attention", "full_attention"]),
}
"""Families whose layers differ, or share their weights, and what keeps one of each kind among two; others have one."""


@pytest.fixture(scope="module", autouse=True)
def unchecked_shapes():
    """Symbolic sizes cannot be compared, which checks of shapes do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


def write_family(folder, family, *, layers=1):
    """A small encoder of the family, with at least so many layers."""
    layers = max(layers, 2 if family in SEVERAL_LAYERS else 1)
    several = SEVERAL_LAYERS.get(family, {}) if layers == 2 else {}
    cases.write_encoder(folder, family, num_hidden_layers=layers, **several)


REFUSED = ("mean:second_to_last", "mean:last2:max", "mean:last2:concat")
POOLINGS = ("pooler", "cls", "mean", "max", "last", "weightedmean", "mean_sqrt_len", "mean:last2", "mean:all", *REFUSED)
HEADS = ["", "norm", "tanh", "identity"]
ROWS = [
    (family, POOLINGS[row % len(POOLINGS)], HEADS[row % len(HEADS)], row // len(HEADS) % 2 == 0)
    for row, family in zip(range(len(POOLINGS)), itertools.cycle(cases.GRAPHS))
]
"""Every kind of graph, pooling, head and norm, each with several of the others."""


def with_head(model, head):
    if head != "norm":
        return surgery.add_head(model, 24, key=jax.random.key(0), activation=head) if head else model
    width = model.definition.embedding_width
    scale = {f"dense/0/{part}": np.linspace(0.5, 1.5, width, dtype=np.float32) for part in ("scale", "bias")}
    definition = dataclasses.replace(model.definition, dense=(SentenceNorm(width=width),))
    return dataclasses.replace(model, definition=definition, params=model.params | scale)


def refusal(architecture, pooling):
    """Words of the line for what no export holds."""
    if pooling == "pooler" and "pooler" not in families.family(architecture.family).NAMES:
        return "pooling pooler needs a pooler"
    return f"onnx cannot hold pooling {pooling}" if pooling in REFUSED else ""


@pytest.mark.parametrize(("family", "pooling", "head", "normalize"), ROWS)
def test_every_graph_pooling_head_and_norm_is_in_onnx_or_refused(tmp_path, family, pooling, head, normalize):
    write_family(tmp_path / "in", family, layers=2 if ":" in pooling else 1)

    def written(pooling):
        model = with_head(load_model(str(tmp_path / "in"), pooling=pooling), head)
        model = dataclasses.replace(model, definition=dataclasses.replace(model.definition, normalize=normalize))
        check_exportable(model.definition)
        onnx.check(model)
        save(model, tmp_path / "out")
        return model, onnx.write(model, tmp_path / "out")

    if words := refusal(read_architecture(tmp_path / "in"), pooling):
        with pytest.raises(InputError, match=words):
            written(pooling)
        return
    model, (exact, rounded) = written(pooling)
    expected = Embedder(model).encode(TEXTS)
    np.testing.assert_allclose(onnx.encoder(model, exact)(TEXTS), expected, rtol=0, atol=2e-5)
    vectors = onnx.encoder(model, rounded)(TEXTS)
    cosines = np.sum(unit_rows(vectors) * unit_rows(expected), axis=1)
    assert cosines.min() > 0.9


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder that the command writes."""
    folder = tmp_path_factory.mktemp("onnx")
    save(tiny_model(folder / "tokenizer", head=8), folder / "in")
    export_command.main([f"--model={folder / 'in'}", f"--out={folder / 'out'}", "--to=onnx"])
    return folder / "out"


def test_the_command_writes_both_files_and_a_table_of_what_they_cost(exported):
    names = {path.name for path in (exported / "onnx").iterdir()}
    assert "model.onnx" in names <= {"model.onnx", "model_quantized.onnx"}
    card = (exported / "README.md").read_text()
    assert all(f"| onnx/{name} |" in card for name in names)
    assert "average `last_hidden_state`" in card  # the head has an activation
    marked = json.loads((exported / "jaxdistill.json").read_text())["files"]
    assert {f"onnx/{name}" for name in names} <= marked.keys()


def test_a_file_that_differs_is_not_written(exported, tmp_path, monkeypatch):
    model = tiny_model(tmp_path / "tokenizer", head=8)
    monkeypatch.setattr(onnx, "trace", lambda model, folder, file: shutil.copy(exported / "onnx" / onnx.FLOAT, file))
    export(model, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    encoder = onnx.encoder
    monkeypatch.setattr(onnx, "encoder", lambda *arguments: lambda texts: encoder(*arguments)(texts)[:, ::-1])
    with pytest.raises(InputError, match="onnx/model.onnx was not written: it differs from the model by"):
        export(model, tmp_path / "out", to="onnx")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    factors = {onnx.FLOAT: 1.0, onnx.INT8: np.nan}
    monkeypatch.setattr(
        onnx, "encoder", lambda model, file: lambda texts: encoder(model, file)(texts) * factors[file.name]
    )
    export(model, tmp_path / "new", to="onnx")
    assert {path.name for path in (tmp_path / "new" / "onnx").iterdir()} == {onnx.FLOAT}


def test_what_onnx_cannot_hold_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    save(tiny_model(tmp_path / "tokenizer", pooling="mean:last2:max"), tmp_path / "in")
    flags = [f"--model={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]
    line = program.refused(export_command, [*flags, "--to=onnx"], capsys)
    assert "onnx cannot hold pooling mean:last2:max" in line
    checkpoint = ["--workdir=run", "--step=5"]
    for argv in ([flags[1]], *([*flags, *extra] for extra in (checkpoint, checkpoint[:1], checkpoint[1:]))):
        line = program.refused(export_command, argv, capsys)
        assert "give workdir and step of a run, or model alone" in line
    monkeypatch.setattr(onnx, "NEEDS", ("no_such_package",))
    line = program.refused(export_command, [*flags, "--to=onnx"], capsys)
    assert "--to=onnx needs the package no_such_package" in line
    assert not (tmp_path / "out").exists()
