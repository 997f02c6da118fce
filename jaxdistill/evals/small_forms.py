"""Scores vectors as an index stores them: `--dims` and `--dtypes` of `evaluate`.

Sentences, both sides of a pair, and documents are stored, also those that `--index_model` reads. Queries of documents stay
float, as when `jaxdistill.search` re-scores its candidates. The ranges of int8 and centred come from a text in the package, so
that they depend on no test set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from jaxdistill.assets import HELDOUT
from jaxdistill.core import Embed, InputError
from jaxdistill.data.sources import read, split_specs
from jaxdistill.evals.evaluation import IndexModel, InRoles, Model, records_digest
from jaxdistill.ops.small_vectors import STEPS, Form, as_read, check_packable, checked_dims, cut, ranges_of


@dataclass(frozen=True, kw_only=True)
class SmallForm:
    """A form of vectors for any model, before the ranges are known."""

    dims: int
    """Number of leading dimensions to keep; 0: all."""
    dtype: str

    def __str__(self) -> str:
        return f"{self.dims} {self.dtype}" if self.dims else self.dtype

    def digests(self) -> list[str]:
        """Digests of what determines scores here."""
        return [str(self), *[records_digest(calibration())] * (self.dtype in STEPS)]

    def of(self, model: Model, width: int) -> Model:
        """The model with vectors encoded to and decoded from this form.

        Raises:
          InputError: vectors of `width` numbers cannot have this form.
        """
        dims = checked_dims(self.dims, width, self.dtype)
        own = self.stored(model.embed)
        in_roles = model.in_roles and InRoles(
            query=partial(_cut_query, model.in_roles.query, dims), document=own(model.in_roles.document)
        )
        index = model.index and IndexModel(*map(self.stored(model.index.embed), model.index))
        return replace(
            model,
            embed=own(model.embed),
            in_roles=in_roles,
            index=index,
            similarity="cosine",
            index_similarity="cosine",
        )

    def stored(self, embed: Embed) -> Callable[[Embed], Embed]:
        """Returns a function that gives an embed this form, with the ranges of the vectors of `embed`."""

        @cache
        def form(width: int) -> Form:
            sample = np.asarray(embed(calibration())) if self.dtype in STEPS else np.empty((0, width))
            dims = self.dims or width
            return Form(dims=dims, dtype=self.dtype, ranges=ranges_of(sample, dims, self.dtype))

        def encoded(other: Embed, sentences: Sequence[str], **roles: Any) -> np.ndarray:
            vectors = np.asarray(other(sentences, **roles))
            return as_read(form(vectors.shape[1]), vectors)

        return lambda other: partial(encoded, other)


def _cut_query(embed: Embed, dims: int, sentences: Sequence[str]) -> np.ndarray:
    return cut(np.asarray(embed(sentences)), dims)


@cache
def calibration() -> list[str]:
    """The sentences whose vectors determine the ranges of int8 and centred."""
    return [sentence for (sentence,) in read([HELDOUT])]


def small_forms(dims: str, dtypes: str) -> list[SmallForm | None]:
    """The requested forms, each width in each dtype; None stands for the model's own vectors.

    Raises:
      InputError: a width that is not a positive number, an unknown dtype, or bits that do not fill bytes.
    """
    if not dims and not dtypes:
        return [None]
    widths = split_specs(dims) or ["0"]
    if dims and not all(width.isdecimal() and int(width) for width in widths):
        raise InputError(f"--dims={dims} must be positive numbers, separated by commas, such as 64,128.")
    forms = [
        SmallForm(dims=int(width), dtype=dtype) for width, dtype in product(widths, split_specs(dtypes) or ["float32"])
    ]
    for form in forms:
        check_packable(form.dims, form.dtype)
    return [None if form == SmallForm(dims=0, dtype="float32") else form for form in dict.fromkeys(forms)]
