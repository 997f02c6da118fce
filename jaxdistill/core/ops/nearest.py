"""Finds the rows of a large array that are most similar to a query, exactly and block by block."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import Array
from jaxdistill.core.ops.similarity import products, unit

QUERY_ROWS = 1024
"""Number of queries that `nearest` compares with a block at a time."""
BLOCK_ROWS = 50_000
"""Number of rows that `nearest_others` compares at a time."""
BLOCK_PAIRS = 8192
"""Number of pairs that `scores_of_pairs` scores at a time."""


def nearest(
    queries: Float[np.ndarray, "q e"], blocks: Iterable[Float[np.ndarray, "_ _"]], *, count: int, dot: bool = False
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """The `count` rows with the largest cosine similarity, or dot product, to each query: similarities and indices, best first.

    Vectors have any length; a zero vector has cosine 0 to all. Ties are ordered by index. There are fewer if there are fewer rows.

    Args:
      blocks: consecutive rows, read once; one block and its similarities are in memory at a time.
    """
    scores = np.zeros((len(queries), 0), np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    queries = np.asarray(queries, np.float32)
    chunks = [queries[start : start + QUERY_ROWS] for start in range(0, len(queries), QUERY_ROWS)]
    first_row = 0
    for block in blocks:
        block = np.asarray(block, np.float32)
        results = [_nearest_in(chunk, block, count=min(count, len(block)), dot=dot) for chunk in chunks]
        block_scores, indices = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        # Earlier rows come first, and the stable sort keeps their order on ties.
        scores = np.concatenate([scores, block_scores], axis=1)
        rows = np.concatenate([rows, indices + first_row], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores = np.take_along_axis(scores, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        first_row += len(block)
    return scores, rows


def nearest_others(vectors: Float[np.ndarray, "n e"], *, count: int) -> Integer[np.ndarray, "n best"]:
    """Indices of the `count` rows with the largest cosine similarity to each row, without itself, best first."""
    blocks = (vectors[at : at + BLOCK_ROWS] for at in range(0, len(vectors), BLOCK_ROWS))
    _, rows = nearest(vectors, blocks, count=count + 1)
    # The stable sort moves a row itself to the end, and the last column is dropped. If it is not among the best, because equal rows
    # precede it, the worst row is dropped.
    order = np.argsort(rows == np.arange(len(vectors))[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(rows, order, axis=1)


def scores_of_pairs(
    queries: Any,
    rows: Any,
    query_indices: Integer[np.ndarray, " pairs"],
    row_indices: Integer[np.ndarray, " pairs"],
    *,
    dot: bool = False,
) -> Float[np.ndarray, " pairs"]:
    """Cosine or dot product of each pair (index of a query, index of a row); 0 for a zero vector. Arrays may be on disk."""
    scores = np.zeros(len(query_indices), np.float32)
    for start in range(0, len(scores), BLOCK_PAIRS):
        block = slice(start, start + BLOCK_PAIRS)
        left, right = queries[query_indices[block]], rows[row_indices[block]]
        if not dot:
            left = left / np.maximum(np.linalg.norm(left, axis=1, keepdims=True), 1e-12)
            right = right / np.maximum(np.linalg.norm(right, axis=1, keepdims=True), 1e-12)
        scores[block] = np.einsum("ne,ne->n", left, right)
    return scores


@partial(jax.jit, static_argnames=("count", "dot"))
def _nearest_in(
    queries: Float[Array, "q e"], block: Float[Array, "n e"], *, count: int, dot: bool
) -> tuple[Float[Array, "q best"], Integer[Array, "q best"]]:
    if not dot:
        queries, block = unit(queries), unit(block)
    best, indices = jax.lax.top_k(products(queries, block), count)
    return best, indices
