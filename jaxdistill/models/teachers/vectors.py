"""A teacher given as a file of your own vectors, one for each row of the text."""

import dataclasses
from collections.abc import Sequence

from jaxdistill.data import targets
from jaxdistill.models.teacher import OwnFile, TargetInputs, WhiteningOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors(OwnFile, WhiteningOptions):
    """Your own vectors, one for each row of the text."""

    kind: str = "vectors"
    normalize: bool = True
    """False: compare vectors as pooled; a student made from a checkpoint with a Normalize module lacks it."""

    def width(self, widths: Sequence[int]) -> int:
        return super().width([targets.open_own_vectors(self.file).shape[1]])

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = targets.checked_own_vectors(self.file, inputs.text.input_rows, inputs.text.input_row)
        selected = targets.Selected(array, inputs.text.input_row)
        return (self.whitened(selected),) * len(inputs.objective.teacher_views)
