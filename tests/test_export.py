"""Exports are complete and checked, and do not overwrite the user's files."""

import dataclasses
import json

import numpy as np
import pytest

from jaxdistill.core import InputError
from jaxdistill.core.files import MARK
from jaxdistill.evals.model_card import Facts
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.training import export as export_module
from jaxdistill.training.export import export, weights_bytes

from tiny_models import tiny_model


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "tokenizer", head=8)


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves out the comparison, which compiles two models."""
    monkeypatch.setattr(export_module, "largest_difference", lambda *_: 0.0)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_servers_find_the_nested_widths_in_the_configuration(model, tmp_path):
    folder = export(model, tmp_path / "export", facts=Facts(name="nested", dims="4, 6"))
    config = json.loads((folder / "config.json").read_text())
    assert config["matryoshka_dimensions"] == [4, 6, model.definition.embedding_width]
    assert "matryoshka_dimensions" not in json.loads(
        (export(model, tmp_path / "other", facts=Facts(name="plain")) / "config.json").read_text()
    )


def test_an_earlier_export_is_replaced_and_files_that_the_user_added_stay(model, tmp_path, unchecked):
    folder = export(model, tmp_path / "export", facts=Facts(name="first"))
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("kept")
    (folder / "README.md").write_text("first, with my remarks")
    other = tiny_model(tmp_path / "tokenizer", head=8, seed=1)
    assert export(other, folder, facts=Facts(name="second")) == folder
    note = json.loads((folder / MARK).read_text())
    assert note["model_digest"] == other.digest() != model.digest()
    assert weights_bytes(folder) > 4 * sum(v.size for v in other.params.values())
    np.testing.assert_array_equal(load_model(str(folder)).params["dense/0/kernel"], other.params["dense/0/kernel"])
    assert (folder / "notes" / "mine.txt").read_text() == "kept"
    assert "# second" in (folder / "README.md").read_text()
    assert (folder / "README.md.edited").read_text() == "first, with my remarks"
    assert "README.md" in note["files"] and not {"README.md.edited", "notes/mine.txt"} & set(note["files"])


def test_a_folder_that_is_no_export_is_left_alone(model, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("kept")
    with pytest.raises(InputError, match="is not an export.*not overwritten"):
        export(model, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "kept"


def test_an_export_that_does_not_reload_the_same_is_not_put_in_place(model, tmp_path, monkeypatch):
    path = "dense/0/bias"
    spoiled = dataclasses.replace(model, params=model.params | {path: model.params[path] + 0.01})
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "largest_difference", lambda *_: 0.0)
        before = contents(export(model, tmp_path / "export"))
    monkeypatch.setattr(export_module, "load_model", lambda folder: spoiled)
    with pytest.raises(InputError, match="was not written.*largest difference"):
        export(model, tmp_path / "export")
    monkeypatch.setattr("safetensors.numpy.save_file", lambda *_, **__: 1 / 0)
    with pytest.raises(InputError, match="model.safetensors could not be written .division"):
        export(model, tmp_path / "export")
    assert contents(tmp_path / "export") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "tokenizer"]


def test_a_pooling_that_sentence_transformers_lacks_is_exported_for_this_project(tmp_path, unchecked):
    folder = export(tiny_model(tmp_path / "tokenizer", pooling="mean:last2:max"), tmp_path / "export")
    card = (folder / "README.md").read_text()
    assert "from sentence_transformers" not in card and "library_name" not in card and "jaxdistill.load" in card
