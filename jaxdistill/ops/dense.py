"""Matrix products in the compute dtype, forward and backward.

Operands are cast to the compute dtype, sums stay in float32, and so does the result: the form that TPUs, GPUs and CPUs
with bf16 units all run natively. JAX's own transpose rule would multiply the float32 cotangent in the backward pass;
the rule given here casts it first.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def product(
    x: Float[Array, "... i"], kernel: Float[Array, "i o"], *, compute_dtype: DTypeLike
) -> Float[Array, "... o"]:
    """`x @ kernel` with operands in `compute_dtype` and a float32 result.

    float32 means float32: by default, TPUs and GPUs would round the operands.
    """
    if jnp.dtype(compute_dtype) == jnp.float32:
        return jnp.matmul(x.astype(jnp.float32), kernel.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    return _product(x, kernel, jnp.dtype(compute_dtype).name, (x.dtype.name, kernel.dtype.name))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x, kernel, dtype, given):
    return jnp.matmul(x.astype(dtype), kernel.astype(dtype), preferred_element_type=jnp.float32)


def _forward(x, kernel, dtype, given):
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32), (x, kernel)


def _backward(dtype, given, saved, cotangent):
    x, kernel = saved
    cotangent = cotangent.astype(dtype)
    d_x = jnp.einsum("...o,io->...i", cotangent, kernel, preferred_element_type=jnp.float32)
    d_kernel = jnp.einsum("...i,...o->io", x, cotangent, preferred_element_type=jnp.float32)
    return d_x.astype(given[0]), d_kernel.astype(given[1])


_product.defvjp(_forward, _backward)


def has_bfloat16_units() -> bool:
    """Whether products of bfloat16 numbers are fast here: on TPUs, on GPUs, and on CPUs with AMX or AVX512-BF16."""
    if jax.default_backend() != "cpu":
        return True
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = file.read()
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags
