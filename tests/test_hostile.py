"""Model folders that somebody else made: no code of them runs, and nothing outside is read."""

import json
import os
import shutil

import pytest
import torch

from jaxdistill.core import InputError
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.checkpoints.weights import read_torch_file

import encoder_cases as cases
from tiny_models import tiny_model


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model folder, to be copied."""
    folder = tmp_path_factory.mktemp("exported")
    save(tiny_model(folder / "tokenizer", head=8), folder / "model")
    return folder / "model"


@pytest.fixture
def model(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "model")


def test_code_and_paths_of_a_tokenizer_are_neither_read_nor_exported(model, tmp_path):
    """transformers would take an older tokenizer's vocabulary from elsewhere, and an export would hold it."""
    code = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (tmp_path / "secret.txt").write_text("[UNK]\n[PAD]\nsecret\n")
    named = dict(vocab_file=str(tmp_path / "secret.txt"), chat_template_file="x")
    cases.edit_json(model / "tokenizer_config.json", auto_map=code, **named)
    save(load_model(str(model)), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert not {"auto_map", *named} & written.keys() and written["tokenizer_class"] == "BertTokenizer"
    (model / "tokenizer.json").unlink()
    assert "secret" not in load_model(str(model)).tokenizer.get_vocab()


class Hostile:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_asks_for_code_is_refused_and_does_not_run(tmp_path, zipped):
    hostile = Hostile(os.system, f"touch {tmp_path / 'executed'}")
    torch.save({"x": hostile}, tmp_path / "x.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match="it is damaged, or holds other objects than tensors"):
        read_torch_file(tmp_path / "x.bin")
    assert not (tmp_path / "executed").exists()
