"""Finds duplicate rows, and rows of excluded files, by 8-byte hashes of their text.

Among 100 million different rows, two share a key with a probability of 0.03 %.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, UInt64

from jaxdistill.core import SECOND, errors_of
from jaxdistill.data.columns import TEXT
from jaxdistill.data.text import read

IDENTITY = (TEXT, SECOND)
"""Columns that identify a row for `data.exclude`, in either order."""

Keys: TypeAlias = UInt64[np.ndarray, " rows"]


def text_key(text: str) -> int:
    """Hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def row_key(cells: Sequence[str], ordered: Sequence[str] = ()) -> int:
    """Hash of a row that ignores case, surrounding white space, and the order of `cells` but not of `ordered`."""
    folded = [[cell.strip().casefold() for cell in part] for part in (cells, ordered)]
    return text_key("\0".join([*sorted(folded[0]), *folded[1]]))


def identifying(columns: Collection[str], *, chunked: bool) -> list[str]:
    """The columns that decide whether two rows are equal; with chunks, rows have a single column."""
    return [name for name in IDENTITY[: 1 if chunked else None] if name in columns]


def excluded_keys(specs: Sequence[str], identity: Mapping[str, str], cache: str = "") -> Keys:
    """The distinct `row_key`s of the rows of `data.exclude`, ascending, computed from the columns `identity`."""
    with errors_of("data.exclude"):
        return np.unique(np.fromiter((row_key(row) for row in read(specs, identity, cache=cache)), np.uint64))


def are_repeats(keys: Keys, kept: Bool[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Whether each row repeats the key of an earlier kept row."""
    rows = np.flatnonzero(kept)
    repeats = np.zeros(len(keys), bool)
    repeats[rows] = True
    repeats[rows[np.unique(keys[rows], return_index=True)[1]]] = False  # `unique` gives first occurrences
    return repeats
