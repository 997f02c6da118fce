"""Matrix products in bfloat16: values and gradients, whichever form the processor's units call for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdistill.core.ops import dense
from jaxdistill.encoders import layers

SHAPES = [
    ((2, 5, 16, 96), 160),  # tokens in rows; the first operand is the narrower one
    ((256, 192), 64),  # the second one is
    ((64, 64), 64),
    ((130, 65), 67),
    ((3, 8), 1),  # too small for a copy
    ((1, 128), 128),
]


def operands(shape: tuple[int, ...], outputs: int):
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [shape, (shape[-1], outputs), (*shape[:-1], outputs)]
    x, kernel, cotangent = (jax.random.normal(key, array_shape) for key, array_shape in zip(keys, shapes, strict=True))
    return x, kernel, cotangent


def gradients(x, kernel, cotangent):
    """With respect to input and kernel, in bfloat16; the kernel's is also used transposed, as a later fusion might."""
    pullback = jax.vjp(lambda x, kernel: dense.product(x, kernel, compute_dtype=jnp.bfloat16), x, kernel)[1]
    of_x, of_kernel = pullback(cotangent)
    return of_x, of_kernel, of_kernel.T * 2.0


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize(("shape", "outputs"), SHAPES)
def test_gradients_are_products_of_rounded_operands_with_float32_sums(monkeypatch, shape, outputs, units):
    monkeypatch.setattr(dense, "has_bfloat16_units", lambda: units)
    arrays = operands(shape, outputs)
    of_x, of_kernel, transposed = jax.jit(gradients)(*arrays)
    x, kernel, cotangent = (np.asarray(array.astype(jnp.bfloat16), np.float64) for array in arrays)
    exact = x.reshape(-1, shape[-1]).T @ cotangent.reshape(-1, outputs)
    np.testing.assert_allclose(of_x, cotangent @ kernel.T, atol=1e-4)
    np.testing.assert_allclose(of_kernel, exact, atol=1e-4)
    np.testing.assert_allclose(transposed, 2.0 * exact.T, atol=2e-4)


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("grqhs,grkhs->grhqk", [(2, 3, 9, 2, 4), (2, 3, 7, 2, 4)]),
        ("grhquk,grkhs->grqhus", [(2, 1, 2, 5, 3, 7), (2, 1, 7, 2, 4)]),
    ],
)
def test_contractions_of_attention_are_einsums_of_rounded_operands(monkeypatch, equation, shapes, units):
    monkeypatch.setattr(layers, "has_bfloat16_units", lambda: units)
    random = np.random.default_rng(0)
    a, b = (jnp.asarray(random.normal(size=shape), jnp.bfloat16) for shape in shapes)
    out, pullback = jax.vjp(lambda a, b: layers.contraction(equation, a, b, jnp.bfloat16), a, b)
    cotangent = jnp.asarray(random.normal(size=out.shape), jnp.bfloat16).astype(jnp.float32)
    of_a, of_b = jax.jit(pullback)(cotangent)
    terms, result = equation.split("->")
    left, right = terms.split(",")
    a, b, cotangent = (np.asarray(x, np.float64) for x in (a, b, cotangent))
    np.testing.assert_allclose(out, np.einsum(equation, a, b), atol=1e-4)
    for actual, exact in (
        (of_a, np.einsum(f"{result},{right}->{left}", cotangent, b)),
        (of_b, np.einsum(f"{left},{result}->{right}", a, cotangent)),
    ):
        np.testing.assert_allclose(np.float64(actual), exact, rtol=2**-8, atol=1e-2)
