"""A teacher whose vectors of the text are computed once and cached."""

import dataclasses

from jaxdistill.models.teacher import StoredVectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored(StoredVectors):
    """Computes the teacher's vectors of the text once and caches them on disk."""

    kind: str = "stored"
