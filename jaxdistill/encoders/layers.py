"""Building blocks that transformers share: dense layer, embedding table, norm, dropout, batched contraction.

Matrix products run in the compute dtype with float32 sums. A dense layer returns the dtype of its input; contractions, norms
and tables return float32. Parameters may be bfloat16, as in the checkpoint.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Float, Integer

from jaxdistill.core import Array, Tokens
from jaxdistill.core.ops.dense import has_bfloat16_units, product

normal = nnx.initializers.normal(stddev=0.02)
"""Draws fresh weights of all families (`initializer_range`)."""


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The exact GELU. `jax.nn.gelu` writes it with erfc, which takes more passes than erf on a CPU."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))


ACTIVATION_FUNCTIONS = {
    "gelu": gelu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}


def expanded(vector: Float[Array, " d"], like: Float[Array, "... d"]) -> Float[Array, "... d"]:
    """`vector` with leading axes of length 1 up to the rank of `like`, because the package allows no implicit rank promotion."""
    return jnp.expand_dims(vector, tuple(range(like.ndim - vector.ndim)))


def drawn(rngs: nnx.Rngs | None, initializer: Callable[..., jax.Array], *shape: int) -> nnx.Param:
    """A randomly initialised parameter; without `rngs`, its shape alone, because tracing a large model's draws takes seconds."""
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32) if rngs is None else initializer(rngs.params(), shape))


class Linear(nnx.Module):
    """`x @ kernel + bias` in the dtype of `x`."""

    def __init__(self, inputs: int, outputs: int, *, rngs: nnx.Rngs | None, bias: bool = True):
        self.kernel = drawn(rngs, normal, inputs, outputs)
        self.bias = nnx.Param(np.zeros(outputs, np.float32)) if bias else None

    def __call__(self, x: Float[Array, "... i"], compute_dtype: DTypeLike) -> Float[Array, "... o"]:
        y = product(x, self.kernel[...], compute_dtype=compute_dtype)
        if self.bias is not None:
            y = y + expanded(self.bias[...].astype(y.dtype), y)
        return y.astype(x.dtype)


class Table(nnx.Module):
    """An embedding table that returns float32 rows. `zero_row`, the padding token's row, is initialised with 0."""

    def __init__(self, rows: int, width: int, *, rngs: nnx.Rngs | None, zero_row: int | None = None):
        def zeroed(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
            return normal(key, shape).at[zero_row].set(0.0)

        self.embedding = drawn(rngs, normal if zero_row is None else zeroed, rows, width)

    def __call__(self, ids: Integer[Array, "..."]) -> Float[Array, "... d"]:
        return jnp.take(self.embedding[...], ids, axis=0, mode="clip").astype(jnp.float32)


class Norm(nnx.Module):
    """LayerNorm or RMSNorm in float32; `kind` is a value of `Architecture.norm`.

    The mean is subtracted before the variance is computed; in one pass for both, results would be more than 1e-5 off torch's.
    Not `nnx.LayerNorm`, which multiplies 1/deviation by the scale first and so keeps one more activation-sized array. Both statistics
    have names for `jax.checkpoint`, see `recompute_in_backward`.
    """

    def __init__(self, width: int, eps: float, kind: str = "layer"):
        self.eps = eps
        self.subtracts_mean = kind.startswith("layer")
        self.offset = 1.0 if kind == "rms_plus_one" else 0.0
        self.scale = nnx.Param(np.full(width, 1.0 - self.offset, np.float32))
        self.bias = nnx.Param(np.zeros(width, np.float32)) if kind == "layer" else None

    def __call__(self, x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        x = x.astype(jnp.float32)
        if self.subtracts_mean:
            x = x - checkpoint_name(jnp.mean(x, axis=-1, keepdims=True), "mean")
        inverse_deviation = jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.eps)
        x = x * checkpoint_name(inverse_deviation, "inverse deviation")
        scale = self.scale[...].astype(jnp.float32) + self.offset
        x = x * expanded(scale, x)
        return x if self.bias is None else x + expanded(self.bias[...].astype(jnp.float32), x)


def dropout(
    x: Float[Array, "..."], rate: float, seeds: Integer[Array, "sites 2"] | None, site: int
) -> Float[Array, "..."]:
    """Zeroes elements of `x` with probability `rate` and multiplies all others by 1 / (1 - rate).

    The mask depends only on the seeds and on an element's index in the whole array, so it is the same for every
    sharding of `x` and on every kind of device.

    Args:
      seeds: two random 32-bit numbers for each place in the network that has dropout (a site); None: no dropout.
      site: index of this site.
    """
    if seeds is None or rate == 0.0:
        return x
    is_kept = random_bits(x.shape, seeds[site]) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(is_kept, x / (1.0 - rate), 0.0)


def drophead(rate: float, seed: Integer[Array, " 2"], tokens: Tokens, *, heads: int) -> Float[Array, "g r l h"]:
    """DropHead's factor of each head's output: 0 with probability `rate`, and heads / (kept heads) for a kept head.

    All tokens of a sentence drop the same heads. A sentence that drops every head gets zeros from attention, where DropHead's
    code would divide by 0. As in `dropout`, masks depend only on the seed and on a sentence's index in the batch.

    Source: Zhou et al., Scheduled DropHead, Findings of EMNLP 2020; github.com/Kirill-Kravtsov/drophead-pytorch for the factors.
    """
    groups, rows, length = tokens.owner.shape
    is_kept = random_bits((*tokens.first.shape, heads), seed) >= jnp.uint32(round(rate * 2**32))
    kept_count = jnp.sum(is_kept, axis=-1, keepdims=True, dtype=jnp.int32)
    scale = jnp.where(is_kept, jnp.float32(heads) / jnp.maximum(kept_count, 1).astype(jnp.float32), 0.0)  # [g n h]
    # Each token takes its sentence's factors; padding, whose outputs are not used, those of sentence 0.
    sentence = jnp.maximum(tokens.owner, 0).reshape(groups, rows * length, 1)
    return jnp.take_along_axis(scale, sentence, axis=1).reshape(groups, rows, length, heads)


def random_bits(shape: tuple[int, ...], seed: Integer[Array, " 2"]) -> Integer[Array, "..."]:
    """Pseudo-random 32-bit numbers from two rounds of an integer hash of each element's index, seeded anew for each round.

    Good enough for dropout. `jax.random`'s threefry takes ten times as many operations: with it, a MiniLM step on a CPU takes
    a third longer and compiles several times as long.

    Source: the constants of Wellons' `lowbias32`, https://nullprogram.com/blog/2018/07/31/.
    """
    x = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    for round_index in range(2):
        x = x ^ seed[round_index]
        x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
        x = (x ^ (x >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
        x = x ^ (x >> jnp.uint32(16))
    return x


def contraction(equation: str, left: Array, right: Array, compute_dtype: DTypeLike) -> Float[Array, "..."]:
    """`einsum(equation, left, right)` with operands in `compute_dtype` and float32 sums, in the backward pass too.

    Every letter must occur in at least two of the equation's three terms, so that both gradients are einsums of that kind.
    """
    if jnp.dtype(compute_dtype) == jnp.float32:
        return jnp.einsum(equation, left, right, precision=jax.lax.Precision.HIGHEST)
    left_dtype, right_dtype = left.dtype, right.dtype  # of the gradients
    left_axes, right_axes, out_axes = equation.replace("->", ",").split(",")

    def forward(left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
        rounded = (left.astype(compute_dtype), right.astype(compute_dtype))
        return _rounded_einsum(equation, *rounded), rounded

    def backward(rounded: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
        left, right = rounded
        cotangent = cotangent.astype(compute_dtype)
        d_left = _rounded_einsum(f"{out_axes},{right_axes}->{left_axes}", cotangent, right)
        d_right = _rounded_einsum(f"{left_axes},{out_axes}->{right_axes}", left, cotangent)
        return d_left.astype(left_dtype), d_right.astype(right_dtype)

    contract = jax.custom_vjp(lambda left, right: forward(left, right)[0])
    contract.defvjp(forward, backward)
    return contract(left, right)


def _rounded_einsum(equation: str, left: Array, right: Array) -> Array:
    """The einsum of bfloat16 operands, with float32 sums, in the form that is fast on the platform."""

    def on_cpu(left: Array, right: Array) -> Array:
        if has_bfloat16_units():
            return _einsum_of_copies(equation, left, right)
        return jnp.einsum(equation, left.astype(jnp.float32), right.astype(jnp.float32))

    on_accelerator = partial(jnp.einsum, equation, preferred_element_type=jnp.float32)
    return jax.lax.platform_dependent(left, right, cpu=on_cpu, default=on_accelerator)


def _einsum_of_copies(equation: str, left: Array, right: Array) -> Array:
    """The einsum as one batched matrix product of transposed copies.

    XLA's CPU backend cannot multiply batches of bfloat16 with a transposed operand and aborts when such a product runs.
    Barriers keep the compiler from folding the transpositions of operands and result into the product.
    """
    left_axes, right_axes, out_axes = equation.replace("->", ",").split(",")
    size = dict(zip(left_axes, left.shape, strict=True)) | dict(zip(right_axes, right.shape, strict=True))
    shared = [axis for axis in left_axes if axis in right_axes]
    batch = [axis for axis in shared if axis in out_axes]
    inner = [axis for axis in shared if axis not in out_axes]
    rows = [axis for axis in left_axes if axis not in right_axes]
    columns = [axis for axis in right_axes if axis not in left_axes]

    def merged(x: Array, axes: str, groups: Sequence[Sequence[str]]) -> Array:
        """A copy of `x` with one axis for each group of axes."""
        x = x.transpose([axes.index(axis) for group in groups for axis in group])
        return jax.lax.optimization_barrier(x.reshape([math.prod(size[axis] for axis in group) for group in groups]))

    left = merged(left, left_axes, (batch, rows, inner))
    right = merged(right, right_axes, (batch, inner, columns))
    result = jax.lax.optimization_barrier(jnp.matmul(left, right, preferred_element_type=jnp.float32))
    order = [*batch, *rows, *columns]  # the result's axes before the product merged them
    return result.reshape([size[axis] for axis in order]).transpose([order.index(axis) for axis in out_axes])
