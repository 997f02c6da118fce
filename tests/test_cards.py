"""Cards of every kind of export: metadata that the hub takes, code that runs as printed, and texts that stay texts."""

import dataclasses
import html
import re

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from jaxdistill.checkpoints.model import load_model
from jaxdistill.exports.measuring import MeasuredForm
from jaxdistill.reporting.model_card import Checkpoint, Facts, Index, Origin, Prompts, Training
from jaxdistill.reporting.mteb_entry import LANGUAGES
from jaxdistill.reporting.templates import filled
from jaxdistill.training import export as export_module
from jaxdistill.training.export import card_of, export, export_router

import encoder_cases as cases
from tiny_models import made_from, tiny_model, word_table

NASTY = "`a` ``| b` | *c* _d_ [e](f) <script>alert(1)</script> &amp; {{ g }} {% h %} $i$ ~~j~~ \\| \\ # k\n---\n# l"
ORIGIN = Origin(teacher="org/teacher", licences={"org/teacher": "mit"}, languages="en")
FORMS = [
    MeasuredForm(
        name=name, size_bytes=1, difference=0.0, cosine=None, agreement=1.0, sts=None, rates=(1.0, 1.0), other_tokens=1
    )
    for name in ("onnx/model.onnx", "gguf/model.gguf")
]


def kinds(folder):
    """Name and model of each kind of which an export is one model."""
    encoder = dataclasses.replace(tiny_model(folder / "tokenizer"), prompts={})
    cases.write_cross_encoder(folder / "pairs", "bert")
    return {
        "encoder": encoder,
        "head": dataclasses.replace(tiny_model(folder / "head", head=8), prompts={}),
        "table": word_table(encoder),
        "pairs": load_model(str(folder / "pairs")),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Maps each kind, and `router`, to its model and the text of its card; the folders are below the current one."""
    folder = tmp_path_factory.mktemp("cards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(export_module, "largest_difference", lambda *_: 0.0)
        patch.setattr(export_module, "_router_difference", lambda *_: 0.0)
        found = {}
        for kind, model in kinds(folder / "in").items():
            place = export(model, f"runs/{kind}", facts=Facts(name=kind, origin=ORIGIN))
            found[kind] = model, (place / "README.md").read_text("utf-8")
        query, document = (
            made_from(found["encoder"][0], licences={name: "mit"}, licence="mit", languages=("en",), source=name)
            for name in ("org/query", "org/document")
        )
        found["router"] = query, (export_router(query, document, "runs/router") / "README.md").read_text("utf-8")
    return folder, found


KINDS = ("encoder", "head", "table", "pairs", "router")


@pytest.mark.parametrize("kind", KINDS)
def test_the_hub_takes_the_metadata_of_every_kind(exported, kind):
    data = ModelCard(exported[1][kind][1], ignore_metadata_errors=False).data
    assert (data.license, data.library_name, data.base_model_relation) == ("mit", "sentence-transformers", "finetune")
    assert data.base_model == (["org/query", "org/document"] if kind == "router" else ["org/teacher"])
    assert data.language == ["en"] and "jaxdistill" in data.tags
    assert data.pipeline_tag == ("text-ranking" if kind == "pairs" else "sentence-similarity")


@pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning")  # by mteb
@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_every_kind_runs_as_printed(exported, kind, monkeypatch):
    folder, found = exported
    model, text = found[kind]
    monkeypatch.chdir(folder)
    assert str(folder) not in text and f'"runs/{kind}"' in text
    ran = []
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(block, made := {})
        ran.append(made)
    assert len(ran) == (1 if kind == "router" else 3)
    if kind == "router":
        return
    theirs, ours, registered = ran
    result = "scores" if kind == "pairs" else "vectors"
    np.testing.assert_allclose(theirs[result], ours[result], atol=0.05)  # bfloat16 where the processor has it
    entry = registered["entry"]
    assert (entry.name, entry.license, entry.adapted_from) == (f"OWNER/{kind}", "mit", "org/teacher")
    assert entry.languages == ["eng-Latn"] and entry.n_parameters == model.parameter_count
    if kind == "pairs":
        assert entry.is_cross_encoder and entry.embed_dim is None
    else:
        known = type(entry).from_sentence_transformer_model(
            theirs["SentenceTransformer"](f"runs/{kind}"), fill_missing=None
        )
        assert (entry.embed_dim, entry.similarity_fn_name) == (known.embed_dim, known.similarity_fn_name)
        assert entry.max_tokens == (None if kind == "table" else known.max_tokens)
        assert entry.memory_usage_mb == entry.calculate_memory_usage_mb()


def test_an_entry_for_mteb_says_what_the_run_knows(tmp_path):
    facts = Facts(
        name="l3", origin=dataclasses.replace(ORIGIN, languages="en, de", licence="other:terms:https://x.org/terms"),
        training=Training(data="hf:org/news:train:text, hf:org/wiki:train:text"), index=Index(dims="4, 8", vectors="int8"),
    )  # fmt: skip
    model = tiny_model(tmp_path / "tokenizer")
    exec(
        card_of(model, facts, spec="me/l3", hub_name="me/l3", forms=FORMS)
        .rpartition("```python\n")[2]
        .partition("```")[0],
        made := {},
    )
    entry = made["entry"]
    assert entry.name == "me/l3" and entry.reference == "https://huggingface.co/me/l3" and entry.revision is None
    assert entry.languages == ["eng-Latn", "deu-Latn"] and entry.embed_dim == [4, 8, 16] and entry.use_instructions
    assert entry.license == "https://x.org/terms" and {"ONNX", "GGUF"} <= {*entry.framework}
    assert entry.public_training_data.count("https://huggingface.co/datasets/org/") == 2
    assert entry.output_dtypes == ["float32", "int8"] and entry.training_datasets is None
    table = model.params["transformer/embeddings/word/embedding"]
    assert entry.n_embedding_parameters == table.size < entry.n_parameters


def test_languages_are_mtebs():
    from mteb.languages.iso_mappings import _hf_lang_to_iso_lang_script  # imported here: it takes three seconds

    assert {name: _hf_lang_to_iso_lang_script(name) for name in LANGUAGES} == LANGUAGES


def shown(markdown):
    """The text of a card's page as a browser shows it, each run of spaces as one; and the page itself."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown.split("\n---\n", 1)[1])
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split()), page


@pytest.mark.parametrize("nasty", [NASTY, *NASTY.split(" ")[::2], "a\\|b", "` ", " a ", "__init__", "<b>", "x&lt;y"])
def test_texts_of_a_card_stay_texts(tmp_path, nasty):
    prompts = {"query": {"student": nasty, "teacher": "none"}}
    facts = Facts(
        name=nasty,
        origin=Origin(teacher=nasty, student=nasty, licences={nasty: "mit", "org/b": ""}, languages="en"),
        training=Training(objective=nasty, data=nasty, data_digest="1", command=nasty),
        checkpoint=Checkpoint(steps=1, chosen_by=nasty, scores={nasty: 0.5}),
        prompts=Prompts(prompt=nasty, roles=nasty, role_prompts=prompts),
    )
    card = card_of(tiny_model(tmp_path / "tokenizer"), facts, spec=nasty)
    text, page = shown(card)
    assert ModelCard(card, ignore_metadata_errors=False).data.license is None
    line, code = " ".join(nasty.split()), " ".join(nasty.replace("\n", "\\n").split())
    for part in (
        f"Teacher {line} Student {line} Licence",
        f"Objective {line} Text {line} Digest",
        f"chosen by {line} ",
    ):
        assert part in text
    assert f"Command {code} Software" in text and f"Prompt for a query {code} (student)" in text
    assert page.count("<table>") == 3 and page.count("<h1>") == 1 and "<script" not in page and "<em>" not in page
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 3
    for block in blocks[:2]:
        assert repr(nasty)[1:-1] in block.replace("\\x60", "`") and compile(block, "card", "exec")


def test_the_title_of_a_demo_stays_a_text():
    page = filled("demo.html", title=NASTY, parameters=1, width=1, size=1, sentences=1)
    assert html.escape(NASTY, quote=False) in page.replace("&#34;", '"').replace("&#39;", "'")
    assert "alert(1)" not in page.replace("&lt;script&gt;alert(1)", "")
