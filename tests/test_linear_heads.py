"""Linear layers after pooling are written as layers on tokens, which every runtime that takes a mean gets right."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import test_folder

from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
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


def test_a_dense_layer_on_tokens_that_pooling_would_change_is_refused(tmp_path, bert_folder):
    linear_head(tmp_path, bert_folder)
    message = (
        "2_Dense comes before the pooling; only linear layers on token_embeddings before cls, mean, last, weightedmean"
    )
    activation = "torch.nn.modules.linear.Identity"
    cases.edit_json(
        tmp_path / "2_Dense" / "config.json",
        activation_function=activation.replace("linear.Identity", "activation.Tanh"),
    )
    with pytest.raises(InputError, match=message):
        load_model(str(tmp_path))
    cases.edit_json(tmp_path / "2_Dense" / "config.json", activation_function=activation)
    cases.edit_json(tmp_path / "1_Pooling" / "config.json", pooling_mode="max")
    with pytest.raises(InputError, match=message):
        load_model(str(tmp_path))
    modules = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps([modules[place] for place in (0, 3, 1, 2, 4)]))
    with pytest.raises(InputError, match='module_input_name="token_embeddings"; only "sentence_embedding" can be read'):
        load_model(str(tmp_path))
