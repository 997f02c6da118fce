"""An ensemble of models that score pairs."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxdistill.checkpoints.model import SentenceModel
from jaxdistill.core import InputError
from jaxdistill.inference import Embedder


class Ensemble:
    """Scores pairs by the mean of several models' scores (Trans-Encoder, arXiv 2109.13059, Table 1)."""

    def __init__(self, members: Sequence[Embedder], *, progress: bool = False):
        """
        Args:
          members: only sentence encoders or only cross-encoders, because their scores differ in scale.
          progress: show a bar for each member.
        """
        refuse_mixed([member.model for member in members])
        self._members, self._progress = tuple(members), progress

    def score(self, first: Sequence[str], second: Sequence[str]) -> Float[np.ndarray, " n"]:
        """Mean of the members' cosine similarities or cross-encoder scores."""
        scores = [member.score(first, second, show_progress_bar=self._progress) for member in self._members]
        return np.mean(np.stack(scores).astype(np.float64), axis=0)

    def __call__(self, sentences: Sequence[str]):
        """Raises `InputError`: an ensemble has no vectors."""
        names = "+".join(member.model.source for member in self._members)
        raise InputError(f"{names} is an ensemble: it has no vectors of sentences; score pairs.")


def refuse_mixed(models: Sequence[SentenceModel]) -> None:
    """Raises `InputError` if sentence encoders and cross-encoders are mixed: their scores have different scales."""
    if len({model.definition.reads_pairs for model in models}) > 1:
        names = "+".join(model.source for model in models)
        raise InputError(f"{names} mixes sentence encoders and cross-encoders; name models of one kind.")
