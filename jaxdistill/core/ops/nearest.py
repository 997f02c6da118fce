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
    queries: Float[np.ndarray, "q e"], blocks: Iterable[Float[np.ndarray, "_ e"]], *, count: int, dot: bool = False
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """Similarities and indices of the `count` rows that are most similar to each query, best first.
    `blocks` are the rows in consecutive blocks; only one block and its similarities are in memory at a time. Similarity is the cosine,
    or with `dot` the dot product; a zero vector has cosine 0 to every vector. Rows of equal similarity are ordered by index. If there
    are fewer than `count` rows, all are returned."""
    best_scores = np.zeros((len(queries), 0), np.float32)
    best_rows = np.zeros((len(queries), 0), np.int64)
    queries = np.asarray(queries, np.float32)
    chunks = [queries[start : start + QUERY_ROWS] for start in range(0, len(queries), QUERY_ROWS)]
    first_row = 0
    for block in blocks:
        block = np.asarray(block, np.float32)
        results = [_nearest_in(chunk, block, count=min(count, len(block)), dot=dot) for chunk in chunks]
        block_scores, block_rows = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
        # Earlier rows come first, and the stable sort keeps their order on ties.
        scores = np.concatenate([best_scores, block_scores], axis=1)
        rows = np.concatenate([best_rows, block_rows + first_row], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        best_scores = np.take_along_axis(scores, order, axis=1)
        best_rows = np.take_along_axis(rows, order, axis=1)
        first_row += len(block)
    return best_scores, best_rows


def nearest_others(vectors: Float[np.ndarray, "n e"], *, count: int) -> Integer[np.ndarray, "n best"]:
    """Indices of the `count` other rows with the largest cosine similarity to each row, best first."""
    blocks = (vectors[start : start + BLOCK_ROWS] for start in range(0, len(vectors), BLOCK_ROWS))
    _, rows = nearest(vectors, blocks, count=count + 1)
    # Drops the last column, to which the stable sort moves each row's match with itself. If enough equal rows precede that
    # match, it is not among the best, and the worst of these is dropped.
    is_itself = rows == np.arange(len(vectors))[:, None]
    order = np.argsort(is_itself, axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(rows, order, axis=1)


def scores_of_pairs(
    queries: Any,
    rows: Any,
    query_indices: Integer[np.ndarray, " pairs"],
    row_indices: Integer[np.ndarray, " pairs"],
    *,
    dot: bool = False,
) -> Float[np.ndarray, " pairs"]:
    """Cosine (0 for a zero vector) or `dot` product of each pair of a query and a row; both arrays `[n, e]` may be on disk."""
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
    """`nearest` among the rows of one block."""
    if not dot:
        queries, block = unit(queries), unit(block)
    best, indices = jax.lax.top_k(products(queries, block), count)
    return best, indices
