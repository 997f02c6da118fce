"""A teacher that is your own scores of the text's pairs, in columns of the text."""

import dataclasses
from collections.abc import Sequence

from jaxdistill.data import targets
from jaxdistill.data.text import split_specs
from jaxdistill.models import labelling
from jaxdistill.models.teacher import TargetInputs, Teacher


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(Teacher):
    """Your own scores of each row's sentence pairs, in columns of the text."""

    kind: str = "columns"
    names: str = ""
    """Columns of `data.text`, one for each pair of a row, separated by commas, such as `score_positive,score_negative`."""

    scores_pairs = of_rows = True
    given_by = "names"

    @property
    def shown(self) -> Sequence[str]:
        return [f"columns:{self.names}"]

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = labelling.scores_of_columns(split_specs(self.names), inputs.data, inputs.text)
        return (labelling.checked_scores(array, f"teacher.names={self.names}", inputs.text, inputs.objective),)
