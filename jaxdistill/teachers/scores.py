"""Your own scores of the text's pairs, in a file of numbers."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.teachers.parts import labelling
from jaxdistill.teachers.parts.teacher import Making, Teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores(Teacher):
    """Your own scores of the pairs of each row of the text."""

    kind: str = "scores"
    file: str = ""
    """A `.npy` file of shape [rows, pairs], one score for each pair of a row of `data.text`."""

    scores_pairs = of_rows = True

    @property
    def is_given(self) -> bool:
        return bool(self.file)

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        return {"teacher.file": [self.file]}

    @property
    def public_name(self) -> Sequence[str]:
        return [self.file]

    def check(self) -> None:
        if not self.file:
            raise InputError("teacher.kind=scores needs your scores; set --config.teacher.file=FILE.npy.")

    def width(self, widths: Sequence[int]) -> int:
        return 0

    def stored(self, making: Making) -> tuple[targets.Stored, ...]:
        array = targets.checked_own_vectors(self.file, making.text.input_rows)
        return (labelling.checked_scores(array, f"teacher.file={self.file}", making.text, making.objective),)
