"""A teacher that is your own scores of the text's pairs, in a file."""

import dataclasses

from jaxdistill.data import targets
from jaxdistill.models.teacher import OwnFile, OwnScores, TargetInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores(OwnScores, OwnFile):
    """Your own scores of each row's sentence pairs, in a file."""

    kind: str = "scores"

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = targets.checked_own_vectors(self.file, inputs.text.input_rows)
        return (self.checked(array, f"teacher.file={self.file}", inputs),)
