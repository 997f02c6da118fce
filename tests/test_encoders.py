"""The forward pass: parity with transformers, poolings, packing, sharding, dropout, precision."""

import dataclasses
import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxdistill.core import InputError, Tokens
from jaxdistill.encoders import attention
from jaxdistill.encoders.architecture import Architecture, Dense, EncoderDefinition, LayerKind, Pooling
from jaxdistill.encoders.model import load, read_architecture
from jaxdistill.encoders.pooling import pooled
from jaxdistill.encoders.sentence import embed, hidden_states, init_params, param_shapes

import encoder_cases as cases
from conftest import TEACHER

TOLERANCE = 1e-5  # float32 sums in another order, on vectors of length 1
jitted_embed = jax.jit(embed, static_argnums=0, static_argnames=("compute_dtype", "remat"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return cases.write_encoder(folder, "bert"), folder


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def sentences(model, tokens):
    """Vectors of unit length."""
    definition = dataclasses.replace(model.definition, normalize=True)
    return np.asarray(jitted_embed(definition, model.params, tokens)).reshape(tokens.first.size, -1)


jitted_states = jax.jit(hidden_states, static_argnums=0)


@pytest.mark.parametrize("family", cases.CONFIGS)
def test_every_family_equals_transformers_padded_and_packed(tmp_path, family):
    theirs, ours = cases.write_encoder(tmp_path, family), load(str(tmp_path), pooling="mean")
    sequences = cases.random_sequences(12)
    expected = [cases.torch_states(theirs, sequence).numpy() for sequence in sequences]
    for tokens in (cases.padded(sequences), cases.packed(sequences, groups=2, rows=6)):
        states = np.stack([np.asarray(state) for state in jitted_states(ours.definition, ours.params, tokens)])
        for group, sentences_of in enumerate(np.split(np.arange(12), len(tokens.ids))):
            for place, index in enumerate(sentences_of):
                got = states[:, group][:, tokens.owner[group] == place]
                np.testing.assert_allclose(got, expected[index], atol=1e-5 * np.abs(expected[index]).max(), rtol=1e-5)
                mean, other = (unit(x[-1].mean(0)) for x in (got, expected[index]))
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
    "qwen3": dict(rope_parameters="removed", rope_theta=10_000, rope_scaling=None, layer_types="removed"),
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


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen3", dict(rope_parameters=dict(rope_theta=1e6, rope_type="yarn", factor=4.0)), "'yarn'.*'default' and 'linear'"),
        ("qwen3", dict(layer_types=["full_attention"]), "layer_types.*each of 3 layers"),
        ("qwen3", dict(num_key_value_heads=3), "heads=4 is not divisible by key_heads=3"),
        ("gemma3-text", dict(attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        ("gte", dict(model_type="new", logn_attention_scale=True), "logn_attention_scale"),
        ("gte", dict(model_type="new", layer_norm_type="rms"), "only 'layer_norm' can be read"),
        ("nomic-bert", dict(n_embd=32, prenorm=True), "only False can be read"),
        ("albert", dict(num_hidden_groups=3), "only 1, one layer for all"),
        ("llama", dict(head_dim=9), "even head size, not 9"),
        ("gte", dict(num_hidden_layers=10**12), "num_hidden_layers=1,000,000,000,000; at most 1,000"),
        ("modernbert", dict(num_hidden_layers=10**12), "num_hidden_layers=1,000,000,000,000; at most 1,000"),
    ],
)  # fmt: skip
def test_variants_that_cannot_be_read_are_refused(tmp_path, family, changes, message):
    cases.write_config(tmp_path, family)
    cases.edit_json(tmp_path / "config.json", **changes)
    with pytest.raises(InputError, match=message):
        read_architecture(tmp_path)


def test_a_new_option_changes_no_digest_and_one_in_use_does(small):
    plain = small[0].architecture
    assert "causal" not in repr(plain) and "kinds" not in repr(plain)
    assert repr(dataclasses.replace(plain, causal=True)) == repr(plain)[:-1] + ", causal=True)"


PLAIN_POOLINGS = {
    "cls": lambda h: h[-1][0],
    "cls:second_to_last": lambda h: h[-2][0],
    "mean": lambda h: h[-1].mean(0),
    "max": lambda h: h[-1].amax(0),
    "mean:second_to_last": lambda h: h[-2].mean(0),
    "max:second_to_last": lambda h: h[-2].amax(0),
    "mean:first_last": lambda h: ((h[0] + h[-1]) / 2).mean(0),
    "mean:first_last:max": lambda h: torch.maximum(h[0], h[-1]).mean(0),
    "mean:last2": lambda h: h[-2:].mean(0).mean(0),
    "mean:last2:max": lambda h: h[-2:].amax(0).mean(0),
    "max:last2": lambda h: h[-2:].mean(0).amax(0),
    "mean:last4": lambda h: h[-4:].mean(0).mean(0),
    "mean:last4:max": lambda h: h[-4:].amax(0).mean(0),
    "mean:last4:concat": lambda h: torch.cat([layer.mean(0) for layer in h[-4:]]),
    "max:last4:concat": lambda h: torch.cat([layer.amax(0) for layer in h[-4:]]),
    "mean:all": lambda h: h.mean(0).mean(0),
    "mean:all:max": lambda h: h.amax(0).mean(0),
    "max:all:max": lambda h: h.amax(0).amax(0),
    "last": lambda h: h[-1][-1],
    "weightedmean": lambda h: (h[-1] * torch.arange(1.0, h.shape[1] + 1)[:, None]).sum(0),
    "mean_sqrt_len:last2": lambda h: h[-2:].mean(0).sum(0) / h.shape[1] ** 0.5,
}


def test_poolings_equal_plain_torch(bert):
    theirs, folder = bert
    ours = load(str(folder), pooling="mean")
    sequences = cases.random_sequences(6)
    expected = [cases.torch_states(theirs, sequence) for sequence in sequences]

    @jax.jit
    def all_poolings(params, tokens):
        states = hidden_states(ours.definition, params, tokens)
        return {name: pooled(Pooling.parse(name), states, tokens) for name in PLAIN_POOLINGS}

    for tokens in (cases.padded(sequences), cases.packed(sequences, groups=2, rows=3)):
        for name, vectors in all_poolings(ours.params, tokens).items():
            other = unit(np.stack([PLAIN_POOLINGS[name](states).numpy() for states in expected]))
            assert with_pooling(ours.definition, name).embedding_width == other.shape[-1]
            assert np.abs(unit(np.asarray(vectors).reshape(6, -1)) - other).max() <= TOLERANCE, name


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "mpnet"])
def test_pooler_output_equals_transformers(tmp_path, family):
    theirs = cases.write_encoder(tmp_path, family)
    ours = load(str(tmp_path), pooling="pooler")
    sequences = cases.random_sequences(4)
    with torch.no_grad():
        outputs = [theirs(input_ids=torch.as_tensor(s)[None]).pooler_output[0].numpy() for s in sequences]
    got = sentences(ours, cases.packed(sequences, groups=2, rows=3))
    assert np.abs(got - unit(np.stack(outputs))).max() <= TOLERANCE


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_pooler_is_refused_where_the_family_has_none(tmp_path, family):
    cases.write_encoder(tmp_path, family)
    with pytest.raises(InputError, match=f"{family} does not have; use cls"):
        load(str(tmp_path), pooling="pooler")


@pytest.fixture(scope="module")
def small():
    """A definition with everything switched on, and its parameters."""
    architecture = Architecture(
        family="mpnet", vocab_size=99, hidden_size=16, layers=3, heads=2, intermediate_size=24, max_positions=40,
        embedding_size=8, token_types=2, relative_buckets=8, pooler=True,
    )  # fmt: skip
    dense = (Dense(in_features=16, out_features=12), Dense(in_features=12, out_features=8, activation="identity"))
    mean = Pooling(tokens="mean")
    definition = EncoderDefinition(architecture=architecture, pooling=mean, dense=dense)
    return definition, init_params(definition, jax.random.key(0))


def with_pooling(definition, pooling):
    pooling = Pooling.parse(pooling)
    return EncoderDefinition(architecture=definition.architecture, pooling=pooling)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last", "weightedmean"])
def test_a_sentence_without_tokens_becomes_zeros_with_finite_gradients(small, pooling):
    definition = with_pooling(small[0], pooling)
    tokens = cases.packed([np.arange(6, 12), np.array([], int), np.arange(20, 23)], groups=1, rows=2, length=16)

    def total(params, tokens):
        x = embed(definition, params, tokens)
        return jnp.sum(x * x[:, ::-1]), x

    gradient, x = jax.jit(jax.grad(total, has_aux=True))(small[1], tokens)
    assert np.all(np.asarray(x)[0, 1] == 0.0)
    assert np.all(np.isfinite(x)) and all(np.all(np.isfinite(g)) for g in gradient.values())


def test_rows_that_are_all_padding_change_nothing(small):
    sequences = cases.random_sequences(4)
    tight, wide = (cases.packed(sequences, groups=1, rows=rows) for rows in (3, 7))
    np.testing.assert_allclose(jitted_embed(*small, tight), jitted_embed(*small, wide), atol=1e-6)


def test_rematerialisation_changes_no_value_and_no_gradient(small):
    definition, params = small
    tokens = cases.packed(cases.random_sequences(4), groups=2, rows=3)
    weights = jax.random.normal(jax.random.key(2), (2, 2, 8))

    def loss(params, tokens, key, remat):
        return jnp.sum(embed(definition, params, tokens, key=key, remat=remat) * weights)

    gradient = jax.jit(jax.value_and_grad(loss), static_argnums=3)
    plain, again = (gradient(params, tokens, jax.random.key(1), remat) for remat in (False, True))
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), plain, again)


def test_bfloat16_stays_close_and_results_are_float32(small):
    tokens = cases.padded(cases.random_sequences(6))
    exact = np.asarray(jitted_embed(*small, tokens))[:, 0]
    rounded = jitted_embed(*small, tokens, compute_dtype=jnp.bfloat16)
    assert rounded.dtype == jnp.float32
    rounded = np.asarray(rounded)[:, 0]
    assert 1e-6 < np.abs(exact - rounded).max() < 0.02
    assert (unit(exact) * unit(rounded)).sum(-1).min() > 0.999


def test_bfloat16_hidden_states_are_kept_as_such_for_the_backward_pass(small):
    """The float32 arrays that remain are those of attention and of the embeddings."""
    definition, params = small
    tokens = cases.padded(cases.random_sequences(4, longest=20), length=24)

    def kept(dtype):
        def backward(params):
            return jax.vjp(lambda params: embed(definition, params, tokens, compute_dtype=dtype), params)[1]

        backward = jax.eval_shape(backward, params)
        arrays = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape[:3] == (4, 1, 24) and leaf.ndim == 4]
        return [array for array in arrays if array.dtype == jnp.float32 and array.shape[-1] in (16, 24)]

    assert len(kept(jnp.bfloat16)) < len(kept(jnp.float32)) / 4


def test_bfloat16_gradients_follow_the_float32_ones(small):
    definition, params = small
    tokens = cases.packed(cases.random_sequences(4), groups=2, rows=3)
    weights = jax.random.normal(jax.random.key(2), (2, 2, 8))

    def loss(params, tokens, dtype):
        return jnp.sum(embed(definition, params, tokens, compute_dtype=dtype) * weights)

    gradient = jax.jit(jax.grad(loss), static_argnums=2)
    exact, rounded = (gradient(params, tokens, dtype) for dtype in (jnp.float32, jnp.bfloat16))
    both = [np.concatenate([np.ravel(g[path]) for path in exact]) for g in (exact, rounded)]
    assert np.corrcoef(*both)[0, 1] > 0.999


def test_dropout_depends_on_its_key_and_is_off_without_one(small):
    tokens = cases.padded(cases.random_sequences(6))
    first, again, other = (jitted_embed(*small, tokens, key=jax.random.key(seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert np.abs(np.asarray(first) - np.asarray(other)).max() > 1e-3
    assert np.abs(np.asarray(first) - np.asarray(jitted_embed(*small, tokens))).max() > 1e-3


def test_dropout_keeps_the_mean_and_the_rate():
    from jaxdistill.encoders.layers import dropout

    dropped = np.asarray(dropout(jnp.ones((400, 500)), 0.1, jax.random.bits(jax.random.key(0), (4, 2), jnp.uint32), 3))
    assert abs((dropped == 0).mean() - 0.1) < 0.003
    assert abs(dropped.mean() - 1.0) < 0.003


def test_drophead_drops_whole_heads_of_a_sentence_and_scales_the_others():
    from jaxdistill.encoders.layers import drophead

    owner = jnp.asarray([[[0, 0, 1, 1, 1, -1], [2, 2, 2, 2, -1, -1]]] * 200, jnp.int32)
    seed = jax.random.bits(jax.random.key(0), (2,), jnp.uint32)
    scale = np.asarray(drophead(0.3, seed, owner, sentences=3, heads=4))
    first = scale[np.asarray(owner) == 0].reshape(200, 2, 4)
    assert np.array_equal(first[:, 0], first[:, 1]), "all tokens of a sentence share a draw"
    assert not np.array_equal(scale[:, 0, 0], scale[:, 0, 2]), "another sentence has another"
    kept = (scale > 0).sum(-1, keepdims=True)
    np.testing.assert_allclose(scale[scale > 0], np.broadcast_to(4 / np.maximum(kept, 1), scale.shape)[scale > 0])
    assert abs((scale[:, :, 0] == 0).mean() - 0.3) < 0.05


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
        kept = np.array([0.0 if head in dropped else heads / max(heads - len(dropped), 1) for head in range(heads)])
        by_row = np.repeat(kept, definition.architecture.hidden_size // heads)[:, None].astype(np.float32)
        candidates[dropped] = np.asarray(jitted_embed(definition, params | {path: params[path] * by_row}, tokens))
    seen = set()
    for seed in range(12):
        got = np.asarray(jitted_embed(dropping, params, tokens, key=jax.random.key(seed)))
        differences = {dropped: np.abs(got - vector).max() for dropped, vector in candidates.items()}
        nearest = min(differences, key=differences.get)
        assert differences[nearest] < 1e-5
        seen.add(nearest)
    assert len(seen) > 1
    assert np.array_equal(jitted_embed(dropping, params, tokens), candidates[()]), "off without a key"


LONG = dict(position_table=False, norm="rms", norm_place="pre", heads=4, key_heads=2, relative_buckets=0, layers=2)


@pytest.mark.parametrize(("window", "causal"), [(0, False), (0, True), (9, False)])
def test_long_rows_attend_in_blocks_and_give_the_same(small, monkeypatch, window, causal):
    kinds = (LayerKind(theta=100.0), LayerKind(theta=10.0, window=window))
    architecture = dataclasses.replace(small[0].architecture, **LONG, kinds=kinds, causal=causal)
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling(tokens="weightedmean"))
    params = init_params(definition, jax.random.key(0))
    tokens = cases.packed(cases.random_sequences(6, longest=400), groups=1, rows=4, length=600)

    def value(params):
        vectors = embed(definition, params, tokens)
        return jnp.sum(vectors * vectors[:, ::-1]), vectors

    in_blocks = jax.jit(jax.value_and_grad(value, has_aux=True))(params)
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 600)
    whole = jax.jit(jax.value_and_grad(lambda params: value(params), has_aux=True))(params)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), in_blocks, whole)


def test_a_row_of_8192_tokens_needs_no_square_array(small):
    kinds = (LayerKind(theta=100.0), LayerKind(theta=10.0, window=64))
    architecture = dataclasses.replace(small[0].architecture, **LONG, kinds=kinds)
    definition = EncoderDefinition(architecture=architecture, pooling=Pooling(tokens="mean"))
    tokens = cases.packed([np.arange(8192) % 90 + 6], groups=1, rows=1, length=8192)
    step = jax.jit(jax.grad(lambda params, key: jnp.sum(embed(definition, params, tokens, key=key)[..., 0])))
    params = jax.eval_shape(lambda: init_params(definition, jax.random.key(0)))
    compiled = step.lower(params, jax.eval_shape(lambda: jax.random.key(0))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 8192 * 8192 * 4


@pytest.mark.parametrize(("pooling", "key"), [("mean", 1), ("cls", None), ("pooler", None), ("max", None)])
def test_groups_on_eight_devices_need_no_collective_and_give_the_same(small, pooling, key):
    definition = with_pooling(small[0], pooling)
    key = None if key is None else jax.random.key(key)
    tokens = cases.packed(cases.random_sequences(16, longest=12), groups=8, rows=2, length=16)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("data",))
    split, whole = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    forward = jax.jit(lambda p, t, key: embed(definition, p, t, key=key), in_shardings=(whole, split, whole))
    compiled = forward.lower(small[1], tokens, key).compile()
    assert not re.search(r"all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter", compiled.as_text())
    alone = jitted_embed(definition, small[1], tokens, key=key)
    np.testing.assert_allclose(forward(small[1], tokens, key), alone, atol=1e-6)


def test_fresh_parameters_have_the_promised_shapes_and_spread(small):
    definition, params = small
    assert {path: array.shape for path, array in params.items()} == param_shapes(definition)
    assert abs(float(np.std(params["transformer/layers/0/intermediate/kernel"])) - 0.02) < 0.003
    assert float(np.abs(params["dense/0/kernel"]).max()) <= 16**-0.5
    assert np.all(np.asarray(params["transformer/embeddings/word/embedding"])[0] == 0)


def tokens_of(model, texts) -> Tokens:
    sequences = [encoding.ids for encoding in model.tokenizer.encode_batch_fast(texts)]
    length = -(-max(map(len, sequences)) // 8) * 8
    return cases.padded([np.asarray(s) for s in sequences], length=length)


@pytest.fixture(scope="module")
def reference():
    from sentence_transformers import SentenceTransformer

    from jaxdistill.encoders.locate import locate

    return SentenceTransformer(str(locate(TEACHER)), device="cpu")


TEXTS = ["A man is eating food.", "", "Zwei Hunde spielen im Schnee — 雪!", "word " * 400, " Spaces \t, CAPITALS "]


def test_minilm_equals_sentence_transformers(reference):
    model = load(TEACHER)
    assert np.abs(sentences(model, tokens_of(model, TEXTS)) - reference.encode(TEXTS)).max() <= TOLERANCE


def test_minilm_equals_sentence_transformers_on_a_thousand_real_sentences(reference, data_folder):
    import gzip

    with gzip.open(data_folder / "sts" / "stsb.dev.tsv.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t")[2] for line in list(file)[1:1001]]
    model = load(TEACHER)
    assert np.abs(sentences(model, tokens_of(model, texts)) - reference.encode(texts)).max() <= TOLERANCE


@pytest.mark.parametrize("text", ["median", "mean:top", "mean:last4:sum", "mean:last2:mean:x", "pooler:last2"])
def test_unknown_pooling_is_refused_with_the_choices(text):
    with pytest.raises(InputError, match="pooling.*(choose from|use pooler or cls)"):
        Pooling.parse(text)


@pytest.mark.parametrize("text", ["cls", "mean:second_to_last", "max:all:concat"])
def test_pooling_prints_as_it_is_written(text):
    assert str(Pooling.parse(text)) == text


def test_definitions_that_do_not_fit_are_refused(small):
    architecture = small[0].architecture
    with pytest.raises(InputError, match="dense layer 0 reads 5 features, but is given 16"):
        EncoderDefinition(
            architecture=architecture, pooling=Pooling(tokens="mean"), dense=(Dense(in_features=5, out_features=3),)
        )
    with pytest.raises(InputError, match="hidden_size=10 is not divisible by heads=3"):
        Architecture(
            family="bert", vocab_size=9, hidden_size=10, layers=1, heads=3, intermediate_size=8, max_positions=8
        )
