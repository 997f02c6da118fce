"""How far packing, precision, dropout, long rows and devices may change an encoder's vectors."""

import dataclasses
import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.encoders import attention
from jaxdistill.encoders.architecture import EncoderDefinition, LayerKind, Pooling
from jaxdistill.encoders.sentence import embed, pooled

import encoder_cases as cases
from encoder_cases import jitted_embed, unit, with_pooling
from tiny_models import random_params


@pytest.fixture(scope="module")
def small():
    return cases.small_encoder()


def test_a_sentence_without_tokens_becomes_zeros_with_finite_gradients(small):
    tokens = cases.packed([np.arange(6, 12), np.array([], int), np.arange(20, 23)], groups=1, rows=2, length=16)
    poolings = ("mean", "cls", "max", "last", "weightedmean")

    def total(params, tokens):
        states = cases.hidden_states(small[0], params, tokens)
        vectors = jnp.stack([pooled(Pooling.parse(name), states, tokens) for name in poolings])
        return jnp.sum(vectors * vectors[..., ::-1], axis=(1, 2, 3)), vectors

    gradient, vectors = jax.jit(jax.jacrev(total, has_aux=True))(small[1], tokens)
    assert np.all(np.asarray(vectors)[:, 0, 1] == 0.0) and np.all(np.isfinite(vectors))
    assert all(np.all(np.isfinite(g)) for g in gradient.values())


def test_bfloat16_stays_close_and_results_are_float32(small):
    tokens = cases.padded(cases.random_sequences(6))
    exact = np.asarray(jitted_embed(*small, tokens))[:, 0]
    rounded = jitted_embed(*small, tokens, compute_dtype=jnp.bfloat16)
    assert rounded.dtype == jnp.float32
    rounded = np.asarray(rounded)[:, 0]
    assert 1e-6 < np.abs(exact - rounded).max() < 0.02
    assert (unit(exact) * unit(rounded)).sum(-1).min() > 0.999


def test_a_dropped_head_is_one_whose_rows_of_the_output_matrix_are_zero(small):
    definition, params = with_pooling(small[0], "mean"), dict(small[1])
    rates = dict(hidden_dropout=0.0, attention_dropout=0.0)
    definition = dataclasses.replace(
        definition, architecture=dataclasses.replace(definition.architecture, layers=1, **rates)
    )
    dropping = dataclasses.replace(definition, architecture=dataclasses.replace(definition.architecture, drophead=0.5))
    tokens = cases.padded(cases.random_sequences(2)[:1])
    heads, path = definition.architecture.heads, "transformer/layers/0/attention/output/kernel"
    candidates = {}
    for dropped in itertools.chain.from_iterable(itertools.combinations(range(heads), n) for n in range(heads + 1)):
        scales = np.array([0.0 if head in dropped else heads / max(heads - len(dropped), 1) for head in range(heads)])
        by_row = np.repeat(scales, definition.architecture.hidden_size // heads)[:, None].astype(np.float32)
        candidates[dropped] = np.asarray(jitted_embed(definition, params | {path: params[path] * by_row}, tokens))
    seen = set()
    for seed in range(12):
        actual = np.asarray(jitted_embed(dropping, params, tokens, key=jax.random.key(seed)))
        differences = {dropped: np.abs(actual - vector).max() for dropped, vector in candidates.items()}
        nearest = min(differences, key=differences.get)
        assert differences[nearest] < 1e-5
        seen.add(nearest)
    assert len(seen) > 1
    assert np.array_equal(jitted_embed(dropping, params, tokens), candidates[()]), "off without a key"


LONG = dict(position_table=False, norm="rms", norm_place="pre", heads=4, key_heads=2, relative_buckets=0, layers=2)


@pytest.mark.parametrize(("window", "causal"), [(0, False), (0, True), (9, False)])
def test_attention_in_blocks_gives_the_same_vectors_and_gradients(small, monkeypatch, window, causal):
    kinds = (LayerKind(theta=100.0), LayerKind(theta=10.0, window=window))
    architecture = dataclasses.replace(small[0].architecture, **LONG, kinds=kinds, causal=causal)
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling(tokens="weightedmean"))
    params = random_params(definition, seed=0)
    tokens = cases.packed(cases.random_sequences(6, longest=40), groups=1, rows=4, length=60)
    monkeypatch.setattr(attention, "MAX_WHOLE_ROW", 59)
    monkeypatch.setattr(attention, "BLOCK_QUERIES", 16)

    def value(params):
        vectors = embed(definition, params, tokens)
        return jnp.sum(vectors * vectors[:, ::-1]), vectors

    in_blocks = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    monkeypatch.setattr(attention, "MAX_WHOLE_ROW", 60)
    at_once = jax.jit(jax.value_and_grad(lambda params: value(params), has_aux=True))(params)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), in_blocks, at_once)


@pytest.mark.parametrize("longest_whole", [512, 100])
def test_divided_rows_give_the_vectors_and_gradients_of_whole_ones(small, monkeypatch, longest_whole):
    monkeypatch.setattr(attention, "MAX_WHOLE_ROW", longest_whole)
    architecture = dataclasses.replace(
        small[0].architecture, **LONG, kinds=(LayerKind(), LayerKind(window=9)), causal=True
    )
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling(tokens="max"))
    params = random_params(definition, seed=0)
    long, short = cases.random_sequences(4, longest=120), cases.random_sequences(24, longest=50)
    tokens = cases.divided([*long[:2], *short[:12], *long[2:], *short[12:]], groups=2, length=120)

    def value(params, tokens):
        vectors = embed(definition, params, tokens)
        return jnp.sum(vectors * vectors[:, ::-1]), vectors

    step = jax.jit(jax.value_and_grad(value, has_aux=True))
    parts, undivided = (step.lower(params, batch).compile() for batch in (tokens, tokens._replace(parts=None)))
    results = parts(params, tokens), undivided(params, tokens._replace(parts=None))
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), *results)
    if longest_whole > 120:  # a loop over blocks is counted as one block
        assert parts.cost_analysis()["flops"] < 0.9 * undivided.cost_analysis()["flops"]


def test_groups_on_eight_devices_need_no_collective_and_give_the_same_vectors(small):
    definition, key = with_pooling(small[0], "mean"), jax.random.key(1)
    tokens = cases.packed(cases.random_sequences(16, longest=12), groups=8, rows=2, length=16)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    split, replicated = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    forward = jax.jit(
        lambda p, t, key: jitted_embed(definition, p, t, key=key), in_shardings=(replicated, split, replicated)
    )
    compiled = forward.lower(small[1], tokens, key).compile()
    assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter", compiled.as_text())
    expected = jitted_embed(definition, small[1], tokens, key=key)
    np.testing.assert_allclose(forward(small[1], tokens, key), expected, atol=1e-6)
