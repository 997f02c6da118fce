"""Teachers without a model: your vectors of the text's rows, or your scores of their sentence pairs."""

import contextlib
import dataclasses
from collections.abc import Sequence
from itertools import islice

import numpy as np
from jaxtyping import Float

from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.data.text import read, split_specs
from jaxdistill.models.teacher import TargetInputs, Teacher
from jaxdistill.models.teachers.vectors import StoredVectors


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetFile(Teacher):
    """Your targets in a file."""

    file: str = ""
    """A local `.npy` file with one row per row of `data.text`: its vector, or one score for each of its pairs."""

    of_rows = True
    source_option = "file"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors(TargetFile, StoredVectors):
    """Your own vectors, one for each row of the text."""

    kind: str = "vectors"

    def width(self, widths: Sequence[int]) -> int:
        return super().width([targets.open_user_vectors(self.file).shape[1]])

    def vectors(self, inputs: TargetInputs, view: str) -> targets.Selected:
        array = targets.checked_user_vectors(self.file, inputs.text.input_rows, inputs.text.input_row)
        return targets.Selected(array, inputs.text.input_row)  # the rows that the token store keeps


def checked_scores(array: Float[np.ndarray, "rows k"], source: str, inputs: TargetInputs) -> targets.Selected:
    """The scores, in `array`, of the rows that the token store keeps. Raises `InputError` for a wrong count or range."""
    pairs_per_row = len(inputs.objective.scored) - 1  # the first of the `scored` columns with each of the others
    largest = inputs.objective.largest_label
    selected = targets.Selected(array, inputs.text.input_row)
    most = np.abs(selected[:]).max(initial=0.0)
    if array.shape[1] != pairs_per_row or most > largest * (1.0 + 1e-6):  # rounding may push a score above its limit
        raise InputError(
            f"{source} has {array.shape[1]} numbers per row, up to {most:g}; this objective reads {pairs_per_row}, one score per pair, "
            f"from {-largest:g} to {largest:g}: divide scores of 0 to 5 by 5, or use a preset of cosent.py."
        )
    return selected


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scores(TargetFile):
    """Your own scores of each row's sentence pairs, in a file."""

    kind: str = "scores"

    scores_pairs = True

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        array = targets.checked_user_vectors(self.file, inputs.text.input_rows)
        return (checked_scores(array, f"teacher.file={self.file}", inputs),)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(Teacher):
    """Your own scores of each row's sentence pairs, in columns of the text."""

    kind: str = "columns"
    names: str = ""
    """Columns of `data.text`, one for each pair of a row, separated by commas, such as `score_positive,score_negative`."""

    scores_pairs = of_rows = True
    source_option = "names"

    @property
    def target_sources(self) -> Sequence[str]:
        return [f"columns:{self.names}"] if self.names else []

    def stored(self, inputs: TargetInputs) -> tuple[targets.Stored, ...]:
        names = split_specs(self.names)
        # A row that the token store leaves out may lack a score; it stays NaN and is never read.
        scores = np.full((inputs.text.input_rows, len(names)), np.nan, np.float32)
        used = set(inputs.text.input_row.tolist())
        rows = read(split_specs(inputs.data.text), names, numbers=True, cache=inputs.data.cache_folder)
        for index, row in enumerate(islice(rows, len(scores))):  # without rows added after the text was tokenised
            for column, cell in enumerate(row):
                with contextlib.suppress(ValueError):  # not a number: stays NaN
                    scores[index, column] = float(cell)
                if index in used and not np.isfinite(scores[index, column]):
                    raise InputError(
                        f"data.text: row {index + 1:,} has {cell!r:.40} in the column {names[column]!r}, not a finite number; correct "
                        "or remove the row, or choose models that score the pairs (--config=FILE.py:PRESET:teacher=labels)."
                    )
        return (checked_scores(scores, f"teacher.names={self.names}", inputs),)
