"""Model cards: the metadata that model hubs read, and code that runs as printed."""

import dataclasses
import json

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from jaxdistill import export as export_command
from jaxdistill.checkpoints.licences import common_languages, languages_of
from jaxdistill.checkpoints.model import load_model
from jaxdistill.config import parse_config
from jaxdistill.core import InputError
from jaxdistill.exports import FORMS
from jaxdistill.files.folders import MARK
from jaxdistill.reporting.hub_results import RESULTS_FILE
from jaxdistill.reporting.model_card import Checkpoint, Facts, Origin, Prompts, Training
from jaxdistill.training import export as export_module
from jaxdistill.training.export import card_of, export
from jaxdistill.training.setup.build import checked_setup

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
    licences = {"intfloat/e5-small": "mit", "gte-small": "mit", "package:gt/model": "mit", "l3/export": "mit"}
    facts = Facts(name="l3", origin=Origin(licences=licences, languages="en, no"))
    data = data_of(card_of(model, facts, spec="l3"))
    assert (data.license, data.language, data.base_model) == ("mit", ["en", "no"], ["intfloat/e5-small"])
    assert (data.library_name, data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert {"sentence-transformers", "distillation"} <= {*data.tags} and data.base_model_relation == "finetune"


@pytest.mark.parametrize(
    "licences", [{}, {"a/b": ""}, {"a/b": "mit", "c/d": "apache-2.0"}, {"a/b": "mit", "c": ""}, {"a/b": "mit, cc0-1.0"}]
)
def test_what_is_not_known_is_left_out(model, licences):
    data = data_of(card_of(model, Facts(name="l3", origin=Origin(licences=licences)), spec="l3"))
    assert data.license is None and data.language is None
    assert data.base_model == ([name for name in licences if "/" in name] or None)


@pytest.mark.parametrize(
    ("card", "languages"),
    [
        ("---\nlanguage: en\n---\n", ["en"]),
        ("---\nlanguage:\n- no\n- zh-Hans\n- English\n- multilingual\n---\n", ["no", "zh-Hans", "multilingual"]),
        ("---\nlanguage: null\n---\n", []),
        ("language: en\n", []),
    ],
)
def test_languages_are_those_of_the_front_matter(tmp_path, card, languages):
    (tmp_path / "README.md").write_text(card)
    assert languages_of(tmp_path) == languages


def test_a_student_has_the_languages_that_all_its_models_state():
    assert common_languages([["de", "en"], [], ["en", "fr", "de"]]) == ["de", "en"]
    assert common_languages([["de"], ["en"]]) == common_languages([[], []]) == common_languages([]) == []


def test_licence_and_languages_are_handed_down_from_export_to_export(model, tmp_path, unchecked):
    facts = Facts(name="first", origin=Origin(licences={"intfloat/e5-small": "mit"}, languages="en"))
    first = load_model(str(export(model, tmp_path / "first", facts=facts)))
    data = data_of((export(first, tmp_path / "second") / "README.md").read_text())
    assert (data.license, data.language, data.base_model) == ("mit", ["en"], ["intfloat/e5-small"])


def test_a_licence_is_asked_for_where_it_is_unknown_and_handed_down_once_stated(model, tmp_path, unchecked, caplog):
    unknown = export(made_from(model, licences={"me/old": ""}), tmp_path / "unknown")
    assert "unknown (me/old: not stated); state it with --license=ID" in caplog.text
    caplog.clear()
    other = "other:gemma-terms:https://ai.google.dev/gemma/terms"
    export_command(model=str(unknown), out=tmp_path / "stated", license=other)
    again = load_model(str(export(load_model(str(tmp_path / "stated")), tmp_path / "again")))
    assert again.provenance.licence == other and not caplog.text
    assert again.provenance.licences == {"me/old": ""}
    data = data_of((tmp_path / "again" / "README.md").read_text())
    assert (data.license, data.license_name, data.license_link) == ("other", *other.split(":", 2)[1:])
    (tmp_path / "again" / MARK).unlink()  # as a card of the hub states it
    assert load_model(str(tmp_path / "again")).provenance.licence == other


def test_a_licence_that_contradicts_the_one_handed_down_is_said(model, tmp_path, unchecked, caplog):
    model = made_from(model, licences={"a/b": "cc-by-nc-4.0", "c/d": ""})
    text = (export(model, tmp_path / "out", licence="mit") / "README.md").read_text()
    assert "its licence mit is not the one of what it was made from (a/b: cc-by-nc-4.0; c/d: not stated)" in caplog.text
    assert (
        data_of(text).license == "mit" and "| Licence | mit |" in text and "a/b: cc-by-nc-4.0; c/d: not stated" in text
    )


@pytest.mark.parametrize("given", ["MIT", "apache2", "other", "other:name", "other:my terms:https://x.org", "mit, isc"])
def test_what_is_no_licence_of_the_hub_is_refused_before_anything_is_read(tmp_path, given):
    with pytest.raises(
        InputError, match="is not a licence that the Hugging Face hub knows.* or other:NAME:LINK with the name"
    ):
        export_command(model=tmp_path / "absent", out=tmp_path / "out", license=given)
    with pytest.raises(InputError, match="run.license='MIT' is not a licence .* Did you mean mit"):
        checked_setup(parse_config({"objective": {"kind": "congen"}, "run": {"license": "MIT"}}))


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
    assert (tmp_path / "second" / RESULTS_FILE).is_file()
    other = dataclasses.replace(first, max_length=8)
    assert training.command not in (export(other, tmp_path / "third") / "README.md").read_text()


def test_the_code_for_roles_runs_as_printed_where_the_training_ran(model, tmp_path, monkeypatch, unchecked):
    monkeypatch.chdir(tmp_path)
    model = dataclasses.replace(model, prompts={"query": "the cat ", "document": "a "})
    facts = Facts(name="l3", prompts=Prompts(role_prompts={"query": {"student": "the cat "}}))
    text = (export(model, "runs/l3/export", facts=facts) / "README.md").read_text(encoding="utf-8")
    assert text.count('"runs/l3/export"') == 2 and str(tmp_path) not in text
    found = []
    for block in text.split("```python\n")[1:3]:  # the third is for MTEB
        exec(block.partition("```")[0], made := {})
        found.append([made["queries"], made["documents"]])
    for theirs, ours in zip(*found, strict=True):
        assert theirs.shape == ours.shape and theirs.shape[1] == 16
        np.testing.assert_allclose(theirs, ours, atol=0.05)  # bfloat16 where the processor has it


def test_a_folder_elsewhere_is_named_without_the_folders_above_it(model, tmp_path, unchecked):
    text = (export(model, tmp_path / "l3" / "export", facts=Facts(name="l3")) / "README.md").read_text()
    assert '"l3/export"' in text and str(tmp_path) not in text


SCORES = {
    "agreement/spearman": 0.9,
    "sts-b-dev/spearman": 0.81234,
    "sts12": 0.7,
    "sts12/MSRpar": 0.5,
    "sts13": float("nan"),
    "sts-b": 0.8,
    "sick-r": 0.75,
}


def test_the_hub_finds_scores_on_public_sets_in_the_card_and_beside_it(model, tmp_path, unchecked):
    from huggingface_hub import parse_eval_result_entries
    from mteb import get_task

    folder = export(model, tmp_path / "l3", facts=Facts(name="l3", checkpoint=Checkpoint(scores=SCORES)))
    name, results = model_index_to_eval_results(metadata_load(folder / "README.md")["model-index"])
    assert name == "l3" and {
        (one.dataset_type, one.dataset_name, one.dataset_split, one.metric_type, one.metric_value) for one in results
    } == {
        ("mteb/stsbenchmark-sts", "STS-B dev", "validation", "spearmanr", 81.23),
        ("mteb/stsbenchmark-sts", "STS-B", "test", "spearmanr", 80.0),
        ("mteb/sts12-sts", "STS12", "test", "spearmanr", 70.0),
        ("RobZamp/sick", "SICK-R", "test", "spearmanr", 75.0),
    }
    entries = parse_eval_result_entries(yaml.safe_load((folder / RESULTS_FILE).read_text()))
    assert {(one.task_id, one.value) for one in entries} == {("STS12", 70.0), ("STSBenchmark", 80.0)}
    for one in entries:
        assert get_task(one.task_id).metadata.dataset["path"] == one.dataset_id and "cosine" in one.notes
    noted = {one.task_id: one.notes for one in entries}
    assert "the file sts12.test.tsv.gz of" in noted["STS12"] and "stsb.test.tsv.gz" in noted["STSBenchmark"]
    assert RESULTS_FILE in json.loads((folder / MARK).read_text())["files"]
    assert not (export(model, tmp_path / "plain") / ".eval_results").exists()
    assert "model-index" not in metadata_load(tmp_path / "plain" / "README.md")


def test_an_export_with_scores_and_every_form_loads_in_sentence_transformers(model, tmp_path, unchecked):
    """Files that it would misread if it opened them."""
    from sentence_transformers import SentenceTransformer

    folder = export(model, tmp_path / "l3", facts=Facts(name="l3", checkpoint=Checkpoint(scores=SCORES)))
    before = SentenceTransformer(str(folder), device="cpu").encode(["the cat"])
    files = (
        "onnx/model.onnx",
        "openvino/openvino_model.xml",
        "litert/model.tflite",
        "stablehlo/model.bin",
        "gguf/model.gguf",
    )
    assert [file.partition("/")[0] for file in files] == [*FORMS]
    for file in files:
        (folder / file).parent.mkdir()
        (folder / file).write_bytes(b"no such file")
    assert (folder / RESULTS_FILE).is_file()
    np.testing.assert_array_equal(SentenceTransformer(str(folder), device="cpu").encode(["the cat"]), before)


def test_text_from_the_hub_is_named_in_the_metadata(model):
    data = (
        "hf:org/news:train[:10]:text, mine.txt, hf:wiki:plain:train:text, hf:org/news:test:text, tfds:imdb:train:text"
    )
    training = Training(data=f"{data}, hf:/home/me/private:train:text")
    assert data_of(card_of(model, Facts(name="l3", training=training), spec="l3")).datasets == ["org/news", "wiki"]
    assert data_of(card_of(model, Facts(name="l3", training=Training(data="mine.txt")), spec="l3")).datasets is None
