"""Which vectors of an index are nearest to a query?"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from jaxdistill.core import Array, InputError

BLOCK_ROWS = 1024
"""Queries that are compared with all others at a time."""


def nearest(
    queries: Float[np.ndarray, "n e"], index: Float[np.ndarray, "k e"], *, count: int = 1, block_rows: int = BLOCK_ROWS
) -> tuple[Int[np.ndarray, "n c"], Float[np.ndarray, "n c"]]:
    """Rows of `index` with the largest inner products with each query, the largest first, and these products.

    Of equal ones the first comes first. Where the index has fewer rows than `count`, all are given.

    Raises:
      InputError: queries and index are of different widths.
    """
    if queries.shape[1] != index.shape[1]:
        raise InputError(
            f"the queries have {queries.shape[1]} numbers and the index {index.shape[1]}: an index of another model needs "
            "vectors of the same width; query it with a student that keeps its head."
        )
    candidates, count = jnp.asarray(index, jnp.float32), min(count, len(index))
    found = [
        _largest(jnp.asarray(queries[start : start + block_rows], jnp.float32), candidates, count=count)
        for start in range(0, len(queries), block_rows)
    ]
    products, rows = (np.concatenate(part) for part in zip(*found, strict=True))
    return rows, products


@partial(jax.jit, static_argnames="count")
@jax.default_matmul_precision("float32")
def _largest(queries: Float[Array, "n e"], index: Float[Array, "k e"], *, count: int):
    return jax.lax.top_k(queries @ index.T, count)
