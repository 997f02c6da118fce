"""Your own vectors of the text's rows."""

import dataclasses
from collections.abc import Mapping, Sequence

from jaxdistill.core import InputError
from jaxdistill.data import targets
from jaxdistill.teachers.parts.encoder import Whitening
from jaxdistill.teachers.parts.teacher import Making


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors(Whitening):
    """Your own vectors, one for each row of the text."""

    kind: str = "vectors"
    file: str = ""
    """A `.npy` file with one vector for each row of `data.text`, also at `s3://` or `gs://`."""
    normalize: bool = True
    """False: compare vectors as pooled; a student made from a checkpoint with a Normalize module lacks it."""

    of_rows = True

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
            raise InputError("teacher.kind=vectors needs your vectors; set --config.teacher.file=FILE.npy.")

    def width(self, widths: Sequence[int]) -> int:
        return self.components or targets.open_own_vectors(self.file).shape[1]

    def stored(self, making: Making) -> tuple[targets.Stored, ...]:
        array = targets.checked_own_vectors(self.file, making.text.input_rows, making.text.input_row)
        selected = targets.Selected(array, making.text.input_row)
        return (self.whitened(selected),) * len(making.objective.teacher_views)
