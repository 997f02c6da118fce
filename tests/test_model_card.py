"""Model cards: the metadata that model hubs read, and code that runs as printed."""

import dataclasses

import pytest
from huggingface_hub import ModelCard

from jaxdistill.evals.reporting.model_card import Facts, model_card, origin_of
from jaxdistill.models.checkpoints.model import CardFacts, load_model, read_card
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
    assert origin_of(one, one) == {"base_models": "a/x", "licence": "mit", "languages": "de, en"}
    assert origin_of(one, other) == {"base_models": "a/x, a/y", "licence": "", "languages": "de, en"}
    assert origin_of() == {"base_models": "", "licence": "", "languages": ""}


def test_origin_is_handed_down_from_export_to_export(model, tmp_path, unchecked):
    facts = Facts(name="first", base_models="intfloat/e5-small", licence="mit", languages="en")
    first = load_model(str(export(model, tmp_path / "first", facts=facts)))
    assert first.provenance.card == CardFacts(("intfloat/e5-small",), "mit", ("en",))
    (tmp_path / "first" / "card.json").unlink()  # the card itself says it too
    data = data_of((export(first, tmp_path / "second") / "README.md").read_text())
    assert (data.license, data.language, data.base_model) == ("mit", ["en"], ["intfloat/e5-small"])


@pytest.mark.parametrize("kind", ["encoder", "table"])
def test_how_a_student_was_made_is_handed_down_with_it_alone(model, tmp_path, unchecked, kind):
    model = model if kind == "encoder" else word_table(model)
    command, text = "python -m jaxdistill.main --config=c.py", "hf:org/news:train:text"
    made = Facts(name="run", command=command, seed=7, data=text, steps=9, scores={"sts12": 0.7})
    export(model, tmp_path / "first", facts=made)
    first = load_model(str(tmp_path / "first"))
    text = (export(first, tmp_path / "second") / "README.md").read_text()
    assert "| Seed | 7 |" in text and f"`{command}`" in text and "| sts12 | 70.00 |" in text
    assert "# second\n" in text and data_of(text).datasets == ["org/news"]
    other = dataclasses.replace(first, max_length=8)
    assert command not in (export(other, tmp_path / "third") / "README.md").read_text()


def test_text_from_the_hub_is_named_in_the_metadata(model):
    data = (
        "hf:org/news:train[:10]:text, mine.txt, hf:wiki:plain:train:text, hf:org/news:test:text, tfds:imdb:train:text"
    )
    facts = Facts(name="l3", data=f"{data}, hf:/home/me/private:train:text")
    assert data_of(model_card(model, facts, spec="l3")).datasets == ["org/news", "wiki"]
    assert data_of(model_card(model, Facts(name="l3", data="mine.txt"), spec="l3")).datasets is None
