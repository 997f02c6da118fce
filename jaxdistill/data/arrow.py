"""Arrays of Arrow from numbers and texts, and back.

`pyarrow.array` and `to_numpy` would import pandas first, which takes 0.3 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Shaped

if TYPE_CHECKING:
    import pyarrow


def of_numbers(numbers: Shaped[np.ndarray, "..."]) -> "pyarrow.Array":
    """The numbers, row after row, without a copy."""
    import pyarrow

    flat = np.ascontiguousarray(numbers).ravel()
    kind = pyarrow.from_numpy_dtype(flat.dtype)
    return pyarrow.Array.from_buffers(kind, flat.size, [None, pyarrow.py_buffer(flat)])


def of_texts(texts: Sequence[str]) -> "pyarrow.LargeStringArray":
    """The texts, none of them null."""
    import pyarrow

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return pyarrow.LargeStringArray.from_buffers(
        len(texts), pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))
    )


def numbers_of(numbers: "pyarrow.Array") -> Shaped[np.ndarray, " n"]:
    """The numbers, of which none is null, as a read-only view."""
    dtype = np.dtype(numbers.type.to_pandas_dtype())  # a NumPy type, in spite of its name
    return np.frombuffer(numbers.buffers()[-1], dtype, count=len(numbers), offset=numbers.offset * dtype.itemsize)
