"""Linear layers after pooling are written as layers on tokens, which every runtime that takes a mean gets right."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import test_folder

from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.surgery import resizing

import encoder_cases as cases


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    cases.write_encoder(folder, "bert")
    return folder


def linear_head(tmp_path, bert_folder, pooling="mean"):
    """A folder whose model has two linear layers after pooling, and the model."""
    model = resizing.add_head(load_model(str(bert_folder), pooling=pooling), 12, key=jax.random.key(0))
    model = resizing.add_head(model, 8, key=jax.random.key(1))
    linear = tuple(dataclasses.replace(part, activation="identity") for part in model.definition.dense)
    rng = np.random.default_rng(0)
    biases = {f"dense/{index}/bias": rng.normal(size=width).astype(np.float32) for index, width in enumerate((12, 8))}
    definition = dataclasses.replace(model.definition, dense=linear, normalize=True)
    model = dataclasses.replace(model, definition=definition, params=model.params | biases)
    save(model, tmp_path)
    return model


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "weightedmean", "mean:last2", "max"])
def test_linear_heads_act_on_tokens_where_pooling_takes_a_mean(tmp_path, bert_folder, pooling):
    model = linear_head(tmp_path, bert_folder, pooling)
    modules = [(module["idx"], module["path"]) for module in json.loads((tmp_path / "modules.json").read_text())]
    assert load_model(str(tmp_path)).definition == model.definition
    assert np.abs(test_folder.theirs(tmp_path) - test_folder.ours(model)).max() <= test_folder.TOLERANCE
    place = 2 if pooling == "mean:last2" else 1  # WeightedLayerPooling comes first
    moved = 0 if pooling == "max" else 2
    assert modules[place + moved] == (place + moved, f"{place}_Pooling")
    assert modules[-1][1] == f"{place + 3}_Normalize"
