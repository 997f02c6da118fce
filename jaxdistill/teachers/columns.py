"""A teacher that is your own scores of the text's pairs, in columns of the text."""

import dataclasses
from collections.abc import Sequence

from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.data.sources import split_specs
from jaxdistill.teachers.parts import labelling
from jaxdistill.teachers.parts.teacher import TargetInputs, Teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(Teacher):
    """Your own scores of each row's sentence pairs, in columns of the text."""

    kind: str = "columns"
    names: str = ""
    """Columns of `data.text`, one for each pair of a row, separated by commas, such as `score_positive,score_negative`."""

    scores_pairs = of_rows = True
    given_by = "names=NAME"

    @property
    def is_given(self) -> bool:
        return bool(self.names)

    @property
    def shown(self) -> Sequence[str]:
        return [f"columns:{self.names}"]

    def check(self) -> None:
        names = split_specs(self.names)
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(
                f"teacher.names={self.names} names the column {twice[0]!r} twice; name one column for each pair of a row."
            )

    def width(self, widths: Sequence[int]) -> int:
        return 0

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = labelling.scores_of_columns(split_specs(self.names), inputs.data, inputs.text)
        return (labelling.checked_scores(array, f"teacher.names={self.names}", inputs.text, inputs.objective),)
