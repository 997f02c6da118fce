"""Cards of every kind of export: metadata that the hub takes, code that runs as printed, and texts that stay texts."""

import dataclasses
import html
import re

import numpy as np
import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from jaxdistill.evals.reporting.model_card import Facts, model_card
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.inference import Embedder
from jaxdistill.training import export as export_module
from jaxdistill.training.export import export

import encoder_cases as cases
from tiny_models import tiny_model, word_table

NASTY = "`a` ``| b` | *c* _d_ [e](f) <script>alert(1)</script> &amp; {{ g }} {% h %} $i$ ~~j~~ \\| \\ # k\n---\n# l"
ORIGIN = {"teacher": "org/teacher", "base_models": "org/teacher", "licence": "mit", "languages": "en"}


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
    """Maps each kind to its model and the text of its card; the folders are below the current one."""
    folder = tmp_path_factory.mktemp("cards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(export_module, "largest_difference", lambda *_: 0.0)
        found = {}
        for kind, model in kinds(folder / "in").items():
            place = export(model, f"runs/{kind}", facts=Facts(name=kind, **ORIGIN))
            found[kind] = model, (place / "README.md").read_text("utf-8")
    return folder, found


KINDS = ("encoder", "head", "table", "pairs")


@pytest.mark.parametrize("kind", KINDS)
def test_the_hub_takes_the_metadata_of_every_kind(exported, kind):
    data = ModelCard(exported[1][kind][1], ignore_metadata_errors=False).data
    assert (data.license, data.library_name, data.base_model_relation) == ("mit", "sentence-transformers", "finetune")
    assert data.base_model == ["org/teacher"] and data.language == ["en"] and "jaxdistill" in data.tags
    assert data.pipeline_tag == ("text-ranking" if kind == "pairs" else "sentence-similarity")


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_every_kind_runs_as_printed(exported, kind, monkeypatch):
    folder, found = exported
    model, text = found[kind]
    monkeypatch.chdir(folder)
    assert str(folder) not in text and f'"runs/{kind}"' in text
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == (2 if kind == "encoder" else 1)  # lines for transformers have no room for heads
    for block in blocks:
        exec(block, made := {})
        own = Embedder(model, compute_dtype="float32")
        if kind == "pairs":
            np.testing.assert_allclose(made["scores"], own.score(["A cat sleeps."], ["A cat naps."]), atol=1e-5)
        else:
            np.testing.assert_allclose(made["vectors"], own.encode(["A cat sleeps.", "A cat naps."]), atol=1e-5)


def shown(markdown):
    """The text of a card's page as a browser shows it, each run of spaces as one; and the page itself."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown.split("\n---\n", 1)[1])
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split()), page


@pytest.mark.parametrize("nasty", [NASTY, "` ", " a "])
def test_texts_of_a_card_stay_texts(tmp_path, nasty):
    prompts = {"query": {"student": nasty, "teacher": "none"}}
    facts = Facts(
        name=nasty,
        teacher=nasty,
        student=nasty,
        languages="en",
        objective=nasty,
        data=nasty,
        data_digest="1",
        command=nasty,
        steps=1,
        chosen_by=nasty,
        scores={nasty: 0.5},
        prompt=nasty,
        roles=nasty,
        role_prompts=prompts,
    )
    card = model_card(tiny_model(tmp_path / "tokenizer"), facts, spec=nasty)
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
    assert page.count("<table>") == 2 and page.count("<h1>") == 1 and "<script" not in page and "<em>" not in page
    blocks = re.findall(r"```python\n(.*?)```", card, re.S)
    assert len(blocks) == 2
    for block in blocks:
        assert repr(nasty)[1:-1] in block.replace("\\x60", "`") and compile(block, "card", "exec")
