"""Pruned heads and feed-forward units: which go, that nothing else changes, and that transformers reads the rest."""

import logging

import numpy as np
import pytest
import transformers

from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import load_model
from jaxdistill.core import InputError
from jaxdistill.encoders.sentence import param_shapes
from jaxdistill.encoders.settings import read_settings
from jaxdistill.surgery import resizing
from jaxdistill.surgery.pruning import moments_of, pruned

import encoder_cases as cases

OUTPUTS = {"heads": "attention/output/kernel", "intermediate": "output/kernel"}
TOKENS = cases.padded(cases.random_sequences())


def loaded(folder, family):
    cases.write_encoder(folder, family)
    return load_model(str(folder), pooling="mean")


def states(model):
    return cases.hidden_states(model.definition, model.params, TOKENS)


def silenced(model, kept, option):
    """The model with zeros in the output rows of all units but `kept`, which are (layer, unit) pairs."""
    architecture = model.definition.architecture
    units = dict(heads=architecture.heads, intermediate=architecture.intermediate_size)[option]
    params = dict(model.params)
    for layer, chosen in kept.items():
        path = f"transformer/layers/{layer}/{OUTPUTS[option]}"
        rows = params[path].reshape(units, -1, params[path].shape[-1]).copy()
        rows[[unit for unit in range(units) if unit not in chosen]] = 0
        params[path] = rows.reshape(params[path].shape)
    return cases.hidden_states(model.definition, params, TOKENS)


def strongest(model, option, count, each=1):
    """By magnitude, per layer; `each` neighbouring units stay or go together."""
    architecture = model.definition.architecture
    units = dict(heads=architecture.heads, intermediate=architecture.intermediate_size)[option]
    found = {}
    for layer in range(1 if architecture.shared_layers else architecture.layers):
        kernel = model.params[f"transformer/layers/{layer}/{OUTPUTS[option]}"]
        norms = np.square(kernel).reshape(units // each, -1).sum(axis=1)
        groups = np.argsort(-norms)[: count // each]
        found[layer] = [group * each + place for group in groups for place in range(each)]
    return found


def check_transformers_agree(model, folder):
    """The export, as transformers reads it, gives the same hidden states."""
    save(model, folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    ours = np.asarray(states(load_model(str(folder)))[-1])
    for index, sequence in enumerate(cases.random_sequences()):
        expected = cases.torch_states(theirs, sequence)[-1]
        np.testing.assert_allclose(ours[index, 0, : len(sequence)], expected, atol=2e-5)


HEADS = [("qwen3", 2, 2), ("qwen2", 2, 2), ("gte", 3, 1), ("nomic-bert", 1, 1), ("eurobert", 2, 1)]
"""Family, heads to keep, and how many heads of queries share one of keys."""


@pytest.mark.parametrize(("family", "heads", "each"), HEADS)
def test_fewer_heads_are_as_if_the_weakest_were_silent(family, heads, each, tmp_path):
    model = loaded(tmp_path / "whole", family)
    student = pruned(model, heads=heads)
    assert {path: array.shape for path, array in student.params.items()} == param_shapes(student.definition)
    assert student.source.endswith(f"pruned to {heads} heads") and pruned(model).source == model.source
    expected = silenced(model, strongest(model, "heads", heads, each), "heads")
    for ours, theirs in zip(states(student), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    check_transformers_agree(student, tmp_path / "pruned")
    assert load_model(str(tmp_path / "pruned")).definition == student.definition


def test_queries_of_one_key_head_are_pruned_within_their_group(tmp_path):
    model = loaded(tmp_path / "whole", "gemma3-text")
    student = pruned(model, heads=2)
    architecture = student.definition.architecture
    assert (architecture.heads, architecture.key_head_count) == (2, 1)
    expected = silenced(model, strongest(model, "heads", 2), "heads")
    np.testing.assert_allclose(states(student)[-1], expected[-1], atol=2e-5)
    check_transformers_agree(student, tmp_path / "pruned")


@pytest.mark.parametrize(("family", "allowed"), [("qwen3", "2, 4"), ("eurobert", "1, 2, 4")])
def test_a_count_that_breaks_groups_or_the_format_is_refused_with_those_that_do_not(family, allowed, tmp_path):
    with pytest.raises(InputError, match=f"student.heads=3 .*; use one of {allowed}"):
        pruned(loaded(tmp_path, family), heads=3)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_heads_are_refused_where_a_checkpoint_cannot_say_their_size(family, tmp_path):
    with pytest.raises(InputError, match="student.heads=2: .*hidden_size / heads.*student.intermediate or"):
        pruned(loaded(tmp_path, family), heads=2)


FAMILIES = ["distilbert", "albert", "modernbert", "gte"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_narrower_feed_forward_network_is_as_if_the_weakest_units_were_silent(family, tmp_path):
    model = loaded(tmp_path / "whole", family)
    student = pruned(model, intermediate=20)
    expected = silenced(model, strongest(model, "intermediate", 20), "intermediate")
    np.testing.assert_allclose(states(student)[-1], expected[-1], atol=2e-5)
    check_transformers_agree(student, tmp_path / "pruned")


def test_more_units_than_there_are_are_refused(tmp_path):
    with pytest.raises(InputError, match="student.intermediate=49 is above the encoder's 48"):
        pruned(loaded(tmp_path, "bert"), intermediate=49)


def test_by_activation_a_unit_with_large_weights_that_is_never_active_goes_first(tmp_path):
    model = loaded(tmp_path, "distilbert")
    name = "transformer/layers/{}/{}".format
    for layer in range(4):
        # Unit 3 of the network gives gelu(-100) = 0, and the values of head 1 are 0.
        model.params[name(layer, "intermediate/kernel")][:, 3] = 0
        model.params[name(layer, "intermediate/bias")][3] = -100
        model.params[name(layer, "output/kernel")][3] *= 100
        model.params[name(layer, "attention/value/kernel")][:, 8:16] = 0
        model.params[name(layer, "attention/value/bias")][8:16] = 0
        model.params[name(layer, "attention/output/kernel")][8:16] *= 100
    moments = moments_of(model.definition, model.params, TOKENS)
    student = pruned(model, intermediate=47, moments=moments)
    np.testing.assert_allclose(states(student)[-1], states(model)[-1], atol=2e-5)
    by_magnitude = pruned(model, intermediate=47)
    assert np.abs(np.asarray(states(by_magnitude)[-1]) - states(model)[-1]).max() > 1e-3
    heads = np.asarray(moments[name(0, "attention/output/kernel")])
    assert heads.shape == (4, 8, 8) and not heads[1].any() and heads[0].any()


def test_padding_is_not_measured(tmp_path):
    model = loaded(tmp_path, "albert")
    sequences = cases.random_sequences()
    found = [moments_of(model.definition, model.params, cases.padded(sequences, length=length)) for length in (30, 40)]
    for path, expected in found[0].items():
        np.testing.assert_allclose(found[1][path], expected, rtol=1e-4, atol=1e-4)


LOCAL, WHOLE = "sliding_attention", "full_attention"
CUTS = [
    ("modernbert", "1,2", [LOCAL, WHOLE], None),
    ("modernbert", "first:2", [WHOLE, LOCAL], 2),
    ("gemma3-text", "last:2", [WHOLE, LOCAL], None),
    ("qwen3", "1,2", [WHOLE, LOCAL], None),
]  # modernbert: whole, local, whole; gemma3: local, whole, local; qwen3: whole, whole, local


@pytest.mark.parametrize(("family", "layers", "types", "every"), CUTS)
def test_a_layer_keeps_its_reach_when_others_are_cut(family, layers, types, every, tmp_path):
    """Sentences are longer than the windows, so that a layer with another's reach would give other states."""
    student = resizing.from_layers(loaded(tmp_path / "whole", family), layers)
    check_transformers_agree(student, tmp_path / "cut")
    config = read_settings(tmp_path / "cut" / "config.json")
    assert config["layer_types"] == types and config.get("global_attn_every_n_layers") == every


def test_a_cut_without_any_layer_that_sees_the_whole_sentence_is_a_warning(tmp_path, caplog):
    model = loaded(tmp_path, "modernbert")
    with caplog.at_level(logging.WARNING):
        resizing.from_layers(model, "first:2")
        assert not caplog.text
        resizing.from_layers(model, "1")
    assert "see 4 tokens on each side; those that see the whole sentence are 0,2" in caplog.text
