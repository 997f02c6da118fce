"""Model cards: the metadata that model hubs read, and code that runs as printed."""

import dataclasses

import numpy as np
import pytest
from huggingface_hub import ModelCard

from jaxdistill.checkpoints.card import CardFacts, read_card
from jaxdistill.checkpoints.model import load_model
from jaxdistill.reporting.model_card import Checkpoint, Facts, Origin, Prompts, Training, model_card, origin_of
from jaxdistill.training import export as export_module
from jaxdistill.training.export import export

from tiny_models import made_from, tiny_model, word_table


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "tokenizer")


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the comparison, which compiles two models."""
    monkeypatch.setattr(export_module, "largest_difference", lambda *_: 0.0)


def data_of(text):
    """The metadata as the library of the hub parses it, which refuses what it cannot."""
    return ModelCard(text, ignore_metadata_errors=False).data


def test_the_metadata_has_what_the_hub_asks_for(model):
    origin = Origin(base_models="intfloat/e5-small, package:gt/model, l3/export", licence="mit", languages="en, no")
    data = data_of(model_card(model, Facts(name="l3", origin=origin), spec="l3"))
    assert (data.license, data.language, data.base_model) == ("mit", ["en", "no"], ["intfloat/e5-small"])
    assert (data.library_name, data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert {"sentence-transformers", "distillation"} <= {*data.tags} and data.base_model_relation == "finetune"


@pytest.mark.parametrize(
    ("text", "licence", "languages"),
    [
        ("---\nlicense: mit\nlanguage:\n- en\n- de\n---\n# x\n", "mit", ("en", "de")),
        ("---\nlicense: [mit, cc-by-4.0]\nlanguage: en\n---\n", "", ("en",)),
        ("---\nlicense: {a: b\n---\n", "", ()),
        ("license: mit\n", "", ()),
    ],
)
def test_a_card_states_licence_and_languages_or_nothing(tmp_path, text, licence, languages):
    (tmp_path / "README.md").write_text(text)
    assert read_card(tmp_path, "org/model") == CardFacts(("org/model",), licence, languages)


def test_a_student_has_what_all_its_models_state(model):
    one, other = (
        made_from(model, card=CardFacts((f"a/{name}",), licence, languages))
        for name, licence, languages in (("x", "mit", ("de", "en")), ("y", "isc", ("en", "fr", "de")))
    )
    assert origin_of(one, one) == Origin(base_models="a/x", licence="mit", languages="de, en")
    assert origin_of(one, other) == Origin(base_models="a/x, a/y", languages="de, en")
    assert origin_of() == Origin()


def test_origin_is_handed_down_from_export_to_export(model, tmp_path, unchecked):
    origin = Origin(base_models="intfloat/e5-small", licence="mit", languages="en")
    first = load_model(str(export(model, tmp_path / "first", facts=Facts(name="first", origin=origin))))
    assert first.provenance.card == CardFacts(("intfloat/e5-small",), "mit", ("en",))
    (tmp_path / "first" / "card.json").unlink()  # the card itself says it too
    data = data_of((export(first, tmp_path / "second") / "README.md").read_text())
    assert (data.license, data.language, data.base_model) == ("mit", ["en"], ["intfloat/e5-small"])


@pytest.mark.parametrize("kind", ["encoder", "table"])
def test_how_a_student_was_made_is_handed_down_with_it_alone(model, tmp_path, unchecked, kind):
    model = model if kind == "encoder" else word_table(model)
    training = Training(command="python -m jaxdistill.main --config=c.py", seed=7, data="hf:org/news:train:text")
    made = Facts(name="run", training=training, checkpoint=Checkpoint(steps=9, scores={"sts12": 0.7}))
    export(model, tmp_path / "first", facts=made)
    first = load_model(str(tmp_path / "first"))
    text = (export(first, tmp_path / "second") / "README.md").read_text()
    assert "| Seed | 7 |" in text and f"`{training.command}`" in text and "| sts12 | 70.00 |" in text
    assert "# second\n" in text and data_of(text).datasets == ["org/news"]
    other = dataclasses.replace(first, max_length=8)
    assert training.command not in (export(other, tmp_path / "third") / "README.md").read_text()


def test_the_code_for_roles_runs_as_printed_where_the_training_ran(model, tmp_path, monkeypatch, unchecked):
    monkeypatch.chdir(tmp_path)
    model = dataclasses.replace(model, prompts={"query": "the cat ", "document": "a "})
    facts = Facts(name="l3", prompts=Prompts(role_prompts={"query": {"student": "the cat "}}))
    text = (export(model, "runs/l3/export", facts=facts) / "README.md").read_text(encoding="utf-8")
    assert text.count('"runs/l3/export"') == 2 and str(tmp_path) not in text
    found = []
    for block in text.split("```python\n")[1:]:
        exec(block.partition("```")[0], made := {})
        found.append([made["queries"], made["documents"]])
    for theirs, ours in zip(*found, strict=True):
        assert theirs.shape == ours.shape and theirs.shape[1] == 16
        np.testing.assert_allclose(theirs, ours, atol=0.05)  # bfloat16 where the processor has it


def test_a_folder_elsewhere_is_named_without_the_folders_above_it(model, tmp_path, unchecked):
    text = (export(model, tmp_path / "l3" / "export", facts=Facts(name="l3")) / "README.md").read_text()
    assert '"l3/export"' in text and str(tmp_path) not in text


def test_text_from_the_hub_is_named_in_the_metadata(model):
    data = (
        "hf:org/news:train[:10]:text, mine.txt, hf:wiki:plain:train:text, hf:org/news:test:text, tfds:imdb:train:text"
    )
    training = Training(data=f"{data}, hf:/home/me/private:train:text")
    assert data_of(model_card(model, Facts(name="l3", training=training), spec="l3")).datasets == ["org/news", "wiki"]
    assert data_of(model_card(model, Facts(name="l3", training=Training(data="mine.txt")), spec="l3")).datasets is None
