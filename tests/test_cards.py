"""Cards of every kind of export: metadata that the hub accepts, code that runs as printed, and escaped texts."""

import dataclasses
import html
import re
import shutil

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from test_onnx import unchecked_shapes  # noqa: F401 - a fixture

from jaxdistill.evals.model_card import Facts, model_card
from jaxdistill.models.checkpoints import onnx
from jaxdistill.models.checkpoints.model import load_model, read_card
from jaxdistill.models.inference import Embedder
from jaxdistill.training import export as export_module
from jaxdistill.training.export import export

import encoder_cases as cases
from tiny_models import tiny_model, word_table

NASTY = "`a` ``| b` | *c* _d_ [e](f) <script>alert(1)</script> &amp; {{ g }} {% h %} $i$ ~~j~~ \\| \\ # k\n---\n# l"
ORIGIN = {"teacher": "org/teacher", "base_models": "org/teacher", "languages": "en"}


def kinds(folder):
    """Name and model of each kind of which an export is one model."""
    encoder = dataclasses.replace(tiny_model(folder / "tokenizer"), prompts={})
    cases.write_cross_encoder(folder / "pairs", "bert")
    (folder / "roberta").mkdir(parents=True)
    cases.write_encoder(folder / "roberta", "roberta")
    return {
        "encoder": encoder,
        "head": dataclasses.replace(tiny_model(folder / "head", head=8), prompts={}),
        "table": word_table(encoder),
        "pairs": load_model(str(folder / "pairs")),
        "roles": dataclasses.replace(encoder, prompts={"query": "the cat ", "document": "a "}),
        "padded by 1": load_model(str(folder / "roberta"), pooling="cls", prompt='w1 "w2" '),
    }


KINDS = ("encoder", "head", "table", "pairs", "roles", "padded by 1")
TEXTS, LONG = ["A cat sleeps.", "A cat naps."], ["the cat sleeps. " * 30, "rain", ""]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Maps each kind to its model, and the texts of its card without and with ONNX; the folders are below the current one."""
    folder = tmp_path_factory.mktemp("cards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(export_module, "largest_difference", lambda *_: 0.0)
        exports = {}
        for kind, model in kinds(folder / "in").items():
            facts = Facts(name=kind, **ORIGIN)
            if kind == "roles":
                facts = dataclasses.replace(facts, role_prompts={"query": {"student": model.prompts["query"]}})
            path = export(model, f"runs/{kind}", facts=facts)
            (path / "onnx").mkdir()
            if kind == "roles":  # the encoder with other prompts, which are not in the graph
                shutil.copy("runs/encoder/onnx/model.onnx", path / "onnx")
            else:
                onnx.trace(model, path, path / "onnx" / "model.onnx")
            with_onnx = model_card(model, facts, spec=f"runs/{kind}", forms=[{"form": "onnx/model.onnx"}])
            exports[kind] = model, (path / "README.md").read_text("utf-8"), with_onnx
    return folder, exports


@pytest.mark.parametrize("kind", KINDS)
def test_the_hub_takes_the_metadata_of_every_kind_and_its_code_runs_as_printed(exported, kind, monkeypatch):
    folder, exports = exported
    model, text, _ = exports[kind]
    data = data_of(text)
    assert (data.library_name, data.base_model_relation) == ("sentence-transformers", "finetune")
    assert data.base_model == ["org/teacher"] and data.language == ["en"] and "jaxdistill" in data.tags
    assert data.pipeline_tag == ("text-ranking" if kind == "pairs" else "sentence-similarity")
    monkeypatch.chdir(folder)
    assert str(folder) not in text and f'"runs/{kind}"' in text
    embedder = Embedder(model, compute_dtype="float32")
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, names := {})
        if kind == "pairs":
            np.testing.assert_allclose(names["scores"], embedder.score(TEXTS[:1], TEXTS[1:]), atol=1e-5)
        elif kind != "roles":
            np.testing.assert_allclose(names["vectors"], embedder.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_for_onnx_run_as_printed_without_this_package(exported, kind, monkeypatch):
    folder, exports = exported
    model, _, text = exports[kind]
    [code] = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "onnxruntime" in code]
    assert "jaxdistill" not in code
    monkeypatch.chdir(folder)
    exec(code, names := {})
    embedder = Embedder(model)
    if kind == "pairs":
        np.testing.assert_allclose(names["score"](LONG, LONG[::-1]), embedder.score(LONG, LONG[::-1]), atol=1e-5)
        return
    for texts in (LONG, [""]):
        np.testing.assert_allclose(names["encode"](texts), embedder.encode(texts, prompt=""), atol=1e-5)
    if kind == "roles":
        np.testing.assert_allclose(names["queries"], embedder.encode_query(["Where does a cat sleep?"]), atol=1e-5)
        documents = embedder.encode_document(["A cat sleeps in a basket.", "Rain falls."])
        np.testing.assert_allclose(names["documents"], documents, atol=1e-5)
    else:
        np.testing.assert_allclose(names["vectors"], embedder.encode(TEXTS), atol=1e-5)


def shown(markdown):
    """The text of a card's page as a browser shows it, each run of spaces as one; and the page itself."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown.split("\n---\n", 1)[1])
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split()), page


@pytest.mark.parametrize("nasty", [NASTY, "` "])
def test_texts_of_a_card_stay_texts(tmp_path, nasty):
    prompts = {"query": {"student": nasty, "teacher": "none"}}
    names = ("name", "teacher", "student", "objective", "data", "command", "chosen_by", "prompt", "roles")
    fixed = dict(languages="en", data_digest="1", steps=1, scores={nasty: 0.5}, role_prompts=prompts)
    facts = Facts(**dict.fromkeys(names, nasty), **fixed)
    card = model_card(tiny_model(tmp_path / "tokenizer"), facts, spec=nasty)
    text, page = shown(card)
    data_of(card)
    line, code = " ".join(nasty.split()), " ".join(nasty.replace("\n", "\\n").split())
    for part in (f"Teacher {line} Student {line} Parameters", f"Objective {line} Text {line} Digest"):
        assert part in text
    assert f"Command {code} Software" in text and f"Prompt for a query {code} (student)" in text
    assert page.count("<table>") == 2 and page.count("<h1>") == 1 and "<script" not in page and "<em>" not in page
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 2
    for block in blocks:
        assert repr(nasty)[1:-1] in block and compile(block, "card", "exec")


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "tokenizer")


def data_of(text):
    """The metadata as the library of the hub parses it, which refuses what it cannot."""
    return ModelCard(text, ignore_metadata_errors=False).data


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("---\nlanguage:\n- en\n- de\n---\n# x\n", ("en", "de")),
        ("---\nlanguage: en\n---\n", ("en",)),
        ("---\nlanguage: {a: b\n---\n", ()),
    ],
)
def test_a_card_states_languages_or_nothing(tmp_path, text, languages):
    (tmp_path / "README.md").write_text(text)
    assert read_card(tmp_path, "org/model") == {"base_models": ("org/model",), "languages": languages}


def test_origin_and_making_are_handed_down_from_export_to_export(model, tmp_path, monkeypatch):
    """How a student was made, with an unchanged student alone."""
    monkeypatch.setattr(export_module, "largest_difference", lambda *_: 0.0)  # compiles two models
    command, text = "python -m jaxdistill.main --config=c.py", "hf:org/news:train:text"
    facts = dict(command=command, seed=7, data=text, steps=9, scores={"sts12": 0.7})
    export(model, tmp_path / "first", facts=Facts(name="run", base_models="intfloat/e5-small", languages="en", **facts))
    first = load_model(str(tmp_path / "first"))
    assert (first.base_models, first.languages) == (("intfloat/e5-small",), ("en",))
    text = (export(first, tmp_path / "second") / "README.md").read_text()
    assert "| Seed | 7 |" in text and f"`{command}`" in text and "| sts12 | 70.00 |" in text and "# second\n" in text
    data = data_of(text)
    assert (data.language, data.base_model, data.datasets) == (["en"], ["intfloat/e5-small"], ["org/news"])
    other = dataclasses.replace(first, max_length=8)
    assert command not in (export(other, tmp_path / "third") / "README.md").read_text()


def test_text_from_the_hub_is_named_in_the_metadata(model):
    data = (
        "hf:org/news:train[:10]:text, mine.txt, hf:wiki:plain:train:text, hf:org/news:test:text, tfds:imdb:train:text"
    )
    facts = Facts(name="l3", data=f"{data}, hf:/home/me/private:train:text")
    assert data_of(model_card(model, facts, spec="l3")).datasets == ["org/news", "wiki"]
    assert data_of(model_card(model, Facts(name="l3", data="mine.txt"), spec="l3")).datasets is None
