"""Makes and searches the stored vectors of a corpus: small forms give candidates, which fuller vectors can re-rank.

Binary vectors are compared by Hamming distance to the query's bits, others by cosine with the float query.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import Float, Integer

from jaxdistill.core import InputError
from jaxdistill.data.passages import Corpus
from jaxdistill.data.sources import TEXT, local_files
from jaxdistill.data.vectors import END, ID, START, blocks, form_of, rows_at, shape
from jaxdistill.evals.similarity import unit_rows
from jaxdistill.inference import Embedder
from jaxdistill.inference.to_file import chunking_for, encode_parts, origin_of
from jaxdistill.ops.nearest import nearest, nearest_groups, scores_of_pairs
from jaxdistill.ops.small_vectors import as_read, cut, is_packed
from jaxdistill.paths import cache_folder

RESCORE = 4
"""Number of candidates to re-score for each wanted row."""
COMPARED = 8
"""Number of stored vectors that are compared with the model's own."""
ALIKE, ALIKE_BITS = 0.99, 0.9
"""Lowest cosine between two vectors of a sentence by one model in different precisions; lower for bits, because
rounding may flip the bits of numbers near 0."""


def corpus_vectors(
    embedder: Embedder,
    specs: Sequence[str],
    *,
    column: str,
    reads_as: Mapping[str, str],
    chunk_tokens: int = 0,
    progress: bool,
) -> tuple[Path, str]:
    """The cache folder with the corpus's vectors, computing missing ones; and a line that says how much of the text was cut
    off, empty if nothing was.

    Args:
      reads_as: the argument `prompt_name` or `role` of `encode_file`.
      chunk_tokens: above 0: encodes passages of at most this many tokens.
    """
    prefix = embedder.prefix(**reads_as)
    text = Corpus(specs, column, chunking_for(embedder, chunk_tokens, prefix) if chunk_tokens else None)
    origin = origin_of(embedder, text, column=column, prefix=prefix)
    if chunk_tokens:
        origin["files"] = list(map(str, local_files(specs)))  # paths are the ids of texts if each file is one text
    digest = hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:32]
    path, columns = cache_folder() / "vectors" / digest, (ID, START, END, TEXT) if chunk_tokens else ()
    made = encode_parts(embedder, text, path, origin, columns=columns, progress=progress)
    return path, made.loss(embedder.model.max_length, chunk_tokens=chunk_tokens)


def likeness(embedder: Embedder, vectors: Path, texts: Iterator[str], *, is_cut: bool) -> tuple[int, float | None]:
    """Compares the first stored vectors with the model's vectors of the texts as documents; returns their number and the
    lowest cosine, or None for the cosine if all match.

    Args:
      is_cut: whether the stored vectors have fewer dimensions than the model's.
    """
    form, known = form_of(vectors), next(blocks(vectors))[:COMPARED]
    own = embedder.encode(list(islice(texts, len(known))), role="document")
    own = as_read(form, own) if is_cut or form.dtype != "float32" else own
    rows = np.flatnonzero(own.any(axis=1) | known.any(axis=1))
    lowest = float(scores_of_pairs(own, known, rows, rows).min()) if len(rows) else 1.0
    return len(rows), None if lowest >= (ALIKE_BITS if is_packed(form.dtype) else ALIKE) else lowest


def nearest_stored(
    queries: Float[np.ndarray, "q e"],
    vectors: Path,
    *,
    count: int,
    rescore: int = RESCORE,
    full: Path | None = None,
    groups: Integer[np.ndarray, " n"] | None = None,
    dot: bool = False,
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """Cosines (dot products, with `dot`) and indices of the `count` nearest rows to each query, best first; ties are ordered by index.

    Args:
      queries: float vectors of the model's width.
      vectors: stored vectors of any form.
      rescore: above 0: re-scores `rescore * count` candidates by `full`, or, for binary vectors, by the cosine of the float
        query with their bits. 0: binary rows are compared with the query's bits only.
      full: vectors of the same rows at the model's full width.
      groups: the group of each row; only the best row of a group counts.
      dot: compare whole float vectors by dot product.
    """
    form = form_of(vectors)
    dot = dot and form.dtype == "float32" and form.dims == queries.shape[1]  # other forms are of unit vectors
    asked = queries if dot else cut(queries, form.dims)
    is_binary = form.dtype == "binary"
    again = bool(rescore) and (is_binary or full is not None)
    candidates, coded = count * rescore if again else count, as_read(form, asked) if is_binary else asked
    if groups is None:
        scores, rows = nearest(coded, blocks(vectors), count=candidates, dot=dot or is_binary)
    else:
        scores, rows = nearest_groups(coded, partial(blocks, vectors), groups, count=candidates, dot=dot or is_binary)
    if again:
        scores, rows = _rescored(queries if full else asked, full or vectors, rows, count=count)
    return scores / form.dims if is_binary and not again else scores, rows


def _rescored(
    queries: Float[np.ndarray, "q d"], vectors: Path, rows: Integer[np.ndarray, "q k"], *, count: int
) -> tuple[Float[np.ndarray, "q best"], Integer[np.ndarray, "q best"]]:
    """The nearest rows among each query's candidates."""
    rows = np.sort(rows, axis=1)  # the stable sort below keeps the order of ties
    wanted = np.unique(rows)
    known = unit_rows(rows_at(vectors, wanted)).astype(np.float32)
    asked = unit_rows(queries).astype(np.float32)
    places = np.searchsorted(wanted, rows)
    scores = np.stack([known[place] @ query for query, place in zip(asked, places, strict=True)])
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def check_full(full: Path, rows: int, width: int) -> None:
    """Raises `InputError` unless the full vectors have this number of rows and the model's width."""
    if shape(full) != (rows, width):
        raise InputError(
            f"--full_vectors={full} has {shape(full)[0]:,} vectors of {shape(full)[1]} numbers, but {rows:,} of {width} are "
            "needed; encode the same text with the same model and no --dims."
        )
