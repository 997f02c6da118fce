"""A teacher that is your own scores of the text's pairs, in columns of the text."""

import contextlib
import dataclasses
from collections.abc import Sequence
from itertools import islice

import numpy as np

from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.data.text import read, split_specs
from jaxdistill.models.teacher import OwnScores, TargetInputs


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(OwnScores):
    """Your own scores of each row's sentence pairs, in columns of the text."""

    kind: str = "columns"
    names: str = ""
    """Columns of `data.text`, one for each pair of a row, separated by commas, such as `score_positive,score_negative`."""

    given_by = "names"

    @property
    def shown(self) -> Sequence[str]:
        return [f"columns:{self.names}"]

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        names, store = split_specs(self.names), inputs.text
        # NaN in rows that the store leaves out and that lack a score.
        scores = np.full((store.input_rows, len(names)), np.nan, np.float32)
        used = set(store.input_row.tolist())
        rows = read(split_specs(inputs.data.text), names, numbers=True, cache=inputs.data.cache_folder)
        for index, row in enumerate(islice(rows, len(scores))):
            for column, cell in enumerate(row):
                with contextlib.suppress(ValueError):
                    scores[index, column] = float(cell)
                if index in used and not np.isfinite(scores[index, column]):
                    raise InputError(
                        f"data.text: row {index + 1:,} has {cell!r:.40} in the column {names[column]!r}, not a finite number; correct "
                        "or remove the row, or choose models that score the pairs (--config=FILE.py:PRESET:teacher=labels)."
                    )
        return (self.checked(scores, f"teacher.names={self.names}", inputs),)
