"""A teacher that is your own scores of the text's pairs, in a file."""

import dataclasses

from jaxdistill.data import targets
from jaxdistill.models import labelling
from jaxdistill.models.teacher import OwnFile, TargetInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores(OwnFile):
    """Your own scores of each row's sentence pairs, in a file."""

    kind: str = "scores"

    scores_pairs = True

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = targets.checked_own_vectors(self.file, inputs.text.input_rows)
        return (labelling.checked_scores(array, f"teacher.file={self.file}", inputs.text, inputs.objective),)
