"""Multiplies matrices in the compute dtype, forward and backward.

Operands are cast to the compute dtype; sums and results stay float32. TPUs, GPUs and CPUs with bf16 units run this form
natively. JAX's own transpose rule would multiply by the float32 cotangent in the backward pass; the rule here casts it.
"""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float

from jaxdistill.core import Array, Precision

MIN_SIZE = 64
"""Least number of tokens, and least width, for which `_with_transposed_copy` pays off."""


def product(
    x: Float[Array, "... i"], kernel: Float[Array, "i o"], *, compute_dtype: DTypeLike
) -> Float[Array, "... o"]:
    """`x @ kernel` with operands in `compute_dtype` and a float32 result.
    For float32 it requests the highest precision, because TPUs and GPUs round operands by default."""
    if jnp.dtype(compute_dtype) == jnp.float32:
        return jnp.matmul(x.astype(jnp.float32), kernel.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    # The backward pass returns each gradient in the dtype of its operand.
    return _rounded_product(x, kernel, jnp.dtype(compute_dtype).name, (x.dtype.name, kernel.dtype.name))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rounded_product(x, kernel, compute_dtype, operand_dtypes):
    return _forward(x, kernel, compute_dtype, operand_dtypes)[0]


def _forward(x, kernel, compute_dtype, operand_dtypes):
    rounded = (x.astype(compute_dtype), kernel.astype(compute_dtype))
    return jnp.matmul(*rounded, preferred_element_type=jnp.float32), rounded


def _backward(compute_dtype, operand_dtypes, rounded, cotangent):
    x, kernel = rounded  # [..., i], [i, o]
    cotangent = computed_once(cotangent.astype(compute_dtype))  # [..., o], which both products below read
    d_x = jnp.einsum("...o,io->...i", cotangent, kernel, preferred_element_type=jnp.float32)
    x = x.reshape(-1, x.shape[-1])
    cotangent = cotangent.reshape(-1, cotangent.shape[-1])
    summed_over_tokens = partial(jnp.einsum, "ti,to->io", preferred_element_type=jnp.float32)
    if min(*x.shape, *kernel.shape) < MIN_SIZE or not has_bfloat16_units():
        d_kernel = summed_over_tokens(x, cotangent)
    else:
        d_kernel = jax.lax.platform_dependent(x, cotangent, cpu=_with_transposed_copy, default=summed_over_tokens)
    return d_x.astype(operand_dtypes[0]), d_kernel.astype(operand_dtypes[1])


_rounded_product.defvjp(_forward, _backward)


def _with_transposed_copy(x: Float[Array, "t i"], y: Float[Array, "t o"]) -> Float[Array, "i o"]:
    """`x.T @ y`, with the narrower operand copied so that tokens are its last axis.
    XLA's CPU backend uses the processor's bfloat16 units only if the first operand's rows are contiguous; otherwise it
    converts both operands to float32. Barriers keep the compiler from folding the copy back into the product."""
    if x.shape[1] > y.shape[1]:
        return _with_transposed_copy(y, x).T
    # The leading axis gives the copy the default layout, in which its rows are contiguous.
    copy = jax.lax.optimization_barrier(x.T[None])[0]
    return jax.lax.optimization_barrier(jnp.matmul(copy, y, preferred_element_type=jnp.float32))


def computed_once(x: Array) -> Array:
    """Returns `x` behind a barrier, without which XLA's TPU compiler computes it again in each product that reads it."""
    return jax.lax.platform_dependent(x, cpu=lambda x: x, default=jax.lax.optimization_barrier)


def dtype_of(precision: Precision) -> np.dtype:
    """The dtype of matrix products; `auto` is bfloat16 if the hardware multiplies it natively."""
    if precision == "auto":
        precision = "bfloat16" if has_bfloat16_units() else "float32"
    return jnp.dtype(precision)


def has_bfloat16_units() -> bool:
    """Whether the hardware multiplies bfloat16 natively: TPUs, GPUs, and CPUs with AMX or AVX512-BF16."""
    if jax.default_backend() != "cpu":
        return True
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    return "amx_bf16" in flags or "avx512_bf16" in flags
