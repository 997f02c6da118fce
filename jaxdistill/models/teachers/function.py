"""A teacher that is your own function of texts, such as a service's API."""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Count, CountOrNone, InputError
from jaxdistill.core.plugins import load_module, source_digests
from jaxdistill.models.teacher import ModelContext, OutsideVectors

functions: dict[str, Callable[..., Any]] = {}
"""Functions from Python by their names, see `Function.of`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function(OutsideVectors):
    """Your own function from a list of texts to an array with one vector for each text. If it has an argument `role`, it also gets
    `query`, `document` or an empty string. A resumed run calls it only for unfinished blocks."""

    kind: str = "function"
    function: str = dataclasses.field(default="", kw_only=False)
    """`FILE.py:NAME` or `MODULE:NAME`."""
    dims: CountOrNone = 0
    """Width of its vectors."""
    batch_size: Count = 64
    """Maximum texts per call; all of them have the same role."""

    given_by = "function"

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str, **options: Any) -> "Function":
        """The teacher of a function in Python, with other options of the class. Stored vectors are found by `name`, any text without
        a colon: give another name when the vectors change."""
        functions[name] = function
        return cls(name, **options)

    def check(self) -> None:
        if not self.dims:
            raise InputError("teacher.dims=0: give the width of its vectors, such as --config.teacher.dims=768.")

    def load(self, context: ModelContext) -> tuple[()]:
        self._callable()  # for its error: a missing function is refused before any text is read
        return ()

    def vector_width(self) -> int:
        return self.dims

    def digest(self) -> str:
        file, _, name = self.function.rpartition(":")
        return f"function {source_digests([file])[file] if file else ''} {name} {self.dims}"

    @property
    def texts_per_call(self) -> int:
        return self.batch_size

    def embed(self, texts: Sequence[str], role: str) -> Float[np.ndarray, "n e"]:
        function = self._callable()
        has_role = "role" in inspect.signature(function).parameters
        return np.asarray(function(texts, role=role) if has_role else function(texts), np.float32)

    def _callable(self) -> Callable[..., Any]:
        file, _, name = self.function.rpartition(":")
        found = getattr(load_module(file), name, None) if file else functions.get(name)
        if not callable(found):
            raise InputError(
                f"teacher.function={self.function!r} is no function; give FILE.py:NAME, MODULE:NAME or, in Python, Function.of(...)."
            )
        return found
