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
"""Number of queries compared with a block at a time."""
BLOCK_ROWS = 50_000
"""Number of rows of an array in memory compared at a time."""
PAIRS = 8192
"""Number of pairs compared at a time."""


def nearest(
    queries: Float[np.ndarray, "q e"], blocks: Iterable[Float[np.ndarray, "_ _"]], *, count: int, dot: bool = False
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """The `count` rows with the largest cosine similarity to each query, best first.

    Args:
      queries: vectors of any length; a zero vector has cosine 0 to all rows.
      blocks: the rows in blocks, read once; one block and its similarities are in memory at a time.
      count: rows per query; fewer are returned if there are fewer.
      dot: compare by dot product instead.

    Returns:
      Cosines in [-1, 1] or dot products, and indices of rows; ties are ordered by index.
    """
    scores = np.zeros((len(queries), 0), np.float32)
    rows = np.zeros((len(queries), 0), np.int64)
    chunks = [np.asarray(queries[at : at + QUERY_ROWS], np.float32) for at in range(0, len(queries), QUERY_ROWS)]
    start = 0
    for block in blocks:
        block = np.asarray(block, np.float32)
        found = [_nearest_in(chunk, block, count=min(count, len(block)), dot=dot) for chunk in chunks]
        block_scores, block_rows = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        # Earlier rows come first, and the stable sort keeps their order on ties.
        scores = np.concatenate([scores, block_scores], axis=1)
        rows = np.concatenate([rows, block_rows + start], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores = np.take_along_axis(scores, order, axis=1)
        rows = np.take_along_axis(rows, order, axis=1)
        start += len(block)
    return scores, rows


def nearest_others(
    queries: Float[np.ndarray, "q e"], rows: Float[np.ndarray, "n e"], *, count: int
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """Like `nearest`, for queries that are the first of the rows: leaves out the row that has the query's index."""
    blocks = (rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS))
    cosines, nearest_rows = nearest(queries, blocks, count=count + 1)
    # The stable sort moves the query's own row to the end, and the last column is dropped. If the own row is not among
    # the best (equal rows precede it), that drops the worst one instead.
    order = np.argsort(nearest_rows == np.arange(len(queries))[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(nearest_rows, order, axis=1)


def overlap(first: Integer[np.ndarray, "q best"], second: Integer[np.ndarray, "q best"]) -> float:
    """Share of a query's rows in `first` that are also among its rows in `second`, in [0, 1]; the mean over queries."""
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())


def scores_of_pairs(
    queries: Any,
    rows: Any,
    query_indices: Integer[np.ndarray, " pairs"],
    row_indices: Integer[np.ndarray, " pairs"],
    *,
    dot: bool = False,
) -> Float[np.ndarray, " pairs"]:
    """Cosine, or with `dot` the dot product, of each pair of a query and a row; 0 for a zero vector.

    Args:
      queries, rows: vectors `[q, e]` and `[n, e]`; may be memory maps.
    """
    scores = np.zeros(len(query_indices), np.float32)
    for start in range(0, len(scores), PAIRS):
        block = slice(start, start + PAIRS)
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
    scores, indices = jax.lax.top_k(
        products(queries, block), count
    )  # in full precision: rounding could change the ranking
    return scores, indices
