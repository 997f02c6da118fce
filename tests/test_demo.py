"""The folder of `export --demo`: its files, what is refused, and that it is written whole. Its page runs in test_runtimes.py."""

import dataclasses
import json
import pathlib
import re
import shutil

import numpy as np
import pytest
import test_static

from jaxdistill import export as export_command
from jaxdistill.checkpoints.folder import save
from jaxdistill.core import InputError
from jaxdistill.exports import demo, onnx
from jaxdistill.files.folders import MARK
from jaxdistill.inference import Embedder
from jaxdistill.training.export import export_demo

import program
from tiny_models import tiny_model

WASM = "ort-wasm-simd-threaded.asyncify"
SENTENCES = ["the cat sleeps", "rain", "<img src=x onerror=alert(1)> & </script>"]
HOSTILE = "<b>student & co"


@pytest.fixture
def npm(tmp_path):
    """A folder with `node_modules` that look like transformers.js's."""
    package = tmp_path / "npm" / "node_modules" / "@huggingface" / "transformers"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "4.3.1"}')
    (package / "dist" / demo.LIBRARY).write_text(f'load("{WASM}.mjs", "{WASM}.wasm", "ort-wasm-simd-threaded")')
    runtime = tmp_path / "npm" / "node_modules" / "onnxruntime-web" / "dist"
    runtime.mkdir(parents=True)
    for name in (f"{WASM}.mjs", f"{WASM}.wasm", "ort.min.js"):
        (runtime / name).write_text(name)
    return package


@pytest.fixture
def student(tmp_path):
    """The folder of a model with prompts for queries and documents."""
    model = dataclasses.replace(tiny_model(tmp_path / "tokenizer"), prompts={"query": "the cat ", "document": "the "})
    save(model, tmp_path / HOSTILE)
    return model, tmp_path / HOSTILE


@pytest.fixture
def graph(monkeypatch):
    """Writes no graph."""

    def written(model, folder, sentences, vectors):
        (folder / onnx.HALF).write_bytes(b"graph")
        return folder / onnx.HALF

    monkeypatch.setattr(demo, "_graph", written)


def written(model, folder, npm, sentences=SENTENCES):
    return export_demo(model, folder, name="student", sentences=sentences, runtime=demo.runtime_files(npm))


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command_writes_a_page_with_all_that_it_needs(student, npm, tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    (tmp_path / "text.txt").write_text("\n".join([SENTENCES[0], "", *SENTENCES]) + "\n")
    monkeypatch.chdir(npm.parents[2])
    export_command.main([
        f"--model={student[1]}", "--demo", f"--demo_text={tmp_path / 'text.txt'}", f"--out={tmp_path / 'my page'}",
    ])  # fmt: skip
    assert f"run: python -m http.server --directory '{tmp_path / 'my page'}'" in capsys.readouterr().out
    files = contents(tmp_path / "my page")
    assert files.keys() == {
        "index.html", "demo.js", "demo.json", "vectors.bin", MARK, demo.LIBRARY, f"{WASM}.mjs", f"{WASM}.wasm",
        "student/config.json", "student/tokenizer.json", "student/tokenizer_config.json", "student/onnx/model_fp16.onnx",
    }  # fmt: skip
    facts = json.loads(files["demo.json"])
    assert facts == {
        "dtype": "fp16", "max_length": 16, "end_tokens": 1, "sentences": SENTENCES,
        "prompts": {"query": "the cat ", "document": "the "},
    }  # fmt: skip
    vectors = Embedder(student[0]).encode_document(SENTENCES, normalize_embeddings=True)
    np.testing.assert_allclose(np.frombuffer(files["vectors.bin"], "<f4"), vectors.ravel(), rtol=0, atol=1e-6)
    page = files["index.html"].decode()
    assert "<h1>&lt;b&gt;student &amp; co</h1>" in page and HOSTILE not in page and "nearest of 3" in page
    assert files["demo.js"] == (pathlib.Path(demo.__file__).parents[1] / "assets" / "demo.js").read_bytes()
    assert re.findall(r"\w+://[\w.:]+", page) == ["http://localhost:8000."]


def test_the_end_of_a_long_sentence_is_known(student, tmp_path):
    assert demo._end_tokens(student[0]) == 1
    assert demo._end_tokens(test_static.table_model(tmp_path / "table")) == 0


def test_the_smallest_graph_with_the_same_vectors_is_written(student, npm, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    scale, embedder = {onnx.FLOAT: 1.0, onnx.HALF: -1.0}, Embedder(student[0])

    def runner(model, file):
        def run(input_ids, attention_mask, **_):
            rows = zip(input_ids, attention_mask, strict=True)
            return scale[file.name] * embedder.encode_ids([ids[mask == 1] for ids, mask in rows])

        return run

    monkeypatch.setattr(onnx, "write_float", lambda *_: [tmp_path / name for name in onnx.FILES[:2]])
    monkeypatch.setattr(onnx, "runner", runner)
    vectors = embedder.encode_document(SENTENCES, normalize_embeddings=True)
    assert demo._graph(student[0], tmp_path, SENTENCES, vectors) == tmp_path / onnx.FLOAT
    scale[onnx.FLOAT] = -1.0
    with pytest.raises(InputError, match="not written: the cosine of ONNX .* is -1.0000"):
        written(student[0], tmp_path / "page", npm)
    assert not (tmp_path / "page").exists()


def test_what_no_page_can_be_made_of_is_refused_in_one_line(student, npm, tmp_path, monkeypatch, capsys):
    given = [f"--model={student[1]}", f"--out={tmp_path / 'out'}"]
    page, js = [*given, "--demo"], f"--transformers_js={npm}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    for arguments, line in (
        (page, "./node_modules/@huggingface/transformers is not the npm package of transformers.js; run `npm install @huggingface/transformers@4`"),
        ([*page, "--transformers_js=elsewhere"], "--transformers_js=elsewhere is not the npm package"),
        ([*page, js, "--to=onnx"], "--demo goes without --to"),
        ([*page, js, "--document_model=x"], "--demo goes without --to"),
        ([*given, js], "--demo_text and --transformers_js apply to a page; give --demo too"),
        ([*page, js, f"--demo_text={tmp_path / 'empty.txt'}"], "empty.txt has no sentence"),
        ([f"--out={tmp_path / 'out'}", "--demo"], "give --workdir and --step of a run, or --model"),
    ):  # fmt: skip
        assert line in program.refused(export_command, arguments, capsys)
    (npm / "package.json").write_text('{"version": "3.8.0"}')
    assert "is transformers.js 3.8.0, and the page needs 4.x" in program.refused(export_command, [*page, js], capsys)
    (npm / "package.json").write_text('{"version": "4.3.1"}')
    shutil.rmtree(npm.parents[1] / "onnxruntime-web")
    assert "without the WebAssembly of onnxruntime-web" in program.refused(export_command, [*page, js], capsys)
    assert not (tmp_path / "out").exists()


def test_a_cross_encoder_is_refused_before_anything_is_written(npm, tmp_path, capsys):
    cases = pytest.importorskip("encoder_cases")
    cases.write_cross_encoder(tmp_path / "in", "bert")
    given = [f"--model={tmp_path / 'in'}", "--demo", f"--transformers_js={npm}", f"--out={tmp_path / 'out'}"]
    line = program.refused(export_command, given, capsys)
    assert "--demo cannot hold this model: a cross-encoder has no vectors of sentences" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "npm"]


@pytest.mark.parametrize("marked", [False, True])
def test_a_folder_without_a_page_is_left_alone(student, npm, tmp_path, capsys, marked):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("mine")
    if marked:
        (tmp_path / "mine" / MARK).write_text(json.dumps({"files": {"model.safetensors": "0"}}))
    before = contents(tmp_path / "mine")
    given = [f"--model={student[1]}", "--demo", f"--transformers_js={npm}", f"--out={tmp_path / 'mine'}"]
    words = "is an export without a page" if marked else "is not an export of this program"
    assert words in program.refused(export_command, given, capsys)
    assert contents(tmp_path / "mine") == before


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_page_is_replaced_whole_or_not_at_all(student, npm, tmp_path, monkeypatch, graph, stop):
    folder = written(student[0], tmp_path / "page", npm)
    (folder / "mine.txt").write_text("kept")
    before = contents(folder)

    def stopped(*_, **__):
        raise stop

    with monkeypatch.context() as patch:
        patch.setattr(demo, "filled", stopped)
        for place in (folder, tmp_path / "other"):
            with pytest.raises(stop):
                written(student[0], place, npm, SENTENCES[:1])
    assert contents(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([HOSTILE, "npm", "page", "tokenizer"])
    written(student[0], folder, npm, SENTENCES[:1])
    assert json.loads((folder / "demo.json").read_text())["sentences"] == SENTENCES[:1]
    assert (folder / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("layout", ["nested", "linked"])
def test_the_runtime_is_found_where_node_finds_it(npm, tmp_path, layout):
    modules = npm.parents[1]
    if layout == "nested":
        (npm / "node_modules").mkdir()
        shutil.move(modules / "onnxruntime-web", npm / "node_modules" / "onnxruntime-web")
        named = npm
    else:  # as pnpm does
        (tmp_path / "project" / "node_modules" / "@huggingface").mkdir(parents=True)
        named = tmp_path / "project" / "node_modules" / "@huggingface" / "transformers"
        named.symlink_to(npm)
    assert [path.name for path in demo.runtime_files(named)] == [demo.LIBRARY, f"{WASM}.mjs", f"{WASM}.wasm"]
