"""Attention in one kernel on TPUs: equal to plain attention in interpret mode, and used where it is faster."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.core.cluster.mesh import make_mesh
from jaxdistill.encoders import attention, fused
from jaxdistill.encoders.architecture import EncoderDefinition, Pooling
from jaxdistill.encoders.sentence import embed

import encoder_cases as cases

ONE = make_mesh(devices=jax.devices()[:1])


def inputs(slots: int, shared: int, dtype):
    """Queries, keys, values and owners of rows whose last slots are padding."""
    random = np.random.default_rng(slots)
    between = (shared,) if shared else ()
    query = 0.3 * random.standard_normal((2, 1, slots, 2, *between, 8))
    keys, value = (random.standard_normal((2, 1, slots, 2, 8)) for _ in range(2))
    owner = -np.sort(-random.integers(-1, 4, (2, 1, slots)), axis=-1)
    return *(jnp.asarray(x, dtype) for x in (query, keys, value)), jnp.asarray(owner, jnp.int32)


def plain(query, keys, value, owner, *, window: int, causal: bool):
    """Attention as in the papers, in float32."""
    query, keys, value = (x.astype(jnp.float32) for x in (query, keys, value))
    slots = np.arange(owner.shape[-1])
    mask = attention.attention_mask(owner, owner, slots, slots, window, causal=causal)
    query = query.reshape(*keys.shape[:4], -1, keys.shape[-1])
    scores = jnp.einsum("grqhus,grkhs->grhuqk", query, keys) + mask[:, :, :, None]
    mixed = jnp.einsum("grhuqk,grkhs->grqhus", jax.nn.softmax(scores, axis=-1), value)
    return mixed.reshape(*owner.shape, -1, keys.shape[-1])


@pytest.mark.parametrize(
    ("slots", "window", "causal", "shared", "dtype", "allowed"),
    [
        (300, 40, False, 0, jnp.float32, 1e-5),  # padding slots are added and ignored
        (640, 64, True, 0, jnp.float32, 1e-5),  # several blocks, most of them outside the window
        (256, 0, True, 2, jnp.float32, 1e-5),  # queries that share their keys
        (256, 0, False, 0, jnp.bfloat16, 1e-2),
    ],
)
def test_the_kernel_equals_plain_attention(slots, window, causal, shared, dtype, allowed):
    *operands, owner = inputs(slots, shared, dtype)
    kernel = partial(fused.fused, owner=owner, window=window, causal=causal, interpret=True)

    def outcome(function):
        output, pullback = jax.vjp(lambda *operands: function(*operands).astype(jnp.float32), *operands)
        return output, *pullback(jnp.sin(jnp.arange(output.size, dtype=jnp.float32)).reshape(output.shape))

    references = jax.jit(lambda: outcome(partial(plain, owner=owner, window=window, causal=causal)))()
    with jax.set_mesh(ONE):
        outputs = jax.jit(lambda: outcome(kernel))()
    for value, target in zip(outputs, references, strict=True):
        scale = float(jnp.max(jnp.abs(target.astype(jnp.float32))))
        np.testing.assert_allclose(value.astype(jnp.float32), target.astype(jnp.float32), rtol=0, atol=allowed * scale)


def test_an_encoder_on_several_devices_uses_the_kernel_and_finds_the_same_vectors(monkeypatch):
    small, params = cases.small_encoder()
    # The kernel has no relative positions.
    architecture = dataclasses.replace(small.architecture, relative_buckets=0, layers=1)
    model = EncoderDefinition(architecture=architecture, pooling=Pooling(tokens="mean"))
    long = cases.packed(cases.random_sequences(8), groups=2, rows=1, length=256)
    expected = cases.jitted_embed(model, params, long)
    monkeypatch.setattr(attention, "should_fuse", lambda *_: True)
    monkeypatch.setattr(attention, "fused", partial(fused.fused, interpret=True))
    with jax.set_mesh(make_mesh(devices=jax.devices()[:4], model_axis=2)):
        actual = jax.jit(partial(embed, model))(params, long)
    np.testing.assert_allclose(actual, expected, atol=1e-5)
