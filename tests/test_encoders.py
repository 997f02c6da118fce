"""Every encoder family, packed, beside transformers; poolings beside plain PyTorch; fresh parameters; refusals."""

import dataclasses

import jax
import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

from jaxdistill.core import STACKED, InputError
from jaxdistill.encoders import families, hugging_face, sentence
from jaxdistill.encoders.architecture import EncoderDefinition, LayerKind, Pooling
from jaxdistill.encoders.layers import ACTIVATION_FUNCTIONS
from jaxdistill.encoders.sentence import pooled
from jaxdistill.models.checkpoints.model import load_model, locate, read_architecture
from jaxdistill.models.inference import Embedder

import encoder_cases as cases
from conftest import TEACHER
from encoder_cases import jitted_embed, unit, with_pooling
from tiny_models import random_params

TOLERANCE = 1e-5  # float32 sums in another order, on vectors of length 1


jitted_states = jax.jit(cases.hidden_states, static_argnums=0)


@pytest.mark.parametrize("family", cases.GRAPHS)
def test_stacked_layers_give_the_vectors_of_unrolled_ones(tmp_path, mesh, monkeypatch, family):
    """Of all layers, with dropout; layers of several kinds, and a first one that differs, repeat twice."""
    cases.write_config(tmp_path, family)
    original = read_architecture(tmp_path)
    order = [*range(original.layers), *range(original.layers)]
    architecture = dataclasses.replace(original.with_layers([0, *order] if original.kinds else order), drophead=0.2)
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling.parse("mean:all"))
    params, tokens = random_params(definition, seed=0), cases.packed(cases.random_sequences(12), 2, 6)
    monkeypatch.setattr(sentence, "platform", lambda mesh: "tpu")
    stacked = sentence.with_stacks(architecture, mesh, params, np.stack)
    assert any(path.startswith(STACKED) for path in stacked) and len(stacked) <= len(params)
    vectors = [jitted_embed(definition, weights, tokens, key=jax.random.key(1)) for weights in (params, stacked)]
    np.testing.assert_allclose(*vectors, rtol=0, atol=1e-6)


def test_the_cases_have_every_family():
    assert {*families.model_types()} - {name.partition(":")[0] for name in cases.CONFIGS} == {"new"}  # read like gte


@pytest.mark.parametrize("family", cases.CONFIGS)
def test_every_family_equals_transformers_packed(tmp_path, family):
    """In whole rows and in divided ones; `test_folder.py` compares the vectors of padded sentences."""
    torch_model, model = cases.write_encoder(tmp_path, family), load_model(str(tmp_path), pooling="mean")
    sequences = cases.random_sequences(12)
    sequences[0][[2, 3, 7]] = sequences[-1][0] = 1  # RoBERTa's and MPNet's padding token, which a text may contain
    expected = [cases.torch_states(torch_model, sequence).numpy() for sequence in sequences]
    tokens = cases.divided(sequences, groups=2)
    states = np.stack([np.asarray(state) for state in jitted_states(model.definition, model.params, tokens)])
    for group, sentences_of in enumerate(np.split(np.arange(12), 2)):
        for number, index in enumerate(sentences_of):
            actual = states[:, group][:, tokens.owner[group] == number]
            np.testing.assert_allclose(actual, expected[index], atol=1e-5 * np.abs(expected[index]).max(), rtol=1e-5)
            mean, other = (unit(x[-1].mean(0)) for x in (actual, expected[index]))
            assert np.abs(mean - other).max() <= TOLERANCE


NTK = dict(model_type="new", rope_parameters="removed", rope_theta=20_000.0, rope_scaling=dict(type="ntk", factor=8.0))
OLD_FORMS = {
    "gte": NTK | dict(position_embedding_type="rope", layer_norm_type="layer_norm", pack_qkv=True),
    "nomic-bert": dict(
        {key: "removed" for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")},
        rope_parameters="removed", n_embd=32, n_layer=3, n_head=4, n_inner=48, rotary_emb_base=1000, prenorm=False,
        activation_function="swiglu", n_positions=140, max_trained_positions=70, layer_norm_epsilon=1e-12,
    ),
    "modernbert": dict(
        rope_parameters="removed", layer_types="removed", global_attn_every_n_layers=2, global_rope_theta=160_000.0,
        local_rope_theta=10_000.0,
    ),
    "gemma3-text": dict(
        rope_parameters="removed", layer_types="removed", _sliding_window_pattern="removed", sliding_window_pattern=2,
        rope_theta=1_000_000, rope_local_base_freq=10_000,
    ),
    "qwen3": dict(
        rope_parameters="removed", rope_theta=10_000, rope_scaling=None, layer_types="removed", is_causal=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", OLD_FORMS)
def test_older_configs_say_the_same_and_their_code_is_never_run(tmp_path, family):
    cases.write_config(tmp_path, family)
    today = read_architecture(tmp_path)
    (tmp_path / "modeling.py").write_text("raise SystemExit('this must not run')")
    auto_map = {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}
    cases.edit_json(tmp_path / "config.json", auto_map=auto_map, **OLD_FORMS[family])
    if family == "gte":
        today = dataclasses.replace(today, kinds=(LayerKind(theta=160_000.0, divisor=8.0 ** (2 / 8)),) * 3)
    assert read_architecture(tmp_path) == today


DEFAULT_ROPE, LINEAR_ROPE = dict(rope_type="default"), dict(rope_type="linear", factor=3.0)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3_ROPE |= dict(original_max_position_embeddings=8192)
BOTH_ROPES = dict(full_attention=DEFAULT_ROPE | dict(rope_theta=300.0), sliding_attention=DEFAULT_ROPE)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", dict(rope_parameters="removed", rope_scaling=DEFAULT_ROPE | dict(rope_theta=300.0))),
        ("llama", dict(rope_scaling=LINEAR_ROPE | dict(rope_theta=50.0))),
        ("llama", dict(rope_parameters="removed", rope_theta=5e5, rope_scaling=LLAMA3_ROPE)),
        ("gemma3-text", dict(rope_parameters=BOTH_ROPES, rope_scaling=LINEAR_ROPE)),
        ("gemma3-text", dict(layer_types="removed", sliding_window_pattern=3, _sliding_window_pattern=2)),
        ("gemma3-text:both-sides", dict(is_causal=False)),
        ("modernbert", dict(rope_parameters=BOTH_ROPES, rope_scaling=LINEAR_ROPE)),
        ("mistral", dict(sliding_window="removed")),
        ("llama", dict(rms_norm_eps="removed")),
        ("modernbert", dict(norm_eps="removed")),
        ("qwen3", dict(layer_types="removed", max_window_layers="removed")),
    ],
)
def test_a_config_is_read_as_transformers_reads_it(tmp_path, family, changes):
    cases.write_config(tmp_path, family)
    plain = read_architecture(tmp_path)
    cases.edit_json(tmp_path / "config.json", **changes)
    transformers.AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "written out")
    assert read_architecture(tmp_path) == read_architecture(tmp_path / "written out") != plain


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen3", dict(rope_parameters=dict(rope_theta=1e6, rope_type="yarn", factor=4.0)), "'yarn'.*give default, linear or llama3 ones"),
        ("qwen2", dict(auto_map={"AutoModel": "modeling_qwen.Qwen2Model"}), 'its own code .*add "is_causal": false if it does'),
        ("gemma3-text", dict(attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        ("modernbert", dict(layer_types=["full_attention"]), "full_attention or sliding_attention for each layer"),
        ("gemma3-text", dict(rope_parameters=DEFAULT_ROPE), "for full_attention and sliding_attention each"),
        ("bert", dict(is_causal=True), "is_causal=true; only false can be read"),
    ],
)  # fmt: skip
def test_variants_that_cannot_be_read_are_refused(tmp_path, family, changes, message):
    cases.write_config(tmp_path, family)
    cases.edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        read_architecture(tmp_path)


@pytest.mark.parametrize("name", hugging_face.ACTIVATIONS)
def test_activations_are_those_of_their_names(name):
    x = np.linspace(-4.0, 4.0, 33, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.as_tensor(x))
    np.testing.assert_allclose(ACTIVATION_FUNCTIONS[hugging_face.ACTIVATIONS[name]](x), expected, atol=1e-6)


PLAIN_POOLINGS = {
    "cls": lambda h: h[-1][0],
    "mean": lambda h: h[-1].mean(0),
    "max": lambda h: h[-1].amax(0),
    "mean:second_to_last": lambda h: h[-2].mean(0),
    "mean:first_last": lambda h: ((h[0] + h[-1]) / 2).mean(0),
    "mean:first_last:max": lambda h: torch.maximum(h[0], h[-1]).mean(0),
    "max:last2": lambda h: h[-2:].mean(0).amax(0),
    "mean:last4": lambda h: h[-4:].mean(0).mean(0),
    "mean:last4:concat": lambda h: torch.cat([layer.mean(0) for layer in h[-4:]]),
    "mean:all": lambda h: h.mean(0).mean(0),
    "mean:all:max": lambda h: h.amax(0).mean(0),
    "last": lambda h: h[-1][-1],
    "weightedmean": lambda h: (h[-1] * torch.arange(1.0, h.shape[1] + 1)[:, None]).sum(0),
    "mean_sqrt_len:last2": lambda h: h[-2:].mean(0).sum(0) / h.shape[1] ** 0.5,
}


def test_poolings_equal_plain_torch(tmp_path):
    torch_model, model = cases.write_encoder(tmp_path, "bert"), load_model(str(tmp_path), pooling="mean")
    sequences = cases.random_sequences(6)
    expected = [cases.torch_states(torch_model, sequence) for sequence in sequences]

    @jax.jit
    def all_poolings(params, tokens):
        states = cases.hidden_states(model.definition, params, tokens)
        return {name: pooled(Pooling.parse(name), states, tokens) for name in PLAIN_POOLINGS}

    for tokens in (cases.padded(sequences, length=30), cases.packed(sequences, groups=2, rows=3)):
        for name, vectors in all_poolings(model.params, tokens).items():
            other = unit(np.stack([PLAIN_POOLINGS[name](states).numpy() for states in expected]))
            assert with_pooling(model.definition, name).embedding_width == other.shape[-1]
            assert np.abs(unit(np.asarray(vectors).reshape(6, -1)) - other).max() <= TOLERANCE, name


TEXTS = ["A man is eating food.", "", "Zwei Hunde spielen im Schnee — 雪!", "word " * 400, " Spaces \t, CAPITALS "]


def test_minilm_equals_sentence_transformers():
    expected = SentenceTransformer(str(locate(TEACHER)), device="cpu").encode(TEXTS)
    vectors = Embedder(load_model(TEACHER), compute_dtype="float32").encode(TEXTS)
    assert np.abs(vectors - expected).max() <= TOLERANCE
