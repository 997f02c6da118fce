"""Pruned feed-forward units: which are pruned, that nothing else changes, and that transformers reads the result."""

import logging

import numpy as np
import pytest
import transformers

from jaxdistill.encoders.hugging_face import read_settings
from jaxdistill.models import surgery
from jaxdistill.models.checkpoints.folder import save
from jaxdistill.models.checkpoints.model import load_model
from jaxdistill.models.pruning import energies_of, pruned

import encoder_cases as cases

TOKENS = cases.padded(cases.random_sequences())


def loaded(folder, family):
    cases.write_encoder(folder, family)
    return load_model(str(folder), pooling="mean")


def states(model):
    return cases.hidden_states(model.definition, model.params, TOKENS)


def check_transformers_agree(model, folder):
    """The export, as transformers reads it, gives the same hidden states."""
    save(model, folder)
    torch_model = transformers.AutoModel.from_pretrained(folder).eval()
    actual = np.asarray(states(load_model(str(folder)))[-1])
    for index, sequence in enumerate(cases.random_sequences()):
        expected = cases.torch_states(torch_model, sequence)[-1]
        np.testing.assert_allclose(actual[index, 0, : len(sequence)], expected, atol=2e-5)


@pytest.mark.parametrize("family", ["distilbert", "albert", "modernbert", "gte"])
def test_a_narrower_feed_forward_network_is_as_if_the_weakest_units_were_silent(family, tmp_path):
    model = loaded(tmp_path / "whole", family)
    energies = energies_of(model.definition, model.params, TOKENS)
    student, params = pruned(model, 20, energies), dict(model.params)
    for layer, energy in energies.items():
        kernel = params[f"{layer}/output/kernel"].copy()
        kernel[np.argsort(-np.asarray(energy) * np.square(kernel).sum(axis=1))[20:]] = 0
        params[f"{layer}/output/kernel"] = kernel
    expected = cases.hidden_states(model.definition, params, TOKENS)
    np.testing.assert_allclose(states(student)[-1], expected[-1], atol=2e-5)
    check_transformers_agree(student, tmp_path / "pruned")


def test_a_unit_with_large_weights_that_is_never_active_goes_first(tmp_path):
    model = loaded(tmp_path, "distilbert")
    for layer in range(4):
        # Unit 3 of the network gives gelu(-100) = 0.
        path = f"transformer/layers/{layer}"
        model.params[f"{path}/intermediate/kernel"][:, 3] = 0
        model.params[f"{path}/intermediate/bias"][3] = -100
        model.params[f"{path}/output/kernel"][3] *= 100
    student = pruned(model, 47, energies_of(model.definition, model.params, TOKENS))
    np.testing.assert_allclose(states(student)[-1], states(model)[-1], atol=2e-5)


LOCAL, FULL = "sliding_attention", "full_attention"
CUTS = [
    ("modernbert", "1,2", [LOCAL, FULL], None),
    ("modernbert", "first:2", [FULL, LOCAL], 2),
    ("gemma3-text", "last:2", [FULL, LOCAL], None),
    ("qwen3", "1,2", [FULL, LOCAL], None),
]  # modernbert: whole, local, whole; gemma3: local, whole, local; qwen3: whole, whole, local


@pytest.mark.parametrize(("family", "layers", "types", "every"), CUTS)
def test_a_layer_keeps_its_reach_when_others_are_cut(family, layers, types, every, tmp_path):
    """Sentences are longer than the windows, so that a layer with another's reach would give other states."""
    student = surgery.from_layers(loaded(tmp_path / "whole", family), layers)
    check_transformers_agree(student, tmp_path / "cut")
    config = read_settings(tmp_path / "cut" / "config.json")
    assert config["layer_types"] == types and config.get("global_attn_every_n_layers") == every


def test_a_cut_without_any_layer_that_sees_the_whole_sentence_is_a_warning(tmp_path, caplog):
    model = loaded(tmp_path, "modernbert")
    with caplog.at_level(logging.WARNING):
        surgery.from_layers(model, "first:2")
        assert not caplog.text
        surgery.from_layers(model, "1")
    assert "see 4 tokens on each side; those that see the whole sentence are 0,2" in caplog.text
