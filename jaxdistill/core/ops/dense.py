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
"""Number of tokens and widths from which a transposed copy is worth making."""


def product(
    x: Float[Array, "... i"], kernel: Float[Array, "i o"], *, compute_dtype: DTypeLike
) -> Float[Array, "... o"]:
    """`x @ kernel` with operands in `compute_dtype` and a float32 result.

    For float32 it requests the highest precision, because TPUs and GPUs round operands by default.
    """
    if jnp.dtype(compute_dtype) == jnp.float32:
        return jnp.matmul(x.astype(jnp.float32), kernel.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    # The backward pass needs the operands' dtypes, to return gradients in them.
    return _product(x, kernel, jnp.dtype(compute_dtype).name, (x.dtype.name, kernel.dtype.name))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x, kernel, dtype, dtypes):
    return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)


def _forward(x, kernel, dtype, dtypes):
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32), (x, kernel)


def _backward(dtype, dtypes, saved, cotangent):
    x, kernel = saved
    cotangent = computed_once(cotangent.astype(dtype))
    d_x = jnp.einsum("...o,io->...i", cotangent, kernel, preferred_element_type=jnp.float32)
    x, y = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, cotangent.shape[-1])
    plain = partial(jnp.einsum, "ti,to->io", preferred_element_type=jnp.float32)
    if min(*x.shape, y.shape[1]) < MIN_SIZE or not has_bfloat16_units():
        d_kernel = plain(x, y)
    else:
        d_kernel = jax.lax.platform_dependent(x, y, cpu=_with_transposed_copy, default=plain)
    return d_x.astype(dtypes[0]), d_kernel.astype(dtypes[1])


_product.defvjp(_forward, _backward)


def _with_transposed_copy(x: Float[Array, "t i"], y: Float[Array, "t o"]) -> Float[Array, "i o"]:
    """`x.T @ y`, with the narrower operand copied so that tokens are its last axis.

    XLA's CPU backend uses the processor's bfloat16 units only if the first operand's rows are contiguous; otherwise it
    converts both operands to float32. Barriers keep the compiler from folding the copy back into the product.
    """
    narrow, wide = (x, y) if x.shape[1] <= y.shape[1] else (y, x)
    # The leading axis gives the copy the default layout.
    copy = jax.lax.optimization_barrier(narrow.T[None])[0]
    result = jax.lax.optimization_barrier(jnp.matmul(copy, wide, preferred_element_type=jnp.float32))
    return result if narrow is x else result.T


def computed_once(x: Array) -> Array:
    """Returns `x`, and makes accelerators compute it once. Otherwise XLA's TPU compiler computes it again inside each product that reads
    it, which makes programs larger and slower to compile."""
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
