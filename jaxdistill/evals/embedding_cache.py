"""Sets share sentences: SST2 has two thirds of MR's, SICK-E most of SICK-R's. Each is read by the model once."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.core import Embed, InputError


class Once:
    """An `Embed` that asks another one for each distinct sentence once, and keeps the vector for the next time.

    A vector differs from a new one by rounding, as sentences that are computed together may differ. All tasks of `evaluate`
    keep 300,000 vectors: 0.5 GB of MiniLM's, 1.3 GB where they have 1,024 numbers. Raises InputError where it is not given one
    vector a sentence.
    """

    def __init__(self, embed: Embed):
        self._embed, self._vectors = embed, {}

    def __call__(self, sentences: Sequence[str]) -> Float[np.ndarray, "n e"]:
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            vectors = np.asarray(self._embed(new))
            if len(vectors) != len(new):
                raise InputError(f"{len(new)} sentences gave {len(vectors)} vectors; one row each is needed.")
            self._vectors.update(zip(new, vectors, strict=True))
        known = [self._vectors[sentence] for sentence in sentences]
        return np.stack(known) if known else np.asarray(self._embed([]))
