"""Forms for other runtimes: the same vectors as the model, of every family, and nothing written that differs."""

import dataclasses
import importlib
import itertools
import json
import re
import sys

import jax
import jaxtyping
import numpy as np
import pytest
import test_linear_heads

from jaxdistill import export as export_command
from jaxdistill import exports
from jaxdistill import main as train_command
from jaxdistill.checkpoints.folder import check_exportable, save
from jaxdistill.checkpoints.model import load_model, read_architecture
from jaxdistill.core import InputError
from jaxdistill.encoders import families
from jaxdistill.encoders.architecture import ACTIVATIONS, COMBINATIONS, LAYER_CHOICES, TOKEN_POOLINGS, SentenceNorm
from jaxdistill.exports import measuring, onnx
from jaxdistill.exports.running import Runtime, TextRun, outputs
from jaxdistill.inference import Embedder
from jaxdistill.surgery import resizing
from jaxdistill.training.export import export

import encoder_cases as cases
import program
from faults import forms
from faults.harness import observe
from tiny_models import tiny_model

TEXTS = ["w1 w2 w3", "w4", "w5 unknown w7 " * 9, "w1 " * 60, "w8 w9"]
OF_ALL = [name for name in exports.FORMS if name != "gguf"]
"""Forms that hold models of every kind."""
INSTALLED = [name for name in exports.FORMS if all(importlib.util.find_spec(one) for one in exports.form(name).NEEDS)]


@pytest.fixture(scope="module", autouse=True)
def unchecked_shapes():
    """Symbolic sizes cannot be compared, which checks of shapes do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


def cosines(one, other):
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return np.sum(one * other, axis=1)


def needs(name):
    if name not in INSTALLED:
        pytest.skip(f"{name} needs {', '.join(exports.form(name).NEEDS)}, which are not all installed")


SEVERAL_LAYERS = {
    "albert": {},
    "modernbert": {},
    "qwen2": dict(max_window_layers=1),
    "qwen3": dict(max_window_layers=1),
    "qwen3:both-sides": dict(max_window_layers=1),
    "gemma3-text": {},
    "gemma3-text:both-sides": dict(layer_types=["sliding_attention", "full_attention"]),
    "gemma3-text:not-causal": {},
}
"""Families whose layers differ, or share their weights, and what keeps one of each kind among two; others have one."""


def write_family(folder, family, *, layers=1):
    """A small encoder of the family, with at least so many layers."""
    layers = max(layers, 2 if family in SEVERAL_LAYERS else 1)
    cases.write_encoder(folder, family, num_hidden_layers=layers, **SEVERAL_LAYERS.get(family, {}))


@pytest.mark.parametrize("family", cases.CONFIGS)
def test_every_family_gives_the_same_vectors_in_stablehlo(tmp_path, family):
    write_family(tmp_path / "in", family)
    model = load_model(str(tmp_path / "in"), pooling="mean")
    (file,) = exports.form("stablehlo").write(model, tmp_path)
    found = Runtime(model, exports.form("stablehlo").runner(model, file)).encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(found, Embedder(model).encode(TEXTS), rtol=0, atol=2e-5)


POOLINGS = [*TOKEN_POOLINGS, *(f"mean:{layers}" for layers in LAYER_CHOICES if layers != "last")]
POOLINGS += [f"mean:last2:{combination}" for combination in COMBINATIONS if combination != "mean"]
HEADS = ["", "norm", *ACTIVATIONS]
ROWS = [
    (family, POOLINGS[row % len(POOLINGS)], HEADS[row % len(HEADS)], row // len(HEADS) % 2 == 0)
    for row, family in zip(range(max(map(len, (cases.CONFIGS, POOLINGS, HEADS)))), itertools.cycle(cases.CONFIGS))
]
"""Every family, pooling, head and norm, each with several of the others."""


def with_head(model, head):
    if head != "norm":
        return resizing.add_head(model, 24, key=jax.random.key(0), activation=head) if head else model
    width = model.definition.embedding_width
    scale = {f"dense/0/{part}": np.linspace(0.5, 1.5, width, dtype=np.float32) for part in ("scale", "bias")}
    definition = dataclasses.replace(model.definition, dense=(SentenceNorm(width=width),))
    return dataclasses.replace(model, definition=definition, params=model.params | scale)


def refusal(architecture, pooling, head):
    """Words of the line for what no export holds."""
    if pooling == "pooler" and "pooler" not in families.family(architecture.family).NAMES:
        return "pooling pooler needs a pooler"
    if pooling == "mean:second_to_last" and architecture.norm_place != "post":
        return "pooling mean:second_to_last cannot be exported: .* has a norm after its last layer"
    if head == "gelu_tanh":
        return "dense activation 'gelu_tanh' cannot be exported"
    return f"onnx cannot hold this model: .* none for pooling {pooling}" if pooling in POOLINGS[-2:] else ""


@pytest.mark.parametrize(("family", "pooling", "head", "normalize"), ROWS)
def test_every_family_pooling_head_and_norm_is_in_onnx_or_refused(tmp_path, family, pooling, head, normalize):
    needs("onnx")
    write_family(tmp_path / "in", family, layers=3 if ":" in pooling else 1)

    def written(pooling):
        model = with_head(load_model(str(tmp_path / "in"), pooling=pooling), head)
        model = dataclasses.replace(model, definition=dataclasses.replace(model.definition, normalize=normalize))
        check_exportable(model.definition)
        exports.check(["onnx"], model)
        save(model, tmp_path / "out")
        return model, onnx.write(model, tmp_path / "out")

    if words := refusal(read_architecture(tmp_path / "in"), pooling, head):
        with pytest.raises(InputError, match=words):
            written(pooling)
        return
    model, files = written(pooling)
    want = Embedder(model).encode(TEXTS)
    for file in files:
        found = Runtime(model, onnx.runner(model, file)).encode(TEXTS, batch_size=2)
        if file.name == onnx.FLOAT:
            np.testing.assert_allclose(found, want, rtol=0, atol=2e-5)
        assert cosines(found, want).min() > (0.9 if file.name in onnx.ROUNDED else 0.999), file.name


def test_the_rows_have_every_family():
    assert {*families.known()} - {name.partition(":")[0] for name in cases.CONFIGS} == {"new"}  # read like gte


@pytest.mark.parametrize("name", OF_ALL)
def test_a_cross_encoder_gives_the_same_scores(tmp_path, name):
    needs(name)
    cases.write_cross_encoder(tmp_path / "in", "bert")
    model = load_model(str(tmp_path / "in"))
    save(model, tmp_path / "out")
    file = exports.form(name).write(model, tmp_path / "out")[0]
    found = Runtime(model, exports.form(name).runner(model, file)).score(TEXTS, TEXTS[::-1])
    np.testing.assert_allclose(found, Embedder(model).score(TEXTS, TEXTS[::-1]), rtol=0, atol=1e-5)


@pytest.fixture(scope="module", params=["mean", "mean:last2"])
def with_heads(request, tmp_path_factory):
    """(pooling, a model with linear heads, its export): OpenVINO reads the graph of ONNX that is there."""
    folder = tmp_path_factory.mktemp("heads")
    cases.write_encoder(folder / "in", "bert", num_hidden_layers=2)
    return request.param, test_linear_heads.linear_head(folder / "out", folder / "in", request.param), folder / "out"


@pytest.mark.parametrize("name", OF_ALL)
def test_linear_heads_are_in_the_token_vectors(with_heads, name):
    needs(name)
    pooling, model, folder = with_heads
    file = exports.form(name).write(model, folder)[0]
    want = Embedder(model).encode(TEXTS)
    np.testing.assert_allclose(Runtime(model, exports.form(name).runner(model, file)).encode(TEXTS), want, atol=1e-5)
    if name == "onnx" and pooling == "mean":
        found = token_vectors(model, file)
        assert cosines(found, want).min() > 1 - 1e-6


def token_vectors(model, file):
    """Means of `last_hidden_state`, as runtimes take them that read no other output."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    found = []
    for encoding in model.encodings(TEXTS):
        ids = np.array([encoding.ids])
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        found.append(session.run(outputs(model)[:1], given)[0][0].mean(axis=0))
    return np.stack(found)


@pytest.fixture
def quick(monkeypatch):
    """Compares and times few texts."""
    monkeypatch.setattr(measuring, "COMPARED", 6)
    monkeypatch.setattr(measuring, "TIMED", 4)


def test_the_command_writes_onnx_in_four_forms_and_a_table_of_what_they_cost(tmp_path, quick):
    needs("onnx")
    save(tiny_model(tmp_path / "tokenizer", head=8), tmp_path / "in")
    text = tmp_path / "text.txt"
    text.write_text("the cat sleeps\nrain\na dog\n")
    given = [f"--model={tmp_path / 'in'}", f"--out={tmp_path / 'out'}", "--to=onnx", f"--calibration={text}"]
    export_command.main(given)
    files = {path.name for path in (tmp_path / "out" / "onnx").iterdir()}
    assert {"model.onnx", "model_fp16.onnx"} <= files <= set(onnx.FILES)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "## Other runtimes" in card and "| sentence-transformers (torch) |" in card
    assert all(f"| onnx/{name} |" in card for name in files)
    assert "average `last_hidden_state`" in card  # the head has an activation
    marked = json.loads((tmp_path / "out" / "jaxdistill.json").read_text())["files"]
    assert {f"onnx/{name}" for name in files} <= marked.keys()
    small = exports.load_form(tmp_path / "out", "onnx/model.onnx")
    want = Embedder(load_model(str(tmp_path / "out"))).encode(["the cat", "rain"])
    np.testing.assert_allclose(small.encode(["the cat", "rain"]), want, atol=1e-5)
    prompted = small.encode(["sleeps"], prompt_name="query")
    np.testing.assert_allclose(prompted, small.encode(["the cat sleeps"]), atol=1e-5)
    for sentences, options, words in (
        (b"text", {}, "list"), (["x"], {"prompt_name": "no"}, "query"), ([None], {}, "sentence 0 is None"),
        (["x"], {"batch_size": -1}, "batch_size=-1 must be a whole number, at least 1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            small.encode(sentences, **options)
    with pytest.raises(InputError, match="model_q4.onnx is not there; write it with jaxdistill.export"):
        exports.load_form(tmp_path / "out", "onnx/model_q4.onnx")
    (tmp_path / "out" / "onnx" / "model.onnx").write_bytes(b"{")
    with pytest.raises(InputError, match="model.onnx is damaged; export the model again"):
        exports.load_form(tmp_path / "out", "onnx/model.onnx")


def test_half_precision_is_left_out_where_numbers_inside_the_model_pass_its_range(tmp_path, quick, caplog):
    needs("onnx")
    model, kernel = tiny_model(tmp_path / "tokenizer"), "transformer/layers/0/intermediate/kernel"
    model = dataclasses.replace(model, params=model.params | {kernel: model.params[kernel] * 3e4})
    folder = export(model, tmp_path / "out", to=["onnx"])
    assert {path.name for path in (folder / "onnx").iterdir()} == {onnx.FLOAT, onnx.DYNAMIC}
    assert re.search("onnx/model_fp16.onnx is left out: numbers inside the model reach .* ends at 65,504", caplog.text)


def test_a_training_ends_with_forms_that_its_report_shows(tmp_path, quick):
    given = program.tiny_arguments(
        tmp_path, run__steps=2, evals__every=2, run__export_to="stablehlo", run__license="isc"
    )
    train_command.main([*given, f"--workdir={tmp_path / 'run'}"])
    (row,) = [
        row
        for row in json.loads((tmp_path / "run" / "export" / "jaxdistill.json").read_text())["forms"]
        if "model.bin" in row["form"]
    ]
    assert "\nlicense: isc\n" in (tmp_path / "run" / "export" / "README.md").read_text()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "".join(f"<td>{cell}</td>" for cell in row.values()) in page and float(row["least cosine"]) > 0.9999


def test_an_export_killed_while_it_writes_a_form_leaves_the_one_that_was_there(tmp_path):
    (case,) = [case for case in forms.CASES if "SIGKILL" in case.given]
    assert not observe(case, tmp_path / "room", tmp_path / "shared").wrong


def test_a_form_that_differs_is_not_written(tmp_path, quick, monkeypatch):
    model, stablehlo = tiny_model(tmp_path / "tokenizer"), exports.form("stablehlo")
    export(model, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    runner = stablehlo.runner
    wrong = lambda model, file: lambda **given: runner(model, file)(**given) + 0.1  # noqa: E731
    monkeypatch.setattr(stablehlo, "runner", wrong)
    with pytest.raises(InputError, match="stablehlo/model.bin was not written: cosine .* at least 0.9999 is required"):
        export(model, tmp_path / "out", to=["stablehlo"])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_texts_that_a_form_reads_as_other_tokens_are_counted_and_not_compared(tmp_path, quick, monkeypatch):
    model, stablehlo = tiny_model(tmp_path / "tokenizer"), exports.form("stablehlo")
    runner, differing = stablehlo.runner, {"Rain."}

    def own(text):
        ids = model.tokenizer.encode(text).ids
        return [ids[0], ids[-1]] if text in differing else ids

    monkeypatch.setattr(stablehlo, "runner", lambda model, file: TextRun(runner(model, file), own))
    folder = export(model, tmp_path / "out", to=["stablehlo"])
    rows = json.loads((folder / "jaxdistill.json").read_text())["forms"]
    assert [row[measuring.OTHER_TOKENS] for row in rows] == ["", "1"] and float(rows[1]["least cosine"]) > 0.9999
    assert "reads some scripts differently" in (folder / "README.md").read_text()
    differing |= set(measuring.OTHER_SCRIPTS)
    with pytest.raises(InputError, match="its own tokenizer gives 10 of the texts other tokens"):
        export(model, folder, to=["stablehlo"])


def test_what_a_form_cannot_hold_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    save(tiny_model(tmp_path / "tokenizer", pooling="mean:last2:max"), tmp_path / "in")
    given = [f"--model={tmp_path / 'in'}", f"--out={tmp_path / 'out'}"]
    if "onnx" in INSTALLED:
        line = program.refused(export_command, [*given, "--to=onnx"], capsys)
        assert (
            "onnx cannot hold this model: sentence-transformers, whose modules are traced, has none for pooling" in line
        )
    line = program.refused(export_command, [*given, "--to=onxx"], capsys)
    assert "form 'onxx' is unknown. Did you mean" in line and "onnx, openvino" in line
    with pytest.raises(InputError, match=r"form '5' is unknown\. to takes onnx"):
        export_command.export_checkpoint(model=tmp_path / "in", out=tmp_path / "out", to=5)
    monkeypatch.setattr(exports.form("litert"), "NEEDS", ("no_such_package",))
    line = program.refused(export_command, [*given, "--to=stablehlo,litert"], capsys)
    assert "--to=litert needs the package no_such_package; run: pip install 'jaxdistill[litert]'" in line
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    line = program.refused(export_command, [*given, "--to=onnx"], capsys)
    assert "needs the package torch; install PyTorch's CPU build first, see pytorch.org, then run: pip install" in line
    monkeypatch.undo()
    checkpoint = ["--workdir=run", "--step=5"]
    for named in ([given[1]], *([*given, *others] for others in (checkpoint, checkpoint[:1], checkpoint[1:]))):
        line = program.refused(export_command, named, capsys)
        assert "give --workdir and --step of a run, or --model alone" in line
    line = program.refused(export_command, [*given, "--to=stablehlo", "--calibration=text.txt"], capsys)
    assert "--calibration applies to 8-bit ONNX; give --to=onnx too" in line
    assert not (tmp_path / "out").exists()


def test_stablehlo_names_its_platforms_and_until_when_jax_reads_it(tmp_path):
    model = tiny_model(tmp_path / "tokenizer")
    (file,) = exports.form("stablehlo").write(model, tmp_path)
    facts = json.loads((file.parent / "stablehlo.json").read_text())
    assert facts["platforms"] == ["cpu", "cuda", "tpu"] and facts["readable_until"] > "2026"
    assert jax.export.deserialize(bytearray(file.read_bytes())).platforms == ("cpu", "cuda", "tpu")


def test_openvino_is_imported_without_telemetry(tmp_path):
    needs("openvino")
    model = tiny_model(tmp_path / "tokenizer")
    save(model, tmp_path / "out")
    exports.form("openvino").write(model, tmp_path / "out")
    assert sys.modules["openvino.tools.ovc.telemetry_utils"].tm.__name__ == "openvino.tools.ovc.telemetry_stub"


def test_openvino_that_cannot_write_is_a_fault_of_the_disk(tmp_path):
    needs("openvino")
    model = tiny_model(tmp_path / "tokenizer")
    save(model, tmp_path / "out")
    (tmp_path / "out" / "openvino" / "openvino_model.xml").mkdir(parents=True)
    with pytest.raises(OSError, match="OpenVINO's writer failed, as on a full disk"):
        exports.form("openvino").write(model, tmp_path / "out")


def test_a_table_of_token_vectors_is_a_form_too(tmp_path):
    from test_static import table_model

    model = table_model(tmp_path)
    save(model, tmp_path / "out")
    texts = ["the cat sleeps", "rain", "", "a dog unknown"]
    want = Embedder(model).encode(texts)
    for name in {*INSTALLED} & {*OF_ALL}:
        for file in exports.form(name).write(model, tmp_path / "out")[:1]:
            found = Runtime(model, exports.form(name).runner(model, file)).encode(texts)
            np.testing.assert_allclose(found, want, atol=1e-5, err_msg=name)


def test_the_rows_of_a_table_are_stored_in_four_bits_too(tmp_path):
    """Sixteen values span a block's numbers and 0, so that none is off by more than half of a fifteenth of that span."""
    needs("onnx")
    from test_static import table_model

    model = table_model(tmp_path, normalize=False)
    save(model, tmp_path / "out")
    *_, file = onnx.write(model, tmp_path / "out")
    assert file.name == onnx.FOUR_BITS
    words = ["rain", "cat", "dog", "sleeps"]
    found, want = Runtime(model, onnx.runner(model, file)).encode(words), Embedder(model).encode(words)
    span = want.max(axis=1, initial=0) - want.min(axis=1, initial=0)
    off = np.abs(found - want).max(axis=1)
    assert np.all(off <= span / 30 * 1.01) and np.all(off > span / 100)
